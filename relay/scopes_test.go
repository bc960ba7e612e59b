package relay

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/internal/partition"
)

// recordedScopeSource is a source that records its end.
type recordedScopeSource struct {
	node    *corev3.Node
	leaving chan struct{} // Drain has been called
	gone    chan struct{} // Drain may return
	closed  chan struct{}

	adopted atomic.Int64

	mu     sync.Mutex
	topics int
}

// Start implements cache.Source.
func (f *recordedScopeSource) Start(cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics++
}

// Refresh implements cache.Source.
func (f *recordedScopeSource) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (f *recordedScopeSource) Stop(cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics--
}

// Resume implements cache.Resumer.
func (*recordedScopeSource) Resume(cache.Key) {}

// Adopt implements cache.Adopter.
func (f *recordedScopeSource) Adopt(cache.Key) { f.adopted.Add(1) }

// Answered implements source.
func (*recordedScopeSource) Answered() <-chan struct{} { return nil }

// Mute implements source.
func (*recordedScopeSource) Mute() {}

// Drain implements source.
func (f *recordedScopeSource) Drain() {
	f.leaving <- struct{}{}
	<-f.gone
}

// Close implements source.
func (f *recordedScopeSource) Close() { close(f.closed) }

func newRecordedScopes() (*scopes, *[]*recordedScopeSource) {
	var opened []*recordedScopeSource
	f := newScopes()
	f.open = func(_ cache.Scope, node *corev3.Node) (source, string) {
		of := &recordedScopeSource{node: node, leaving: make(chan struct{}), gone: make(chan struct{}), closed: make(chan struct{})}
		opened = append(opened, of)
		return of, ""
	}
	return f, &opened
}

var (
	scopeA = cache.Scope{Authority: "a", Partition: "p", OldStyle: true}
	scopeB = cache.Scope{Authority: "b"}
)

func TestAScopeHasOneSourceHoweverManyTopics(t *testing.T) {
	f, opened := newRecordedScopes()
	f.Start(cache.Key{Scope: scopeA, Name: "x"})
	f.Start(cache.Key{Scope: scopeA, Name: "y"})
	f.Start(cache.Key{Scope: scopeB, Name: "x"})
	if len(*opened) != 2 || (*opened)[0].topics != 2 || (*opened)[1].topics != 1 {
		t.Fatalf("%d sources were opened, want one for each of the two scopes", len(*opened))
	}
	f.Close()
	for _, of := range *opened {
		<-of.closed
	}
}

// Before the source is closed, the control plane must learn that the relay needs nothing any more. If a client
// requests something before that, the same source continues.
func TestASourceTakesLeaveBeforeItIsClosed(t *testing.T) {
	f, opened := newRecordedScopes()
	k := cache.Key{Scope: scopeA, Name: "x"}
	f.Start(k)
	f.Stop(k)
	of := (*opened)[0]
	<-of.leaving
	f.Start(k)
	if len(*opened) != 1 {
		t.Fatal("a second source was opened for the scope while the first took leave")
	}
	of.gone <- struct{}{}
	f.Stop(k)
	<-of.leaving
	select {
	case <-of.closed:
		t.Fatal("closed although a topic was wanted again, or before it had taken leave")
	default:
	}
	of.gone <- struct{}{}
	<-of.closed
	f.Start(k)
	if len(*opened) != 2 {
		t.Fatal("the topic was started on a closed source")
	}
	f.Close()
}

// asNode is a client that has this Node and sends all of it.
func asNode(node *corev3.Node) partition.Client {
	return partition.Client{Member: &partition.Member{ID: node.GetId(), Node: func() *corev3.Node { return node }}, Hashes: partition.HashesOf(node)}
}

func TestAPartitionHasTheNodeOfItsFirstClient(t *testing.T) {
	f, opened := newRecordedScopes()
	f.nodes.Join(scopeA, asNode(&corev3.Node{Id: "first"}))
	f.nodes.Join(scopeA, asNode(&corev3.Node{Id: "second"}))
	f.nodes.Leave(scopeA, nil)
	k := cache.Key{Scope: scopeA, Name: "x"}
	f.Start(k)
	of := (*opened)[0]
	if id := of.node.GetId(); id != "first" {
		t.Errorf("the scope's node is %q, want the first client's", id)
	}
	f.nodes.Leave(scopeA, nil)
	if id, _ := f.nodes.Describe(scopeA); id != "first" {
		t.Errorf("the Node of lingering topics is %q, want that of the first client", id)
	}
	f.Stop(k)
	<-of.leaving
	of.gone <- struct{}{}
	<-of.closed
	f.Close()
	if node := f.nodes.Find(scopeA); node != nil {
		t.Errorf("the Node %v is kept although all clients and topics have gone", node)
	}
}

// Lingering topics keep the Node of the first client after it has left, so later clients are
// compared with it.
func TestClientsOfAPartitionAreComparedWithTheFirst(t *testing.T) {
	f, _ := newRecordedScopes()
	f.nodes.Join(scopeA, asNode(&corev3.Node{Id: "a", Cluster: "edge"}))
	f.Start(cache.Key{Scope: scopeA, Name: "x"})
	f.nodes.Leave(scopeA, nil)
	if differ, _ := f.nodes.Join(scopeA, asNode(&corev3.Node{Id: "b", Cluster: "edge", UserAgentName: "envoy"})); differ != 0 {
		t.Errorf("Nodes with different ids differ in %q, want in nothing", differ.Names())
	}
	zone := &corev3.Node{Id: "c", Cluster: "edge", Locality: &corev3.Locality{Zone: "z"}}
	differ, first := f.nodes.Join(scopeA, asNode(zone))
	if !slices.Equal(differ.Names(), []string{"locality"}) || first != "a" {
		t.Errorf("the difference is %q from %q, want locality from a", differ.Names(), first)
	}
	if differ, _ = f.nodes.Join(scopeA, asNode(&corev3.Node{Cluster: "core"})); differ != 0 {
		t.Errorf("a rule gives two warnings: %q", differ.Names())
	}
	if _, differ = f.nodes.Describe(scopeA); !slices.Equal(differ.Names(), []string{"cluster", "locality"}) {
		t.Errorf("the recorded differences are %q, want all", differ.Names())
	}
	f.Close()
}

// The Node of xds-relay get and watch is compared with no other, whether they are first or
// not.
func TestTheNodesOfGetAndWatchAreNotCompared(t *testing.T) {
	f, _ := newRecordedScopes()
	tool := asNode(&corev3.Node{Id: client.NodeID})
	tool.OwnTool = true
	f.nodes.Join(scopeA, tool)
	f.Start(cache.Key{Scope: scopeA, Name: "x"})
	for _, c := range []partition.Client{asNode(&corev3.Node{Id: "a", Cluster: "edge"}), tool, asNode(&corev3.Node{Id: "b", Cluster: "edge"})} {
		if differ, _ := f.nodes.Join(scopeA, c); differ != 0 {
			t.Errorf("there is a warning that %s differ", differ.Names())
		}
	}
	if differ, _ := f.nodes.Join(scopeA, asNode(&corev3.Node{Id: "c", Cluster: "core"})); !slices.Equal(differ.Names(), []string{"cluster"}) {
		t.Errorf("a client that differs in its cluster differs in %q", differ.Names())
	}
	f.Close()
}

// Each set of dynamic parameters has its own source. All of them use the Node of their
// partition, which is kept as long as one of them needs it.
func TestParametersHaveTheirPartitionsNode(t *testing.T) {
	f, opened := newRecordedScopes()
	f.nodes.Join(scopeA, asNode(&corev3.Node{Id: "one"}))
	k := cache.Key{Scope: scopeA, TypeURL: "t", Name: "n"}
	k.Scope.Params = cache.Params{"env": "prod"}.String()
	plain := cache.Key{Scope: scopeA, TypeURL: "t", Name: "n"}
	f.Start(k)
	f.Start(plain)
	if len(*opened) != 2 {
		t.Fatalf("%d sources were opened, want two", len(*opened))
	}
	for _, fd := range *opened {
		if got := fd.node.GetId(); got != "one" || fd.topics != 1 {
			t.Errorf("a source has node %q and %d topics, want one and 1", got, fd.topics)
		}
	}
	f.nodes.Leave(scopeA, nil)
	end := func(fd *recordedScopeSource, k cache.Key) {
		f.Stop(k)
		<-fd.leaving
		fd.gone <- struct{}{}
		<-fd.closed
	}
	end((*opened)[1], plain)
	if id, _ := f.nodes.Describe(k.Scope); id != "one" {
		t.Errorf("the node is %q while a source uses it, want one", id)
	}
	f.Refresh(k)
	end((*opened)[0], k)
	f.Close()
	if id, _ := f.nodes.Describe(k.Scope); id != "" {
		t.Errorf("node %q is kept and nobody uses it", id)
	}
}

// The source of a scope learns of the first client of a topic that was only prefetched.
func TestASourceLearnsThatAClientHasCome(t *testing.T) {
	f, opened := newRecordedScopes()
	k := cache.Key{Scope: scopeA, Name: "x"}
	f.Start(k)
	f.Adopt(k)
	if n := (*opened)[0].adopted.Load(); n != 1 {
		t.Errorf("adopted %d times, want once", n)
	}
	f.Close()
}
