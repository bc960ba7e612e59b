package identity

import (
	"math/rand/v2"
	"time"
)

// End is when a client's streams end, and why. The zero value means never.
type End struct {
	At      time.Time
	Because Reason
}

// mostEarly is the longest time by which a stream ends before its certificate or token does.
const mostEarly = time.Minute

// endsWith returns the end of a stream whose certificate or token expires at expires and was valid for lifetime. The
// stream ends up to a tenth of the lifetime earlier, so that clients do not all return at the same time. A stream
// that begins within that time lasts until expires, because its client has not renewed the certificate or token yet.
func endsWith(expires time.Time, lifetime time.Duration, because Reason, now time.Time) End {
	early := min(lifetime/10, mostEarly)
	if early > 0 && now.Before(expires.Add(-early)) {
		expires = expires.Add(-rand.N(early))
	}
	return End{expires, because}
}

// earlier returns the earlier of two ends.
func (e End) earlier(other End) End {
	if e.At.IsZero() || !other.At.IsZero() && other.At.Before(e.At) {
		return other
	}
	return e
}

// EndWithCertificate makes the client's streams end with its certificate, if it has one. Only the creator of the
// identity may call it.
func (id *Identity) EndWithCertificate(now time.Time) {
	if !id.Expires.IsZero() {
		id.Ends = id.Ends.earlier(endsWith(id.Expires, id.lifetime, CertificateExpired, now))
	}
}

// Token is the content of a valid token.
type Token struct {
	Subject string
	Claims  map[string]any
	Expires time.Time
	// Lifetime is the token's total validity, 0 if it does not state one.
	Lifetime time.Duration
}

// AddToken adds the fields that a token proves. The client's streams end when grace has passed since the token's
// expiry. Only the creator of the identity may call it.
func (id *Identity) AddToken(t *Token, grace time.Duration, now time.Time) {
	id.Claims = t.Claims
	if id.Source != MTLS {
		id.Source, id.Subject = JWT, t.Subject
	}
	id.Ends = id.Ends.earlier(endsWith(t.Expires.Add(grace), t.Lifetime, TokenExpired, now))
}
