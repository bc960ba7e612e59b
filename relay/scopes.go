package relay

import (
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// source is a cache.Source for the topics of one scope. A new kind of source implements it,
// and origins.open returns it.
type source interface {
	cache.Source
	// Drain waits, for a bounded time, until the control plane knows that the relay
	// has unsubscribed from everything.
	Drain()
	// Close ends the source, and waits until it no longer calls the cache.
	Close()
}

// scopes is the cache's source: it passes each topic to the source of its scope, which it
// opens for the first topic and closes after the last. So each scope (authority, partition
// and dynamic parameters) has one stream upstream, however many clients and topics it has.
type scopes struct {
	// open opens a scope's source. It must not block.
	open func(scope cache.Scope, node *corev3.Node) source
	// derived is the source of the derived topics.
	derived cache.Source

	mu      sync.Mutex
	sources map[cache.Scope]*scopeSource
	nodes   map[cache.Scope]*scopeNode
	// sourceRoom and nodeRoom belong to those maps.
	sourceRoom, nodeRoom cache.Room
	// warned are the rules of which the log has said that their clients' Nodes differ.
	warned map[int]bool
	// closing counts the sources that are being closed.
	closing sync.WaitGroup
}

type scopeSource struct {
	source
	node   *scopeNode // nil for xdstp names
	topics int
	idle   int // how often the last topic has gone
}

// scopeNode is the Node with which a partition of old-style names is asked for upstream,
// with whatever dynamic parameters: made from that of the first client, and kept as long as
// there is a client or a source.
type scopeNode struct {
	node    *corev3.Node
	clients int
	sources int
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

// newScopes returns scopes without open and derived, which the caller sets before the
// first topic is watched.
func newScopes() *scopes {
	return &scopes{sources: map[cache.Scope]*scopeSource{}, nodes: map[cache.Scope]*scopeNode{}, warned: map[int]bool{}}
}

// partitionOf returns the scope that clients join which use a scope: that without dynamic
// parameters.
func partitionOf(scope cache.Scope) cache.Scope {
	scope.Params = ""
	return scope
}

// join notes that a client uses the scope, until it leaves. differ says in what its Node
// differs from the first client's, if the operator is to be told that: once for each rule.
// first is the id that the scope is asked for with.
func (f *scopes) join(scope cache.Scope, c partitionClient) (differ markSet, first string) {
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
func (f *scopes) leave(scope cache.Scope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaveLocked(scope)
}

func (f *scopes) leaveLocked(scope cache.Scope) {
	f.nodes[scope].clients--
	f.forgetNode(scope)
}

// forgetNode drops the Node of a scope that nobody uses and nothing is asked for.
func (f *scopes) forgetNode(scope cache.Scope) {
	if n := f.nodes[scope]; n != nil && n.clients == 0 && n.sources == 0 {
		f.nodes = cache.Without(f.nodes, &f.nodeRoom, scope)
	}
}

// nodeOf returns the id that a scope is asked for with, and in what its clients' Nodes
// differ; nothing for xdstp names.
func (f *scopes) nodeOf(scope cache.Scope) (id string, differ markSet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[partitionOf(scope)]; n != nil {
		return n.node.GetId(), n.differ
	}
	return "", 0
}

// Start implements cache.Source.
func (f *scopes) Start(k cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.Scope.Derived != "" {
		f.startDerived(k)
		return
	}
	of := f.sources[k.Scope]
	if of == nil {
		var node *corev3.Node
		n := f.nodes[partitionOf(k.Scope)]
		if n != nil {
			node = n.node
			n.sources++
		}
		of = &scopeSource{source: f.open(k.Scope, node), node: n}
		f.sources[k.Scope] = of
	}
	of.topics++
	of.source.Start(k)
}

// Refresh implements cache.Source.
func (f *scopes) Refresh(k cache.Key) {
	if k.Scope.Derived != "" {
		f.derived.Refresh(k)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.sources[k.Scope]; of != nil {
		of.source.Refresh(k)
	}
}

// Resume implements cache.Resumer. The topics that are made of others are left out.
func (f *scopes) Resume(k cache.Key) {
	if k.Scope.Derived != "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if of := f.sources[k.Scope]; of != nil {
		cache.Resume(of.source, k)
	}
}

// Stop implements cache.Source.
func (f *scopes) Stop(k cache.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.Scope.Derived != "" {
		f.stopDerived(k)
		return
	}
	of := f.sources[k.Scope]
	if of == nil {
		return // closed
	}
	of.source.Stop(k)
	if of.topics--; of.topics == 0 {
		of.idle++
		idle := of.idle
		// This waits for a goroutine that may be waiting for the cache.
		f.closing.Go(func() { f.retire(k.Scope, of, idle) })
	}
}

// retire closes a source without topics, unless it has had some again by the time
// that it has taken leave: a scope never has two.
func (f *scopes) retire(scope cache.Scope, of *scopeSource, idle int) {
	of.Drain()
	f.mu.Lock()
	if of.topics > 0 || of.idle != idle || f.sources[scope] != of {
		f.mu.Unlock()
		return
	}
	f.sources = cache.Without(f.sources, &f.sourceRoom, scope)
	if of.node != nil {
		of.node.sources--
		f.forgetNode(partitionOf(scope))
	}
	f.mu.Unlock()
	of.Close()
}

// Close closes all sources, and waits for that.
func (f *scopes) Close() {
	f.mu.Lock()
	sources := f.sources
	f.sources = map[cache.Scope]*scopeSource{}
	f.mu.Unlock()
	for _, of := range sources {
		f.closing.Go(of.Close)
	}
	f.closing.Wait()
}
