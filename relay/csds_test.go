package relay

import (
	"log/slog"
	"slices"
	"testing"
	"testing/fstest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// ownView returns the names of clusters that a client sees in the relay's own view by CSDS. The relay has a glob and a
// wildcard with one member each.
func ownView(t *testing.T, config string, id *identity.Identity) (names []string) {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, Options{Files: fstest.MapFS{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const glob, member = "xdstp://a/envoy.config.cluster.v3.Cluster/all/*", "xdstp://a/envoy.config.cluster.v3.Cluster/all/hidden"
	scope := cache.Scope{Authority: "a"}
	r.cache.WatchSet(cache.Key{Scope: scope, TypeURL: xdstype.ClusterV3, Name: glob}, &ignoringSet{})
	resource := cache.NewResource(cache.Spec{Name: member, Version: "1", TypeURL: xdstype.ClusterV3, Value: []byte("\x0a\x01x")})
	r.cache.Apply(cache.Update{Scope: scope, TypeURL: xdstype.ClusterV3, Sets: []cache.SetUpdate{{Name: glob, Extent: cache.Whole, Changes: []cache.Change{{Name: member, Resource: resource}}}}})
	for h := range (&clientView{r, r.now(), id, false}).Upstream() {
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
listeners: [{address: "127.0.0.1:0"}]
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

// A reload without `csds` ends it for connections that are open, too.
func TestCSDSOfAListenerEndsWithAReload(t *testing.T) {
	r := startReload(t)
	const withCSDS = `
listeners: [{address: "%[1]s", csds: true}]
authorities: [{name: a, servers: [{address: "%[2]s"}]}]
old_style_names: [{authority: a}]
`
	r.mustReload(withCSDS, r.listen, r.plane.address)
	conn := connectTo(t, r.listen)
	open := hold(t, conn, false, &corev3.Node{Id: "edge"})
	open.awaitHas(t, "with csds", map[string]string{"m1": "first", "m2": "first"})
	service := statusv3.NewClientStatusDiscoveryServiceClient(conn)
	if _, err := service.FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	stream, err := service.StreamClientStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&statusv3.ClientStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	r.mustReload(reloadConfig, r.listen, r.plane.address)
	if _, err := service.FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a call gets %v, want UNIMPLEMENTED", err)
	}
	if err := stream.Send(&statusv3.ClientStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("a request on an open stream gets %v, want UNIMPLEMENTED", err)
	}
	open.mustBeOpen(t, "without csds")
}

// ignoringSet watches a set, and ignores it.
type ignoringSet struct{ cache.SetWatch }

func (*ignoringSet) Changed() cache.Waker { return nil }
