package tokens

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// signer is a key with which an issuer signs.
type signer struct {
	jose.JSONWebKey
}

var rsaKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func newSigner(t testing.TB, id string, key crypto.PrivateKey) signer {
	t.Helper()
	if key == nil {
		var err error
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	return signer{jose.JSONWebKey{KeyID: id, Key: key}}
}

// set is the key set of these signers.
func set(t testing.TB, signers ...signer) []byte {
	t.Helper()
	var all jose.JSONWebKeySet
	for _, s := range signers {
		public := s.Public()
		public.Algorithm, public.Use = s.Algorithm, s.Use
		all.Keys = append(all.Keys, public)
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func keysOf(t testing.TB, signers ...signer) *Keys {
	t.Helper()
	keys, err := ParseKeys(set(t, signers...))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// claims are those of a good token, with changes. A nil takes one away.
func claims(changes map[string]any) map[string]any {
	all := map[string]any{
		"iss": "https://issuer.example.org", "aud": []string{"other", "xds-relay"}, "sub": "system:serviceaccount:pay:gw",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{"namespace": "pay"},
	}
	for name, value := range changes {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	return all
}

// sign signs with an algorithm. header changes the token's header.
func (s signer) sign(t testing.TB, alg jose.SignatureAlgorithm, payload any, header map[jose.HeaderKey]any) string {
	t.Helper()
	key := jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{KeyID: s.KeyID, Key: s.Key}}
	return certtest.Sign(t, key, &jose.SignerOptions{ExtraHeaders: header}, payload)
}

func newVerifier(s Source) *Verifier {
	return New(Options{Issuer: "https://issuer.example.org", Audiences: []string{"xds-relay", "xds"}, Source: s})
}

func fixed(keys *Keys) Fixed { return func() *Keys { return keys } }

func TestOnlyValidTokensVerify(t *testing.T) {
	private, err := rsaKey()
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, nameless, rs, ed := newSigner(t, "ec", nil), newSigner(t, "", nil), newSigner(t, "rsa", private), newSigner(t, "ed", edKey)
	only256 := newSigner(t, "rs256", private)
	only256.Algorithm = "RS256"
	encrypts := newSigner(t, "enc", nil)
	encrypts.Use = "enc"
	stranger := newSigner(t, "ec", nil)
	unknown := newSigner(t, "unknown", nil)
	v := newVerifier(fixed(keysOf(t, ec, nameless, rs, ed, only256, encrypts)))
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	good := ec.sign(t, jose.ES256, claims(nil), nil)
	parts := strings.Split(good, ".")
	pem, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	changed := func(changes map[string]any) string { return ec.sign(t, jose.ES256, claims(changes), nil) }
	for _, tt := range []struct {
		name, token string
		want        error
	}{
		{"ECDSA", good, nil},
		{"RSA", rs.sign(t, jose.RS256, claims(nil), nil), nil},
		{"RSA-PSS", rs.sign(t, jose.PS512, claims(nil), nil), nil},
		{"Ed25519", ed.sign(t, jose.EdDSA, claims(nil), nil), nil},
		{"a key of one algorithm", only256.sign(t, jose.RS256, claims(nil), nil), nil},
		{"a key of another algorithm", only256.sign(t, jose.PS256, claims(nil), nil), ErrSignature},
		{"no key id", nameless.sign(t, jose.ES256, claims(nil), nil), nil},
		{"no key id, and another key", signer{jose.JSONWebKey{Key: stranger.Key}}.sign(t, jose.ES256, claims(nil), nil), ErrSignature},
		{"one audience as text", changed(map[string]any{"aud": "xds"}), nil},
		{"clocks that differ a little", changed(map[string]any{"exp": in(-20 * time.Second), "nbf": in(20 * time.Second)}), nil},
		{"no iat", changed(map[string]any{"iat": nil}), nil},

		{"nothing", "", ErrMalformed},
		{"no token", "abc", ErrMalformed},
		{"algorithm none", encode(map[string]any{"alg": "none"}) + "." + parts[1] + ".", ErrMalformed},
		{"algorithm None", encode(map[string]any{"alg": "None"}) + "." + parts[1] + ".", ErrMalformed},
		{"algorithm none with a signature", encode(map[string]any{"alg": "none", "kid": "ec"}) + "." + parts[1] + "." + parts[2], ErrMalformed},
		{"HMAC with the public key", signer{jose.JSONWebKey{KeyID: "rsa", Key: pem}}.sign(t, jose.HS256, claims(nil), nil), ErrMalformed},
		{"no signature", parts[0] + "." + parts[1] + ".", ErrSignature},
		{"another payload", parts[0] + "." + encode(claims(map[string]any{"sub": "root"})) + "." + parts[2], ErrSignature},
		{"another header", encode(map[string]any{"alg": "ES256", "kid": "ec", "x": 1}) + "." + parts[1] + "." + parts[2], ErrSignature},
		{"a key of its own in the header", encode(map[string]any{"alg": "ES256", "kid": "ec", "jwk": map[string]any{"kty": "EC"}}) + "." + parts[1] + "." + parts[2], ErrMalformed},
		{"a stranger's key of the same id", stranger.sign(t, jose.ES256, claims(nil), nil), ErrSignature},
		{"a key that is not known", unknown.sign(t, jose.ES256, claims(nil), nil), ErrKey},
		{"a key for encryption", encrypts.sign(t, jose.ES256, claims(nil), nil), ErrKey},
		{"an extension that must be understood", ec.sign(t, jose.ES256, claims(nil), map[jose.HeaderKey]any{"crit": []string{"exp"}, "exp": 1}), ErrMalformed},
		{"no claims", ec.sign(t, jose.ES256, []int{1}, nil), ErrClaims},
		{"an expiry that is text", changed(map[string]any{"exp": "tomorrow"}), ErrClaims},
		{"another issuer", changed(map[string]any{"iss": "https://issuer.example.org/"}), ErrIssuer},
		{"no issuer", changed(map[string]any{"iss": nil}), ErrIssuer},
		{"another audience", changed(map[string]any{"aud": []string{"xds-relay.example.org"}}), ErrAudience},
		{"no audience", changed(map[string]any{"aud": nil}), ErrAudience},
		{"expired", changed(map[string]any{"exp": in(-31 * time.Second)}), ErrExpired},
		{"no expiry", changed(map[string]any{"exp": nil}), ErrNoExpiry},
		{"not valid yet", changed(map[string]any{"nbf": in(time.Minute)}), ErrTooEarly},
		{"issued in the future", changed(map[string]any{"iat": in(time.Minute)}), ErrTooEarly},
		{"very long", changed(map[string]any{"groups": strings.Repeat("x", maxToken)}), ErrTooLong},
	} {
		got, err := v.Verify(tt.token)
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if err == nil && (got.Subject != "system:serviceaccount:pay:gw" || fmt.Sprint(got.Claims["kubernetes.io"]) != "map[namespace:pay]") {
			t.Errorf("%s: got %+v", tt.name, got)
		}
	}
}

func TestKeySets(t *testing.T) {
	ec := newSigner(t, "ec", nil)
	public := string(set(t, ec))
	key := strings.TrimSuffix(strings.TrimPrefix(public, `{"keys":[`), "]}")
	private, err := json.Marshal(ec.JSONWebKey)
	if err != nil {
		t.Fatal(err)
	}
	rsaSet := func(bits int) string {
		of := big.NewInt(1)
		of.SetBit(of, bits-1, 1)
		text, err := json.Marshal(jose.JSONWebKey{Key: &rsa.PublicKey{N: of, E: 65537}, KeyID: "weak"})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	weak := `has only keys that are too weak: "weak" (2047 bits) (want RSA keys of 2048 bits or more)`
	none := "has no public key for signatures (want keys of kty RSA, EC or OKP)"
	for _, tt := range []struct{ name, set, want string }{
		{"a key", public, ""},
		{"a key, and others that are not understood", `{"keys":[{"kty":"new"},{"kty":"EC","crv":"P-256","x":"!"},7,` + key + `]}`, ""},
		{"an RSA key of 2048 bits", `{"keys":[` + rsaSet(2048) + `]}`, ""},
		{"an RSA key of 2047 bits", `{"keys":[` + rsaSet(2047) + `]}`, weak},
		{"a symmetric key", `{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}`, none},
		{"a private key", `{"keys":[` + string(private) + `]}`, none},
		{"none", `{"keys":[]}`, none},
		{"something else", `{}`, none},
		{"no JSON", `<html>`, "is not a JSON Web Key Set: invalid character '<' looking for beginning of value"},
		{"very many", `{"keys":[` + strings.Repeat("{},", maxKeys) + `{}]}`, "has 101 keys (want at most 100)"},
	} {
		_, err := ParseKeys([]byte(tt.set))
		if got := fmt.Sprint(err); got != tt.want && (err != nil || tt.want != "") {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

// A weak key verifies no token, and is logged.
func TestAWeakKeyIsNotUsed(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // it is to be refused
	if err != nil {
		t.Fatal(err)
	}
	weak := signer{jose.JSONWebKey{Key: private, KeyID: "weak", Use: "sig"}}
	keys := keysOf(t, newSigner(t, "ec", nil), weak)
	if _, err := newVerifier(Fixed(func() *Keys { return keys })).Verify(weak.sign(t, jose.RS256, claims(nil), nil)); err == nil {
		t.Error("a token of a weak key is good")
	}
	var out bytes.Buffer
	keys.LogWeak(slog.New(slog.NewTextHandler(&out, nil)), "jwks.json")
	if got := out.String(); !strings.Contains(got, `level=WARN msg="keys of the issuer are too weak, and are not used" from=jwks.json keys="\"weak\" (1024 bits)"`) {
		t.Errorf("the log has %s", got)
	}
}

func TestATokenIsVerifiedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ec := newSigner(t, "ec", nil)
		keys := keysOf(t, ec)
		v := newVerifier(Fixed(func() *Keys { return keys }))
		tokens := make([]string, 1000)
		for i := range tokens {
			tokens[i] = ec.sign(t, jose.ES256, claims(map[string]any{"jti": fmt.Sprint(i)}), nil)
		}
		for range 3 {
			for _, token := range tokens {
				if _, err := v.Verify(token); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := v.count.Load(); n != uint64(len(tokens)) {
			t.Errorf("%d verifications of %d tokens", n, len(tokens))
		}
		// Withdrawn keys verify nothing.
		keys = keysOf(t, newSigner(t, "ec", nil))
		if _, err := v.Verify(tokens[0]); !errors.Is(err, ErrSignature) {
			t.Errorf("with another key: got %v", err)
		}
		keys = keysOf(t, ec)
		if _, err := v.Verify(tokens[0]); err != nil {
			t.Error(err)
		}
		// What was verified expires all the same.
		time.Sleep(time.Hour + Leeway + time.Second)
		if _, err := v.Verify(tokens[0]); !errors.Is(err, ErrExpired) {
			t.Errorf("after an hour: got %v", err)
		}
	})
}

// A client that makes up tokens does not push the others out.
func TestOnlyGoodTokensAreKept(t *testing.T) {
	ec, stranger := newSigner(t, "ec", nil), newSigner(t, "ec", nil)
	v := newVerifier(fixed(keysOf(t, ec)))
	good := ec.sign(t, jose.ES256, claims(nil), nil)
	if _, err := v.Verify(good); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		_, _ = v.Verify(stranger.sign(t, jose.ES256, claims(map[string]any{"jti": fmt.Sprint(i)}), nil))
		_, _ = v.Verify(ec.sign(t, jose.ES256, claims(map[string]any{"iss": fmt.Sprint(i)}), nil))
	}
	if n := v.verified.Load().tokens.Len(); n != 1 {
		t.Errorf("%d tokens are kept", n)
	}
}

func BenchmarkVerify(b *testing.B) {
	private, err := rsaKey()
	if err != nil {
		b.Fatal(err)
	}
	rs := newSigner(b, "rsa", private)
	v := newVerifier(fixed(keysOf(b, rs)))
	var n atomic.Int64
	tokens := make([]string, 100)
	for i := range tokens {
		tokens[i] = rs.sign(b, jose.RS256, claims(map[string]any{"jti": fmt.Sprint(i)}), nil)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			if _, err := v.verify(v.options.Source.Keys(), tokens[n.Add(1)%100]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			if _, err := v.Verify(tokens[n.Add(1)%100]); err != nil {
				b.Fatal(err)
			}
		}
	})
}
