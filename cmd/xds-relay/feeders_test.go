package main

import (
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// recordedFeed is a feed that says what becomes of it.
type recordedFeed struct {
	node    *corev3.Node
	leaving chan struct{} // Leave has been called
	gone    chan struct{} // Leave may return
	closed  chan struct{}

	mu     sync.Mutex
	topics int
}

// Start implements cache.Feeder.
func (f *recordedFeed) Start(cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics++
}

// Refresh implements cache.Feeder.
func (f *recordedFeed) Refresh(cache.Key) {}

// Stop implements cache.Feeder.
func (f *recordedFeed) Stop(cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics--
}

// Leave implements feed.
func (f *recordedFeed) Leave() {
	f.leaving <- struct{}{}
	<-f.gone
}

// Close implements feed.
func (f *recordedFeed) Close() { close(f.closed) }

func newRecordedFeeders() (*feeders, *[]*recordedFeed) {
	var opened []*recordedFeed
	f := newFeeders()
	f.open = func(_ cache.Scope, node *corev3.Node) feed {
		fd := &recordedFeed{node: node, leaving: make(chan struct{}), gone: make(chan struct{}), closed: make(chan struct{})}
		opened = append(opened, fd)
		return fd
	}
	return f, &opened
}

var (
	scopeA = cache.Scope{Authority: "a", Partition: "p", OldStyle: true}
	scopeB = cache.Scope{Authority: "b"}
)

func TestAScopeHasOneFeedHoweverManyTopics(t *testing.T) {
	f, opened := newRecordedFeeders()
	f.Start(cache.Key{Scope: scopeA, Name: "x"})
	f.Start(cache.Key{Scope: scopeA, Name: "y"})
	f.Start(cache.Key{Scope: scopeB, Name: "x"})
	if len(*opened) != 2 || (*opened)[0].topics != 2 || (*opened)[1].topics != 1 {
		t.Fatalf("%d feeds were opened, want one for each of the two scopes", len(*opened))
	}
	f.Close()
	for _, fd := range *opened {
		<-fd.closed
	}
}

// The control plane is to hear that nothing is wanted any more before the feed is
// closed; and what is wanted again by then goes on with the same feed.
func TestAFeedTakesLeaveBeforeItIsClosed(t *testing.T) {
	f, opened := newRecordedFeeders()
	k := cache.Key{Scope: scopeA, Name: "x"}
	f.Start(k)
	f.Stop(k)
	fd := (*opened)[0]
	<-fd.leaving
	f.Start(k)
	if len(*opened) != 1 {
		t.Fatal("a second feed was opened for the scope while the first took leave")
	}
	fd.gone <- struct{}{}
	f.Stop(k)
	<-fd.leaving
	select {
	case <-fd.closed:
		t.Fatal("closed although a topic was wanted again, or before it had taken leave")
	default:
	}
	fd.gone <- struct{}{}
	<-fd.closed
	f.Start(k)
	if len(*opened) != 2 {
		t.Fatal("the topic was started on a closed feed")
	}
	f.Close()
}

func TestTheFirstClientsNodeStandsForAScope(t *testing.T) {
	f, opened := newRecordedFeeders()
	f.join(scopeA, &corev3.Node{Id: "first"})
	f.join(scopeA, &corev3.Node{Id: "second"})
	f.leave(scopeA)
	f.Start(cache.Key{Scope: scopeA, Name: "x"})
	if id := (*opened)[0].node.GetId(); id != "first" {
		t.Errorf("the scope's node is %q, want the first client's", id)
	}
	f.leave(scopeA)
	if len(f.nodes) != 0 {
		t.Errorf("%d nodes are kept although all clients have gone", len(f.nodes))
	}
	f.Close()
}

// Who asks with dynamic parameters is of the same partition: its Node stands for it
// upstream, on the same stream.
func TestParametersHaveTheirPartitionsFeed(t *testing.T) {
	f, opened := newRecordedFeeders()
	f.join(scopeA, &corev3.Node{Id: "one"})
	k := cache.Key{Scope: scopeA, TypeURL: "t", Name: "n"}
	k.Scope.Params = cache.Params{"env": "prod"}.String()
	plain := cache.Key{Scope: scopeA, TypeURL: "t", Name: "n"}
	f.Start(k)
	f.Start(plain)
	if len(*opened) != 1 || (*opened)[0].topics != 2 {
		t.Fatalf("%d feeds were opened, want one for both", len(*opened))
	}
	fd := (*opened)[0]
	if got := fd.node.GetId(); got != "one" {
		t.Errorf("the feed stands for node %q, want one", got)
	}
	f.Stop(plain)
	f.Refresh(k)
	f.Stop(k)
	<-fd.leaving
	fd.gone <- struct{}{}
	<-fd.closed
	f.Close()
}
