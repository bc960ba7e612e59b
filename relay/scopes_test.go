package relay

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/client"
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
func asNode(node *corev3.Node) partitionClient {
	return partitionClient{member: &partitionMember{id: node.GetId(), node: func() *corev3.Node { return node }}, hashes: hashesOf(node)}
}

func TestAPartitionHasTheNodeOfItsFirstClient(t *testing.T) {
	f, opened := newRecordedScopes()
	f.nodes.join(scopeA, asNode(&corev3.Node{Id: "first"}))
	f.nodes.join(scopeA, asNode(&corev3.Node{Id: "second"}))
	f.nodes.leave(scopeA, nil)
	k := cache.Key{Scope: scopeA, Name: "x"}
	f.Start(k)
	of := (*opened)[0]
	if id := of.node.GetId(); id != "first" {
		t.Errorf("the scope's node is %q, want the first client's", id)
	}
	f.nodes.leave(scopeA, nil)
	if id, _ := f.nodes.describe(scopeA); id != "first" {
		t.Errorf("the Node of lingering topics is %q, want that of the first client", id)
	}
	f.Stop(k)
	<-of.leaving
	of.gone <- struct{}{}
	<-of.closed
	f.Close()
	if len(f.nodes.of) != 0 {
		t.Errorf("%d nodes are kept although all clients and topics have gone", len(f.nodes.of))
	}
}

// Lingering topics keep the Node of the first client after it has left, so later clients are
// compared with it.
func TestClientsOfAPartitionAreComparedWithTheFirst(t *testing.T) {
	f, _ := newRecordedScopes()
	f.nodes.join(scopeA, asNode(&corev3.Node{Id: "a", Cluster: "edge"}))
	f.Start(cache.Key{Scope: scopeA, Name: "x"})
	f.nodes.leave(scopeA, nil)
	if differ, _ := f.nodes.join(scopeA, asNode(&corev3.Node{Id: "b", Cluster: "edge", UserAgentName: "envoy"})); differ != 0 {
		t.Errorf("Nodes with different ids differ in %q, want in nothing", differ.fields())
	}
	zone := &corev3.Node{Id: "c", Cluster: "edge", Locality: &corev3.Locality{Zone: "z"}}
	differ, first := f.nodes.join(scopeA, asNode(zone))
	if !slices.Equal(differ.fields(), []string{"locality"}) || first != "a" {
		t.Errorf("the difference is %q from %q, want locality from a", differ.fields(), first)
	}
	if differ, _ = f.nodes.join(scopeA, asNode(&corev3.Node{Cluster: "core"})); differ != 0 {
		t.Errorf("a rule gives two warnings: %q", differ.fields())
	}
	if _, differ = f.nodes.describe(scopeA); !slices.Equal(differ.fields(), []string{"cluster", "locality"}) {
		t.Errorf("the recorded differences are %q, want all", differ.fields())
	}
	f.Close()
}

// The Node of xds-relay get and watch is compared with no other, whether they are first or
// not.
func TestTheNodesOfGetAndWatchAreNotCompared(t *testing.T) {
	f, _ := newRecordedScopes()
	tool := asNode(&corev3.Node{Id: client.NodeID})
	tool.ownTool = true
	f.nodes.join(scopeA, tool)
	f.Start(cache.Key{Scope: scopeA, Name: "x"})
	for _, c := range []partitionClient{asNode(&corev3.Node{Id: "a", Cluster: "edge"}), tool, asNode(&corev3.Node{Id: "b", Cluster: "edge"})} {
		if differ, _ := f.nodes.join(scopeA, c); differ != 0 {
			t.Errorf("there is a warning that %s differ", differ.fields())
		}
	}
	if differ, _ := f.nodes.join(scopeA, asNode(&corev3.Node{Id: "c", Cluster: "core"})); !slices.Equal(differ.fields(), []string{"cluster"}) {
		t.Errorf("a client that differs in its cluster differs in %q", differ.fields())
	}
	f.Close()
}

func TestNodesAreComparedByContent(t *testing.T) {
	node := func(order ...string) *corev3.Node {
		n := &corev3.Node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}}}
		for _, key := range order {
			n.Metadata.Fields[key] = structpb.NewStringValue("of " + key)
		}
		return n
	}
	keys := strings.Split("a b c d e f g h i j k l m", " ")
	is := hashesOf(node(keys...))
	for range 20 {
		if hashesOf(node(keys...)) != is {
			t.Fatal("the same metadata has two hashes")
		}
	}
	if got := is.differ(hashesOf(node(keys[1:]...))).fields(); !slices.Equal(got, []string{"metadata"}) {
		t.Errorf("a key less is a difference in %q", got)
	}
	if is.differ(hashesOf(nil)) == 0 {
		t.Error("no Node is the same as one")
	}
}

// Each set of dynamic parameters has its own source. All of them use the Node of their
// partition, which is kept as long as one of them needs it.
func TestParametersHaveTheirPartitionsNode(t *testing.T) {
	f, opened := newRecordedScopes()
	f.nodes.join(scopeA, asNode(&corev3.Node{Id: "one"}))
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
	f.nodes.leave(scopeA, nil)
	end := func(fd *recordedScopeSource, k cache.Key) {
		f.Stop(k)
		<-fd.leaving
		fd.gone <- struct{}{}
		<-fd.closed
	}
	end((*opened)[1], plain)
	if id, _ := f.nodes.describe(k.Scope); id != "one" {
		t.Errorf("the node is %q while a source uses it, want one", id)
	}
	f.Refresh(k)
	end((*opened)[0], k)
	f.Close()
	if id, _ := f.nodes.describe(k.Scope); id != "" {
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
