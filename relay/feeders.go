package relay

import (
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// feed feeds the topics of one scope, as a cache.Feeder does all.
type feed interface {
	cache.Feeder
	// Drain waits, for a bounded time, until the control plane knows that the relay
	// has unsubscribed from everything.
	Drain()
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
	// feedRoom and nodeRoom are of those maps.
	feedRoom, nodeRoom cache.Room
	// warned are the rules of which the log has said that their clients' Nodes differ.
	warned map[int]bool
	// closing counts the feeds that are being closed.
	closing sync.WaitGroup
}

type scopeFeed struct {
	feed
	topics int
	idle   int // how often the last topic has gone
}

// scopeNode is the Node with which a scope of old-style names is asked for upstream: made
// from that of the first client, and kept as long as there is a client or a feed.
type scopeNode struct {
	node    *corev3.Node
	clients int
	// marks are those of the first client that is not this program's own, as which somebody
	// only looks; differ says in which of them later clients
	// were different.
	marks  nodeMarks
	marked bool // marks are those of a client
	differ markSet
}

// partitionClient is a client that begins to use a scope of old-style names.
type partitionClient struct {
	rule  int                 // by which it came there
	node  func() *corev3.Node // as which the scope is asked for if the client is the first
	marks nodeMarks
	// looks says that it is this program's own client, whose Node is nobody's.
	looks bool
}

// newFeeders makes feeders without open and derived, which are to be set before the
// first topic is watched.
func newFeeders() *feeders {
	return &feeders{feeds: map[cache.Scope]*scopeFeed{}, nodes: map[cache.Scope]*scopeNode{}, warned: map[int]bool{}}
}

// fedBy returns the scope whose feed feeds a scope, and which clients join that use it:
// that without parameters.
func fedBy(scope cache.Scope) cache.Scope {
	scope.Params = ""
	return scope
}

// join notes that a client uses the scope, until it leaves. differ says in what its Node
// differs from the first client's, if the operator is to be told that: once for each rule.
// first is the id that the scope is asked for with.
func (f *feeders) join(scope cache.Scope, c partitionClient) (differ markSet, first string) {
	f.mu.Lock()
	if f.nodes[scope] == nil {
		// A Node may be large, and others are not to wait while it is copied.
		f.mu.Unlock()
		node := c.node()
		f.mu.Lock()
		if f.nodes[scope] == nil {
			f.nodes[scope] = &scopeNode{node: node}
		}
	}
	defer f.mu.Unlock()
	n := f.nodes[scope]
	n.clients++
	switch {
	case c.looks:
		return 0, ""
	case !n.marked:
		n.marked, n.marks = true, c.marks
	}
	differ = n.marks.differ(c.marks)
	n.differ |= differ
	if differ == 0 || f.warned[c.rule] {
		return 0, ""
	}
	f.warned[c.rule] = true
	return differ, n.node.GetId()
}

// leave undoes a join.
func (f *feeders) leave(scope cache.Scope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaveLocked(scope)
}

func (f *feeders) leaveLocked(scope cache.Scope) {
	f.nodes[scope].clients--
	f.forgetNode(scope)
}

// forgetNode drops the Node of a scope that nobody uses and nothing is asked for.
func (f *feeders) forgetNode(scope cache.Scope) {
	if n := f.nodes[scope]; n != nil && n.clients == 0 && f.feeds[scope] == nil {
		f.nodes = cache.Without(f.nodes, &f.nodeRoom, scope)
	}
}

// nodeOf returns the id that a scope is asked for with, and in what its clients' Nodes
// differ; nothing for xdstp names.
func (f *feeders) nodeOf(scope cache.Scope) (id string, differ markSet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[scope]; n != nil {
		return n.node.GetId(), n.differ
	}
	return "", 0
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
	fd.Drain()
	f.mu.Lock()
	if fd.topics > 0 || fd.idle != idle || f.feeds[scope] != fd {
		f.mu.Unlock()
		return
	}
	f.feeds = cache.Without(f.feeds, &f.feedRoom, scope)
	f.forgetNode(scope)
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
		f.closing.Go(fd.Close)
	}
	f.closing.Wait()
}
