package operator

import (
	"slices"
	"testing"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// ownView returns the names of clusters that a client sees in the relay's own view by CSDS. The relay has a glob and a
// wildcard with one member each.
func ownView(t *testing.T, config string, id *identity.Identity) (names []string) {
	t.Helper()
	r := newIdleObserver(t, config)
	const glob, member = "xdstp://a/envoy.config.cluster.v3.Cluster/all/*", "xdstp://a/envoy.config.cluster.v3.Cluster/all/hidden"
	scope := cache.Scope{Authority: "a"}
	r.Cache.WatchSet(cache.Key{Scope: scope, TypeURL: xdstype.ClusterV3, Name: glob}, &ignoringSet{})
	resource := cache.NewResource(cache.Spec{Name: member, Version: "1", TypeURL: xdstype.ClusterV3, Value: []byte("\x0a\x01x")})
	r.Cache.Apply(cache.Update{Scope: scope, TypeURL: xdstype.ClusterV3, Sets: []cache.SetUpdate{{Name: glob, Extent: cache.Whole, Changes: []cache.Change{{Name: member, Resource: resource}}}}})
	for h := range (&clientView{r, r.now(), id, false, nil}).Upstream() {
		if h.Resource != nil {
			names = append(names, h.Name)
		}
	}
	return names
}

// A view gives a client a part of a collection that it requests. In the relay's own view the client does not see the
// rest, either.
func TestTheOwnViewOfCSDSDoesNotShowWhatAViewHides(t *testing.T) {
	const config = `
authorities: [{name: a, directory: d}]
old_style_names: [{authority: a}]
views:
  - match: {glob: "xdstp://a/envoy.config.cluster.v3.Cluster/all/*"}
    collections: ["xdstp://a/envoy.config.cluster.v3.Cluster/public/*"]
`
	client := &identity.Identity{Source: identity.MTLS, Subject: "edge"}
	if names := ownView(t, config, client); !slices.Equal(names, []string{"xdstp://a/envoy.config.cluster.v3.Cluster/all/hidden"}) {
		t.Errorf("without rules, by which everybody may have everything, the client sees %q", names)
	}
	if names := ownView(t, config+"rights: [{when: name.endsWith(\"/all/*\"), allow: true}]\n", client); len(names) > 0 {
		t.Errorf("the client may have the view only, and sees %q", names)
	}
}

// Two issuers may each have a client of the same subject.
func TestClientsOfTwoIssuersAreNotTheSame(t *testing.T) {
	token := func(issuer, team string) *identity.Identity {
		return &identity.Identity{Source: identity.JWT, Subject: "admin", Claims: map[string]any{"iss": issuer, "team": team}}
	}
	for _, tt := range []struct {
		is   bool
		a, b *identity.Identity
	}{
		{true, token("https://one", "x"), token("https://one", "x")},
		{false, token("https://one", "x"), token("https://two", "x")},
		{true, nil, identity.Anonymous(nil)},
		{false, nil, token("https://one", "x")},
		{false, &identity.Identity{Source: identity.MTLS, Subject: "admin"}, token("https://one", "x")},
		{true, &identity.Identity{Source: identity.MTLS, SPIFFEID: "spiffe://o/a", Subject: "1"}, &identity.Identity{Source: identity.MTLS, SPIFFEID: "spiffe://o/a", Subject: "2"}},
	} {
		if is := sameIdentity(tt.a, tt.b); is != tt.is {
			t.Errorf("%v and %v are the same: %t, want %t", tt.a, tt.b, is, tt.is)
		}
	}
}
