package partition

import (
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream"
)

// A control plane may refuse a partition's Node, for instance because it does not know the client any more, which left
// long ago. Then the Node of another connected client takes its place. The connected clients are in a ring. Whose Node
// is tried goes to its end, so each Node is tried once before any is tried again. The streams set the pace.

const (
	// mostCompared bounds the clients whose Nodes are compared with a refused one at once. In many partitions, all Nodes
	// that the relay makes are equal.
	mostCompared = 16
	// newcomerPace is the shortest time between two clients whose Nodes are tried as soon as they join, while there are
	// others to try.
	newcomerPace = 10 * time.Second
)

// refusals is what is known about how the control planes take the Node of a partition. Nodes.mu guards it.
type refusals struct {
	refused  bool           // some Node was, since a stream was answered
	alone    bool           // no other Node was found
	answered int            // streams with the Node that have an answer
	newcomer time.Time      // when a client's Node was last tried as soon as it joined
	next     int            // id of a watcher
	watchers map[int]func() // of the partition's streams
}

// refusedNode is the Node of a partition, which was refused.
type refusedNode struct {
	of   *Node
	node *corev3.Node
}

// scopeNodes are the Nodes for the streams of a scope. It implements upstream.Nodes.
type scopeNodes struct {
	all *Nodes
	of  *Node
}

// NodesOf returns the Nodes for the streams of a scope that has a source, nil for xdstp names.
func (p *Nodes) NodesOf(scope cache.Scope) upstream.Nodes {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.of[Of(scope)]; n != nil && n.node != nil {
		return scopeNodes{p, n}
	}
	return nil
}

// Current implements upstream.Nodes.
func (s scopeNodes) Current() *corev3.Node { return s.all.NodeOf(s.of) }

// Answered implements upstream.Nodes.
func (s scopeNodes) Answered(node *corev3.Node) {
	s.all.mu.Lock()
	r := &s.of.refusals
	if s.of.node != node {
		s.all.mu.Unlock()
		return
	}
	found := r.refused
	r.refused = false
	r.answered++
	s.all.mu.Unlock()
	if found {
		s.all.wake(s.of)
	}
}

// Lost implements upstream.Nodes.
func (s scopeNodes) Lost(node *corev3.Node) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.of.node == node {
		s.of.refusals.answered--
	}
}

// Refused implements upstream.Nodes.
func (s scopeNodes) Refused(node *corev3.Node, answered bool) (changed bool) {
	s.all.mu.Lock()
	n := s.of
	others := n.node == node && n.owner != nil && (answered || n.refusals.answered > 0)
	s.all.mu.Unlock()
	return !others && s.all.replace(n, node)
}

// Watch implements upstream.Nodes.
func (s scopeNodes) Watch(f func()) (stop func()) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	r := &s.of.refusals
	if r.watchers == nil {
		r.watchers = map[int]func(){}
	}
	r.next++
	id := r.next
	r.watchers[id] = f
	return func() {
		s.all.mu.Lock()
		defer s.all.mu.Unlock()
		delete(r.watchers, id)
	}
}

// replace replaces the Node of a partition by that of the next client whose Node is another. It returns false if there is
// none.
func (p *Nodes) replace(n *Node, refused *corev3.Node) (changed bool) {
	var first *Member
	for range mostCompared {
		m, ok := p.candidate(n, refused)
		switch {
		case !ok:
			return true
		case m == nil, m == first:
			return false
		case first == nil:
			first = m
		}
		// A Node may be large. Copying it must not block other callers.
		node := m.Node()
		if p.try(n, refused, m, node, proto.Equal(node, refused)) {
			return true
		}
	}
	return false
}

// candidate returns the next client whose Node may take the place of a refused one, nil if there is none. It returns
// false if the Node was replaced already.
func (p *Nodes) candidate(n *Node, refused *corev3.Node) (m *Member, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.node != refused {
		return nil, false
	}
	n.refusals.refused, n.refusals.alone = true, true
	if m = n.front; m != nil {
		n.front = m.next
	}
	return m, true
}

// try makes a client's Node that of the partition, unless it is equal to the refused one.
func (p *Nodes) try(n *Node, refused *corev3.Node, m *Member, node *corev3.Node, equal bool) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch connected := m.next != nil; {
	case n.node != refused:
		return true
	case !connected:
		return false
	case equal:
		n.owner = m
		return false
	}
	n.change(node, m)
	n.refusals.refused = true
	return true
}

// wake wakes the streams that wait to send the Node.
func (p *Nodes) wake(n *Node) {
	p.mu.Lock()
	watchers := slices.Collect(maps.Values(n.refusals.watchers))
	p.mu.Unlock()
	for _, f := range watchers {
		f()
	}
}

// change sets the Node. The caller holds Nodes.mu, also for the functions from here on.
func (n *Node) change(node *corev3.Node, owner *Member) {
	n.node, n.owner = node, owner
	n.refusals.refused, n.refusals.alone, n.refusals.answered = false, false, 0
}

// add adds a client to the ring. If the partition's Node was refused, and the client's has to be tried now, it comes
// first, and add returns that Node.
func (n *Node) add(m *Member, now time.Time) *refusedNode {
	if n.front == nil {
		m.next, m.prev, n.front = m, m, m
	} else {
		m.next, m.prev = n.front, n.front.prev
		m.prev.next, m.next.prev = m, m
	}
	if m.ID == n.node.GetId() {
		n.owner = m // it was here before, or has other names now
	}
	r := &n.refusals
	if !r.refused || !r.alone && now.Sub(r.newcomer) < newcomerPace {
		return nil
	}
	r.newcomer, n.front = now, m
	return &refusedNode{n, n.node}
}

// remove removes a client.
func (n *Node) remove(m *Member) {
	if n.owner == m {
		n.owner = nil
	}
	if m.next == nil {
		return // one of the relay's own tools
	}
	if m.next == m {
		n.front = nil
	} else {
		m.prev.next, m.next.prev = m.next, m.prev
		if n.front == m {
			n.front = m.next
		}
	}
	m.next, m.prev = nil, nil
}
