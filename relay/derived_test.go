package relay

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// recordedSource remembers its calls.
type recordedSource struct{ calls []string }

// Start implements cache.Source.
func (f *recordedSource) Start(k cache.Key) { f.calls = append(f.calls, "start "+k.Name) }

// Refresh implements cache.Source.
func (f *recordedSource) Refresh(k cache.Key) { f.calls = append(f.calls, "refresh "+k.Name) }

// Stop implements cache.Source.
func (f *recordedSource) Stop(k cache.Key) { f.calls = append(f.calls, "stop "+k.Name) }

func TestDerivedTopicsAreNotFedByScopes(t *testing.T) {
	f, opened := newRecordedScopes()
	derived := &recordedSource{}
	f.derived = derived
	k := cache.Key{Scope: cache.Scope{Authority: "not configured", Derived: cache.Resolved}, Name: "x"}
	f.Start(k)
	f.Refresh(k)
	f.Stop(k)
	f.Close()
	if want := []string{"start x", "refresh x", "stop x"}; !slices.Equal(derived.calls, want) {
		t.Errorf("the source of derived topics got %v, want %v", derived.calls, want)
	}
	if len(*opened) != 0 {
		t.Errorf("%d sources were opened for a derived topic", len(*opened))
	}
}

// A derived topic of an old-style name may outlive the clients whose Node its scope uses, and request its leaf topic
// after they have left.
func TestTheNodeStaysAsLongAsADerivedTopic(t *testing.T) {
	f, opened := newRecordedScopes()
	f.derived = &recordedSource{}
	f.nodes.Join(scopeA, asNode(&corev3.Node{Id: "first"}))
	k := cache.Key{Scope: scopeA, Name: "x"}
	k.Scope.Derived = cache.Resolved
	k.Scope.Params = cache.Params{"env": "prod"}.String()
	f.Start(k)
	f.nodes.Leave(scopeA, nil)
	f.Start(cache.Key{Scope: scopeA, Name: "x"})
	if id := (*opened)[0].node.GetId(); id != "first" {
		t.Errorf("the leaf topic's node is %q, want that of the client", id)
	}
	f.Stop(k)
	f.Stop(cache.Key{Scope: scopeA, Name: "x"})
	<-(*opened)[0].leaving
	(*opened)[0].gone <- struct{}{}
	<-(*opened)[0].closed
	if node := f.nodes.Find(scopeA); node != nil {
		t.Errorf("the Node %v is kept although clients and derived topics have gone", node)
	}
	f.Close()
}
