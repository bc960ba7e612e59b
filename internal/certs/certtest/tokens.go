package certtest

import (
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Audience is the audience of the tokens of an [Issuer].
const Audience = "xds-relay"

// IssuerURL is the issuer that the tokens name.
const IssuerURL = "https://issuer"

// Issuer issues tokens (JWT).
type Issuer struct {
	id  string // the id of its key
	key *ecdsa.PrivateKey
}

// NewIssuer returns an issuer with a new key of that id.
func NewIssuer(t testing.TB, id string) *Issuer {
	t.Helper()
	return &Issuer{id, newKey(t)}
}

// KeySet returns the content of a JWKS file with the keys of issuers.
func KeySet(t testing.TB, issuers ...*Issuer) []byte {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, i := range issuers {
		set.Keys = append(set.Keys, jose.JSONWebKey{KeyID: i.id, Key: i.key.Public(), Algorithm: string(jose.ES256), Use: "sig"})
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Token returns a token for a subject, with [IssuerURL], [Audience] and further claims.
func (i *Issuer) Token(t testing.TB, subject string, lifetime time.Duration, further map[string]any) string {
	t.Helper()
	all := map[string]any{
		"iss": IssuerURL, "aud": []string{Audience}, "sub": subject, "jti": rand.Text(),
		"iat": time.Now().Unix(), "exp": time.Now().Add(lifetime).Unix(),
	}
	maps.Copy(all, further)
	return Sign(t, jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{KeyID: i.id, Key: i.key}}, nil, all)
}

// Sign returns a token with a payload, valid or not. o changes its header.
func Sign(t testing.TB, key jose.SigningKey, o *jose.SignerOptions, payload any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, o)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	object, err := signer.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	token, err := object.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
