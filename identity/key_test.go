package identity

import "testing"

func TestKeysDistinguishIdentities(t *testing.T) {
	uid := func(n uint32) *uint32 { return &n }
	for _, tt := range []struct {
		id   *Identity
		want string
	}{
		{&Identity{}, ""},
		{Anonymous(nil), ""},
		{&Identity{Source: MTLS, SPIFFEID: "spiffe://example.org/a", Subject: "CN=a"}, "spiffe://example.org/a"},
		{&Identity{Source: MTLS, Subject: "CN=a", DNSNames: []string{"a.example.org", "b.example.org"}}, `mtls:"CN=a" ["a.example.org" "b.example.org"]`},
		{&Identity{Source: MTLS, Subject: "CN=a", DNSNames: []string{"a.example.org,b.example.org"}}, `mtls:"CN=a" ["a.example.org,b.example.org"]`},
		{&Identity{Source: JWT, Subject: "CN=a", Claims: map[string]any{"iss": "https://issuer"}}, `jwt:"CN=a" "https://issuer"`},
		{&Identity{Source: JWT, SPIFFEID: "spiffe://example.org/a", Subject: "b", Claims: map[string]any{"iss": "i"}}, `jwt:"b" "i"`},
		{&Identity{Source: Unix, UID: uid(0)}, "unix:0"},
		{&Identity{Source: Unix, UID: uid(7)}, "unix:7"},
	} {
		if got := tt.id.Key(); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.id, got, tt.want)
		}
	}
}
