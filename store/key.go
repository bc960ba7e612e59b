package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/prf"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// A key file has two Tink keysets: one for the content of records, and one for their keys. Record keys are looked up
// by name, so they cannot be encrypted with a nonce.

// Key encrypts a store.
type Key struct {
	records tink.AEAD
	names   *prf.Set
	digest  [sha256.Size]byte // of the file's content
}

// equal reports whether two keys are the same. Either may be nil, for none.
func (k *Key) equal(o *Key) bool {
	if k == nil || o == nil {
		return k == o
	}
	return k.digest == o.digest
}

// keyFile is the JSON of a key file.
type keyFile struct {
	Records json.RawMessage `json:"records"`
	Names   json.RawMessage `json:"names"`
}

// NewKey returns the content of a new key file.
func NewKey() ([]byte, error) {
	var f keyFile
	var err error
	// The nonces are long enough to be random, however often resources change.
	if f.Records, err = newKeyset(aead.XChaCha20Poly1305KeyTemplate()); err != nil {
		return nil, err
	}
	if f.Names, err = newKeyset(prf.HMACSHA256PRFKeyTemplate()); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(f, "", "  ")
	return append(b, '\n'), err
}

func newKeyset(t *tinkpb.KeyTemplate) (json.RawMessage, error) {
	h, err := keyset.NewHandle(t)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = insecurecleartextkeyset.Write(h, keyset.NewJSONWriter(&b))
	return b.Bytes(), err
}

// ReadKey reads a key file.
func ReadKey(path string) (*Key, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := ParseKey(b)
	if err != nil {
		return nil, fmt.Errorf("%s: it is not a key file of `xds-relay store keygen`: %w", path, err)
	}
	return k, nil
}

// ParseKey parses the content of a key file.
func ParseKey(b []byte) (*Key, error) {
	var f keyFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	handle := func(text json.RawMessage) (*keyset.Handle, error) {
		return insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(text)))
	}
	records, err := handle(f.Records)
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	names, err := handle(f.Names)
	if err != nil {
		return nil, fmt.Errorf("names: %w", err)
	}
	k := Key{digest: sha256.Sum256(b)}
	if k.records, err = aead.New(records); err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	if k.names, err = prf.NewPRFSet(names); err != nil {
		return nil, fmt.Errorf("names: %w", err)
	}
	return &k, nil
}

// seal implements sealed.
func (k *Key) seal(key, content []byte) ([]byte, error) { return k.records.Encrypt(content, key) }

// open implements sealed.
func (k *Key) open(key, stored []byte) ([]byte, error) { return k.records.Decrypt(stored, key) }

func (k *Key) hash(text []byte) ([]byte, error) { return k.names.ComputePrimaryPRF(text, hashLen) }

// plainHash is the hash of a store without a key.
func plainHash(text []byte) ([]byte, error) {
	sum := sha256.Sum256(text)
	return sum[:hashLen], nil
}
