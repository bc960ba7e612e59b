package identity

import (
	"math/rand/v2"
	"time"
)

// End is when streams of a client end, and why. The zero value is never.
type End struct {
	At      time.Time
	Because Reason
}

// mostEarly is how long before its certificate or token a stream ends, at most.
const mostEarly = time.Minute

// endsWith returns the end of a stream that may go on until expires, with what is valid for
// lifetime. It comes a little earlier, by up to a tenth of the lifetime, so that clients do not
// all come back at once. Who begins a stream as late as that has renewed nothing, and keeps the
// stream until the end.
func endsWith(expires time.Time, lifetime time.Duration, because Reason, now time.Time) End {
	early := min(lifetime/10, mostEarly)
	if early > 0 && now.Before(expires.Add(-early)) {
		expires = expires.Add(-rand.N(early))
	}
	return End{expires, because}
}

// earlier returns the end that comes first.
func (e End) earlier(other End) End {
	if e.At.IsZero() || !other.At.IsZero() && other.At.Before(e.At) {
		return other
	}
	return e
}

// EndWithCertificate has the client's streams end with its certificate, if it has one. It is for
// who makes the identity.
func (id *Identity) EndWithCertificate(now time.Time) {
	if !id.Expires.IsZero() {
		id.Ends = id.Ends.earlier(endsWith(id.Expires, id.lifetime, CertificateExpired, now))
	}
}

// Token is what a valid token says.
type Token struct {
	Subject string
	Claims  map[string]any
	Expires time.Time
	// Lifetime is how long the token is valid in all, 0 if it does not say.
	Lifetime time.Duration
}

// AddToken adds what a token proves. The client's streams end when the token has expired for as long
// as grace. It is for who makes the identity.
func (id *Identity) AddToken(t *Token, grace time.Duration, now time.Time) {
	id.Claims = t.Claims
	if id.Source != MTLS {
		id.Source, id.Subject = JWT, t.Subject
	}
	id.Ends = id.Ends.earlier(endsWith(t.Expires.Add(grace), t.Lifetime, TokenExpired, now))
}
