package relay

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
)

// A list collection is not a leaf of its members' type.
func TestListCollectionIsNoLeafOfItsMembersType(t *testing.T) {
	cfg, err := configs.Parse("relay.yaml", []byte(`
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: a, directory: files}]
`))
	if err != nil {
		t.Fatal(err)
	}
	leaves := leafNames{newest: func() *generation { return &generation{router: authority.New(cfg)} }}
	const listenerType, name = "type.googleapis.com/envoy.config.listener.v3.Listener", "xdstp://a/envoy.config.listener.v3.ListenerCollection/x"
	if k, err := leaves.Key(listenerType, name); err == nil {
		t.Errorf("got %+v", k)
	}
	if _, err := leaves.Key(listenerType+"Collection", name); err != nil {
		t.Error(err)
	}
}

// TP1: "List collections": a client that requests listeners may name a collection of them. It gets the collection
// itself. There is no name inside that could be another.
func TestListCollectionIsServedUnderItsMembersType(t *testing.T) {
	const (
		listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
		name         = "xdstp://a/envoy.config.listener.v3.ListenerCollection/edge"
		spelled      = "xdstp://a/envoy.config.listener.v3.ListenerCollection/%65dge"
	)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(`
name: `+name+`
resource:
  "@type": `+listenerType+`Collection
  entries:
  - locator: {authority: a, resource_type: envoy.config.listener.v3.Listener, id: public}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := configs.Parse("relay.yaml", []byte(`
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: a, directory: `+dir+`}]
`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s := &servedRelay{relay: r}
	s.open(downstream.ListenerOptions{})
	defer s.close()
	conn, _ := s.dial(t)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)

	check := func(form string, a *anypb.Any) {
		t.Helper()
		var got listenerv3.ListenerCollection
		if err := a.UnmarshalTo(&got); err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		if len(got.GetEntries()) != 1 || got.GetEntries()[0].GetLocator().GetId() != "public" {
			t.Errorf("%s: got %v", form, &got)
		}
	}
	delta, err := ads.DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResourceNamesSubscribe: []string{spelled}}); err != nil {
		t.Fatal(err)
	}
	changes, err := delta.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := changes.GetResources(); changes.GetTypeUrl() != listenerType || len(got) != 1 || got[0].GetName() != spelled {
		t.Fatalf("delta: got %v", changes)
	}
	check("delta", changes.GetResources()[0].GetResource())

	sotw, err := ads.StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := sotw.Send(&discoveryv3.DiscoveryRequest{TypeUrl: listenerType, ResourceNames: []string{name}}); err != nil {
		t.Fatal(err)
	}
	state, err := sotw.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if state.GetTypeUrl() != listenerType || len(state.GetResources()) != 1 {
		t.Fatalf("sotw: got %v", state)
	}
	check("sotw", state.GetResources()[0])
}
