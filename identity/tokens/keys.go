package tokens

import (
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// Keys are the public keys of an issuer. They do not change.
type Keys struct {
	all  []jose.JSONWebKey
	byID map[string][]jose.JSONWebKey
	weak []string // the ids of keys that were refused because they are too weak, each with its size
}

// maxKeys bounds the cost of a token without a key id, for which all keys are tried. Issuers have two or three.
const maxKeys = 100

// leastRSABits is the size of the smallest RSA keys that are used.
const leastRSABits = 2048

// ParseKeys returns the keys in a JSON Web Key Set. It leaves out keys that cannot verify signatures, and symmetric
// ones, with which everyone who knows them could sign. It refuses RSA keys of less than 2048 bits, which others could
// find out. RFC 7517: "JWK Set Format". RFC 7518: "Digital Signature with RSASSA-PKCS1-v1_5".
func ParseKeys(set []byte) (*Keys, error) {
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(set, &raw); err != nil {
		return nil, fmt.Errorf("is not a JSON Web Key Set: %w", err)
	}
	if len(raw.Keys) > maxKeys {
		return nil, fmt.Errorf("has %d keys (want at most %d)", len(raw.Keys), maxKeys)
	}
	keys := &Keys{byID: map[string][]jose.JSONWebKey{}}
	for _, text := range raw.Keys {
		var key jose.JSONWebKey
		if err := key.UnmarshalJSON(text); err != nil || !verifies(&key) {
			continue // RFC 7517: keys that are not understood are ignored
		}
		if of, ok := key.Key.(*rsa.PublicKey); ok && of.N.BitLen() < leastRSABits {
			keys.weak = append(keys.weak, fmt.Sprintf("%.80q (%d bits)", key.KeyID, of.N.BitLen()))
			continue
		}
		keys.all = append(keys.all, key)
		keys.byID[key.KeyID] = append(keys.byID[key.KeyID], key)
	}
	if len(keys.all) == 0 && len(keys.weak) > 0 {
		return nil, fmt.Errorf("has only keys that are too weak: %s (want RSA keys of %d bits or more)", strings.Join(keys.weak, ", "), leastRSABits)
	}
	if len(keys.all) == 0 {
		return nil, errors.New("has no public key for signatures (want keys of kty RSA, EC or OKP)")
	}
	return keys, nil
}

// LogWeak logs which keys of a set were refused because they are too weak.
func (k *Keys) LogWeak(log *slog.Logger, from string) {
	if len(k.weak) > 0 {
		log.Warn("keys of the issuer are too weak, and are not used", "from", from, "keys", strings.Join(k.weak, ", "), "want_bits", leastRSABits)
	}
}

func verifies(key *jose.JSONWebKey) bool {
	return key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig")
}

// candidates returns the keys that may have signed a token with this header. unknown: no key has the header's key id.
func (k *Keys) candidates(h *jose.Header) (keys []jose.JSONWebKey, unknown bool) {
	named := k.all
	if h.KeyID != "" {
		named = k.byID[h.KeyID]
	}
	for _, key := range named {
		if key.Algorithm == "" || key.Algorithm == h.Algorithm {
			keys = append(keys, key)
		}
	}
	return keys, len(named) == 0
}
