package configs

import (
	"testing"

	"github.com/xds-relay/xds-relay/identity"
)

func TestAdmitIsDecidedByIdentity(t *testing.T) {
	uid := uint32(0)
	pay := &identity.Identity{Source: identity.MTLS, SPIFFEID: "spiffe://example.org/pay", TrustDomain: "example.org", SPIFFEPath: "/pay"}
	root := &identity.Identity{Source: identity.Unix, UID: &uid}
	for _, tt := range []struct {
		admit string
		id    *identity.Identity
		want  bool
		err   string
	}{
		{"", identity.Anonymous(nil), true, ""},
		{"true", identity.Anonymous(nil), true, ""},
		{`identity.trust_domain == "example.org"`, pay, true, ""},
		{`identity.trust_domain == "example.com"`, pay, false, ""},
		{`identity.trust_domain == "example.org"`, root, false, `the client has no trust_domain (its identity's source is "unix")`},
		{`has(identity.trust_domain) && identity.trust_domain == "example.org"`, root, false, ""},
		{`identity.uid == 0`, root, true, ""},
		{`identity.uid == 0`, identity.Anonymous(nil), false, `the client has no uid (its identity's source is "none")`},
		{`identity.claims.admin`, &identity.Identity{Claims: map[string]any{"admin": "yes"}}, false, "gives string (want bool)"},
		{`identity.claims.admin`, &identity.Identity{Claims: map[string]any{"admin": true}}, true, ""},
	} {
		l := &Listener{Admit: tt.admit}
		if err := l.compileAdmit(); err != nil {
			t.Fatalf("%s: %v", tt.admit, err)
		}
		got, err := l.Admits(tt.id)
		if text := errorText(err); got != tt.want || text != tt.err {
			t.Errorf("%s for %s: got %t, %q, want %t, %q", tt.admit, tt.id, got, text, tt.want, tt.err)
		}
	}
}

// What a client proves may be as large as a token.
func TestAnEvaluationOfAdmitIsBounded(t *testing.T) {
	var groups []any
	for range 10_000 {
		groups = append(groups, "group")
	}
	l := &Listener{Admit: `identity.claims.groups.all(a, identity.claims.groups.all(b, a == b))`}
	if err := l.compileAdmit(); err != nil {
		t.Fatal(err)
	}
	if ok, err := l.Admits(&identity.Identity{Claims: map[string]any{"groups": groups}}); ok || errorText(err) != "operation cancelled: actual cost limit exceeded" {
		t.Errorf("got %t, %v", ok, err)
	}
}
