package identity_test

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

func TestStreamsEndALittleBeforeTheCertificate(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	now := time.Now()
	for _, tt := range []struct {
		name           string
		lifetime, left time.Duration
		early          time.Duration // at most
	}{
		{"of an hour", time.Hour, 30 * time.Minute, time.Minute},
		{"of five minutes", 5 * time.Minute, 4 * time.Minute, 30 * time.Second},
		{"at its end", time.Hour, 59 * time.Second, 0},
		{"of five minutes, at its end", 5 * time.Minute, 29 * time.Second, 0},
	} {
		leaf := ca.Issue(t, certtest.Options{Change: func(c *x509.Certificate) {
			c.NotAfter = now.Add(tt.left)
		}}).TLS.Leaf
		leaf.NotBefore = leaf.NotAfter.Add(-tt.lifetime)
		seen := map[time.Time]bool{}
		for range 100 {
			id := verified([]*x509.Certificate{leaf}).Connection()
			if id.Ends != (identity.End{}) {
				t.Fatalf("%s: the stream ends before EndWithCertificate", tt.name)
			}
			id.EndWithCertificate(now)
			if before := leaf.NotAfter.Sub(id.Ends.At); before < 0 || before > tt.early || id.Ends.Because != identity.CertificateExpired {
				t.Errorf("%s: it ends %v before, want up to %v", tt.name, before, tt.early)
			}
			seen[id.Ends.At] = true
		}
		if jittered := len(seen) > 50; jittered != (tt.early > 0) {
			t.Errorf("%s: streams end at %d moments", tt.name, len(seen))
		}
	}
}

func TestStreamsEndWithWhateverExpiresFirst(t *testing.T) {
	now := time.Now()
	leaf := certtest.NewCA(t, "ca").Issue(t, certtest.Options{NotAfter: now.Add(time.Hour)}).TLS.Leaf
	for _, tt := range []struct {
		token, grace time.Duration
		want         identity.Reason
		ends         time.Duration
	}{
		{10 * time.Minute, 0, identity.TokenExpired, 10 * time.Minute},
		{10 * time.Minute, 20 * time.Minute, identity.TokenExpired, 30 * time.Minute},
		{10 * time.Minute, time.Hour, identity.CertificateExpired, time.Hour},
	} {
		id := verified([]*x509.Certificate{leaf}).Connection()
		id.EndWithCertificate(now)
		id.AddToken(&identity.Token{Subject: "x", Expires: now.Add(tt.token), Lifetime: time.Hour}, tt.grace, now)
		if left := id.Ends.At.Sub(now); id.Ends.Because != tt.want || left > tt.ends || left < tt.ends-time.Minute-time.Second {
			t.Errorf("a token of %v, grace %v: it ends in %v for %s", tt.token, tt.grace, left, id.Ends.Because)
		}
	}
	id := verified([]*x509.Certificate{leaf}).Connection()
	id.AddToken(&identity.Token{Expires: now.Add(time.Minute)}, 0, now)
	if id.Ends.Because != identity.TokenExpired || !id.Ends.At.Equal(now.Add(time.Minute)) {
		t.Errorf("without end_streams_at_expiry: got %+v", id.Ends)
	}
}
