package main

import (
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// feed feeds the topics of one scope, as a cache.Feeder does all.
type feed interface {
	cache.Feeder
	// Leave waits, for a bounded time, until whoever gives the resources knows
	// that nothing is wanted any more.
	Leave()
	// Close ends the feeding, and waits for that.
	Close()
}

// feeders is the cache's feeder: it hands each topic to its scope's feed, which
// it makes for the first topic and closes after the last. So there is one stream
// upstream for each scope, however many clients and topics, and with whatever
// dynamic parameters they ask: those are no part of the scope that a feed is for.
type feeders struct {
	// open makes a scope's feed. It must not block.
	open func(scope cache.Scope, node *corev3.Node) feed
	// derived feeds the topics that are made of others.
	derived cache.Feeder

	mu    sync.Mutex
	feeds map[cache.Scope]*scopeFeed
	nodes map[cache.Scope]*scopeNode
	// closing counts the feeds that are being closed.
	closing sync.WaitGroup
}

type scopeFeed struct {
	feed
	topics int
	idle   int // how often the last topic has gone
}

// scopeNode is the Node that stands for a scope's clients upstream: the first
// one's.
type scopeNode struct {
	node    *corev3.Node
	clients int
}

// newFeeders makes feeders without open and derived, which are to be set before the
// first topic is watched.
func newFeeders() *feeders {
	return &feeders{feeds: map[cache.Scope]*scopeFeed{}, nodes: map[cache.Scope]*scopeNode{}}
}

// fedBy returns the scope whose feed feeds a scope, and which clients join that use it:
// that without parameters.
func fedBy(scope cache.Scope) cache.Scope {
	scope.Params = ""
	return scope
}

// join notes that a client with that Node uses the scope, until it leaves.
func (f *feeders) join(scope cache.Scope, node *corev3.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.joinLocked(scope, node)
}

func (f *feeders) joinLocked(scope cache.Scope, node *corev3.Node) {
	n := f.nodes[scope]
	if n == nil {
		n = &scopeNode{node: node}
		f.nodes[scope] = n
	}
	n.clients++
}

// leave undoes a join.
func (f *feeders) leave(scope cache.Scope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaveLocked(scope)
}

func (f *feeders) leaveLocked(scope cache.Scope) {
	n := f.nodes[scope]
	if n.clients--; n.clients == 0 {
		delete(f.nodes, scope)
	}
}

// Start implements cache.Feeder.
func (f *feeders) Start(k cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.Scope.Derived != "" {
		f.startDerived(k)
		return
	}
	scope := fedBy(k.Scope)
	fd := f.feeds[scope]
	if fd == nil {
		var node *corev3.Node
		if n := f.nodes[scope]; n != nil {
			node = n.node
		}
		fd = &scopeFeed{feed: f.open(scope, node)}
		f.feeds[scope] = fd
	}
	fd.topics++
	fd.feed.Start(k)
}

// Refresh implements cache.Feeder.
func (f *feeders) Refresh(k cache.Key) {
	if k.Scope.Derived != "" {
		f.derived.Refresh(k)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if fd := f.feeds[fedBy(k.Scope)]; fd != nil {
		fd.feed.Refresh(k)
	}
}

// Stop implements cache.Feeder.
func (f *feeders) Stop(k cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.Scope.Derived != "" {
		f.stopDerived(k)
		return
	}
	scope := fedBy(k.Scope)
	fd := f.feeds[scope]
	if fd == nil {
		return // closed
	}
	fd.feed.Stop(k)
	if fd.topics--; fd.topics == 0 {
		fd.idle++
		idle := fd.idle
		// This waits for a goroutine that may be waiting for the cache.
		f.closing.Go(func() { f.retire(scope, fd, idle) })
	}
}

// retire closes a feed without topics, unless it has had some again by the time
// that it has taken leave: a scope never has two.
func (f *feeders) retire(scope cache.Scope, fd *scopeFeed, idle int) {
	fd.Leave()
	f.mu.Lock()
	if fd.topics > 0 || fd.idle != idle || f.feeds[scope] != fd {
		f.mu.Unlock()
		return
	}
	delete(f.feeds, scope)
	f.mu.Unlock()
	fd.Close()
}

// Close closes all feeds, and waits for that.
func (f *feeders) Close() {
	f.mu.Lock()
	feeds := f.feeds
	f.feeds = map[cache.Scope]*scopeFeed{}
	f.mu.Unlock()
	for _, fd := range feeds {
		fd.Close()
	}
	f.closing.Wait()
}
