// Package tokens verifies bearer tokens that are JSON Web Tokens: RFC 7519, RFC 6750.
package tokens

import (
	"crypto/sha256"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/xds-relay/xds-relay/identity"
)

// Source has the keys of an issuer.
type Source interface {
	// Keys returns the newest keys, nil if there are none yet.
	Keys() *Keys
	// Renew returns keys that may be newer than old. It may wait for a short time.
	Renew(old *Keys) *Keys
}

// Fixed is a source whose keys are updated without requests, such as those from a file.
type Fixed func() *Keys

// Keys implements Source.
func (f Fixed) Keys() *Keys { return f() }

// Renew implements Source.
func (f Fixed) Renew(*Keys) *Keys { return f() }

// Options say which tokens are valid.
type Options struct {
	Issuer    string   // the issuer of all tokens
	Audiences []string // a token must have one of these
	Source    Source
}

// Verifier verifies the tokens of one issuer. Its methods may be called concurrently.
type Verifier struct {
	options Options
	// verified has the valid tokens. It belongs to the keys that verified them: tokens of a withdrawn key are not
	// accepted any longer.
	verified atomic.Pointer[verified]
	count    atomic.Uint64 // the number of verifications
}

type verified struct {
	keys   *Keys
	tokens *lru.Cache[[sha256.Size]byte, *identity.Token]
}

const (
	// Leeway is the accepted difference between the clocks of the issuer and the relay.
	Leeway = 30 * time.Second
	// maxToken is the largest length of a token in bytes. A token with a long list of groups has a few KiB.
	maxToken = 16 << 10
	// cachedTokens is how many verified tokens are remembered. maxCached is the longest time for which one is
	// remembered.
	cachedTokens = 1 << 14
	maxCached    = 4 << 10
)

// The algorithms are asymmetric ones: a party that can verify a token must not be able to create one.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// These are the errors of Verify. None contains any part of the token.
var (
	ErrNoKeys    = errors.New("the issuer's keys are not known yet")
	ErrTooLong   = errors.New("the token is too long")
	ErrMalformed = errors.New("the token is not a JSON Web Token signed with an asymmetric key")
	ErrKey       = errors.New("the token is signed with a key that the issuer has not published")
	ErrSignature = errors.New("the token's signature is wrong")
	ErrClaims    = errors.New("the token's claims do not conform to RFC 7519")
	ErrIssuer    = errors.New("the token is of another issuer")
	ErrAudience  = errors.New("the token is for another audience")
	ErrExpired   = errors.New("the token has expired")
	ErrNoExpiry  = errors.New("the token has no expiry time (want exp)")
	ErrTooEarly  = errors.New("the token is not valid yet")
)

// New returns a Verifier.
func New(o Options) *Verifier { return &Verifier{options: o} }

// Verify returns the content of a token, if the token is valid.
func (v *Verifier) Verify(token string) (*identity.Token, error) {
	if len(token) > maxToken {
		return nil, ErrTooLong
	}
	keys := v.options.Source.Keys()
	if keys == nil {
		if keys = v.options.Source.Renew(nil); keys == nil {
			return nil, ErrNoKeys
		}
	}
	t, err := v.verifyOnce(keys, token)
	if errors.Is(err, ErrKey) {
		if newer := v.options.Source.Renew(keys); newer != keys {
			t, err = v.verifyOnce(newer, token)
		}
	}
	if err != nil {
		return nil, err
	}
	if time.Now().After(t.Expires) {
		return nil, ErrExpired
	}
	return t, nil
}

// verifyOnce is verify with the remembered results.
func (v *Verifier) verifyOnce(keys *Keys, token string) (*identity.Token, error) {
	if len(token) > maxCached {
		return v.verify(keys, token)
	}
	with := v.verifiedWith(keys)
	sum := sha256.Sum256([]byte(token))
	if t, ok := with.tokens.Get(sum); ok {
		return t, nil
	}
	t, err := v.verify(keys, token)
	if err == nil {
		with.tokens.Add(sum, t)
	}
	return t, err
}

// verifiedWith returns the remembered tokens of these keys.
func (v *Verifier) verifiedWith(keys *Keys) *verified {
	before := v.verified.Load()
	if before != nil && before.keys == keys {
		return before
	}
	tokens, err := lru.New[[sha256.Size]byte, *identity.Token](cachedTokens)
	if err != nil {
		panic(err) // the size is positive
	}
	now := &verified{keys, tokens}
	v.verified.Store(now) // tokens that other goroutines add at this moment are verified again
	return now
}

func (v *Verifier) verify(keys *Keys, token string) (*identity.Token, error) {
	v.count.Add(1)
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, ErrMalformed
	}
	candidates, unknown := keys.candidates(&parsed.Headers[0])
	if unknown {
		return nil, ErrKey
	}
	for _, key := range candidates {
		var claims jwt.Claims
		var all map[string]any
		err := parsed.Claims(key.Key, &claims, &all)
		switch {
		case err == nil:
			return v.check(&claims, all)
		case errors.Is(err, jose.ErrUnsupportedCriticalHeader):
			return nil, ErrMalformed
		case !errors.Is(err, jose.ErrCryptoFailure):
			return nil, ErrClaims
		}
	}
	return nil, ErrSignature
}

// check checks the claims of a token with a valid signature.
func (v *Verifier) check(claims *jwt.Claims, all map[string]any) (*identity.Token, error) {
	if claims.Expiry == nil {
		return nil, ErrNoExpiry
	}
	err := claims.ValidateWithLeeway(jwt.Expected{Issuer: v.options.Issuer, AnyAudience: v.options.Audiences, Time: time.Now()}, Leeway)
	switch {
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return nil, ErrIssuer
	case errors.Is(err, jwt.ErrInvalidAudience):
		return nil, ErrAudience
	case errors.Is(err, jwt.ErrExpired):
		return nil, ErrExpired
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return nil, ErrTooEarly
	case err != nil:
		return nil, ErrClaims
	}
	t := &identity.Token{Subject: claims.Subject, Claims: all, Expires: claims.Expiry.Time().Add(Leeway)}
	if claims.IssuedAt != nil {
		t.Lifetime = t.Expires.Sub(claims.IssuedAt.Time())
	}
	return t, nil
}
