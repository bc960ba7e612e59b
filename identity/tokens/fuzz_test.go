package tokens

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// fixedSigner is the same signer in every process, and so are its signatures.
func fixedSigner(t testing.TB, id string, seed byte) signer {
	return newSigner(t, id, ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
}

// lasting are the claims of a token that is good for ever.
func lasting(changes map[string]any) map[string]any {
	all := claims(map[string]any{"iat": nil, "exp": 1e10})
	for name, value := range changes {
		all[name] = value
	}
	return all
}

// FuzzToken sends any text as a token. Only a token that was signed verifies, with the claims that were signed.
func FuzzToken(f *testing.F) {
	known, stranger := fixedSigner(f, "a", 1), fixedSigner(f, "a", 2)
	signed := map[string]bool{}
	for _, changes := range []map[string]any{nil, {"sub": "root"}, {"aud": "xds"}, {"iat": 1}} {
		token := known.sign(f, jose.EdDSA, lasting(changes), nil)
		f.Add(token)
		signed[contentOf(token)] = true
	}
	for _, changes := range []map[string]any{{"exp": 1}, {"aud": "another"}, {"iss": "another"}, {"nbf": 1e10}} {
		f.Add(known.sign(f, jose.EdDSA, lasting(changes), nil)) // it is signed, and not valid
	}
	f.Add(stranger.sign(f, jose.EdDSA, lasting(nil), nil))
	v := newVerifier(fixed(keysOf(f, known)))
	f.Fuzz(func(t *testing.T, token string) {
		got, err := v.Verify(token)
		if err != nil {
			return
		}
		if !signed[contentOf(token)] {
			t.Fatalf("%s is %+v, and nobody has signed it", token, got)
		}
	})
}

// contentOf returns the header and the claims of a token.
func contentOf(token string) string {
	parts := strings.Split(token, ".")
	for i := range parts {
		text, _ := base64.RawURLEncoding.DecodeString(parts[i])
		parts[i] = string(text)
	}
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// FuzzClaims has the issuer sign any claims. A token verifies only if they are those of RFC 7519 for this relay, and it
// is what the claims say.
func FuzzClaims(f *testing.F) {
	known := fixedSigner(f, "a", 1)
	v := newVerifier(fixed(keysOf(f, known)))
	for _, changes := range []map[string]any{
		nil, {"exp": 1}, {"exp": nil}, {"exp": 1e300}, {"exp": "1"}, {"aud": "xds"}, {"aud": []any{1}}, {"iss": nil}, {"nbf": 1e10}, {"iat": 1.5}, {"sub": 1},
	} {
		text, err := json.Marshal(lasting(changes))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"iss":"https://issuer.example.org","aud":"xds","exp":1e10,"exp":1,"EXP":2}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if !json.Valid(payload) {
			return
		}
		now := time.Now()
		got, err := v.Verify(known.sign(t, jose.EdDSA, json.RawMessage(payload), nil))
		if err != nil {
			return
		}
		var is map[string]any
		if err := json.Unmarshal(payload, &is); err != nil {
			t.Fatalf("%s verifies, and is %v", payload, err)
		}
		audiences, _ := is["aud"].([]any)
		if one, ok := is["aud"].(string); ok {
			audiences = []any{one}
		}
		expiry, _ := is["exp"].(float64)
		begins, _ := is["nbf"].(float64)
		subject, _ := is["sub"].(string)
		second := float64(now.Unix())
		slack := (Leeway + 2*time.Second).Seconds()
		switch {
		case is["iss"] != v.options.Issuer, !slices.Contains(audiences, "xds") && !slices.Contains(audiences, "xds-relay"):
			t.Fatalf("%s verifies, and is of another issuer or for another audience", payload)
		case expiry < second-slack, begins > second+slack:
			t.Fatalf("%s verifies, and is not valid now", payload)
		case got.Subject != subject, !got.Expires.After(now), float64(got.Expires.Unix()) > expiry+slack:
			t.Fatalf("%s is of %q and expires at %v", payload, got.Subject, got.Expires)
		}
	})
}

// FuzzKeySet reads any text as a key set. Its keys are public ones that are strong enough, few of them, and each prints
// so that it reads the same again.
func FuzzKeySet(f *testing.F) {
	one, other := fixedSigner(f, "a", 1), fixedSigner(f, "", 2)
	private, err := json.Marshal(one.JSONWebKey)
	if err != nil {
		f.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		f.Fatal(err)
	}
	strong, err := rsaKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(set(f, one, other, newSigner(f, "p256", nil)))
	f.Add(set(f, newSigner(f, "weak", weak), newSigner(f, "strong", strong)))
	f.Add([]byte(`{"keys":[` + string(private) + `,{"kty":"oct","k":"eA"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := ParseKeys(text)
		if err != nil {
			return
		}
		if len(keys.all) > maxKeys {
			t.Fatalf("%d keys", len(keys.all))
		}
		for _, key := range keys.all {
			if of, ok := key.Key.(*rsa.PublicKey); !key.IsPublic() || ok && of.N.BitLen() < leastRSABits {
				t.Fatalf("the key %q is not public, or weak", key.KeyID)
			}
		}
		printed, err := json.Marshal(jose.JSONWebKeySet{Keys: keys.all})
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseKeys(printed)
		if err != nil || len(again.all) != len(keys.all) {
			t.Fatalf("%s reads as %+v (%v)", printed, again, err)
		}
		if second, err := json.Marshal(jose.JSONWebKeySet{Keys: again.all}); err != nil || !bytes.Equal(second, printed) {
			t.Fatalf("%s prints as %s (%v)", printed, second, err)
		}
	})
}
