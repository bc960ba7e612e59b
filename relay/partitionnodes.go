package relay

import (
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
)

// partitionNodes are the Nodes that the relay sends upstream for the partitions of old-style names. All dynamic
// parameters of a partition share its Node. The relay makes it from the Node of the first client, and keeps it as
// long as the partition has a client or a source, and its control plane does not refuse it: see refusednodes.go.
//
// It is safe for concurrent use. Its lock comes after the lock of scopes.
type partitionNodes struct {
	mu   sync.Mutex
	of   map[cache.Scope]*partitionNode
	room cache.Room // of the map
	// warned has the rules for which a log line has reported that their clients' Nodes differ.
	warned map[int]bool
	// changed, if not nil, is called when a partition has a new Node because the configuration now names other fields
	// to send.
	changed func(scope cache.Scope)
}

// partitionNode is the Node of a partition. partitionNodes.mu guards it. node is replaced, never changed.
type partitionNode struct {
	node *corev3.Node
	// fields are the fields of node that the configuration of a generation names.
	fields     string
	generation uint64
	clients    int
	sources    int
	// front is the first of the connected clients, a ring, whose Nodes can take the place of a refused one. owner is the
	// last to join of those with the id of node, nil if it has gone.
	front, owner *partitionMember
	refusals     nodeRefusals
	// hashes are those of the first client other than the relay's own tools. differ are the fields in which later
	// clients differed from it.
	hashes nodeHashes
	hashed bool // hashes are set
	differ fieldSet
}

// partitionClient is a client that joins a partition.
type partitionClient struct {
	rule int // index of the rule that chose the partition
	// generation is as in partitionNode. upstream are the fields of the partition's Node.
	generation uint64
	upstream   configs.NodeFields
	member     *partitionMember
	hashes     nodeHashes
	// ownTool: the client is `xds-relay get` or `watch`. Its Node is not compared with others, and replaces none.
	ownTool bool
}

// partitionMember is what a partition keeps of a client. partitionNodes.mu guards the links.
type partitionMember struct {
	id         string
	node       func() *corev3.Node // makes the partition's Node from the client's
	next, prev *partitionMember    // nil if it is in no ring
}

func newPartitionNodes() *partitionNodes {
	return &partitionNodes{of: map[cache.Scope]*partitionNode{}, warned: map[int]bool{}}
}

// partitionOf returns a scope without its dynamic parameters: the scope that clients join.
func partitionOf(scope cache.Scope) cache.Scope {
	scope.Params, scope.New = "", false
	return scope
}

// join adds a client to a partition until leave. If the client's Node differs from that of the partition's first
// client, and no client of its rule has differed before, then differ has the fields that differ, and first is the id
// of the partition's Node. Otherwise differ is empty.
func (p *partitionNodes) join(scope cache.Scope, c partitionClient) (differ fieldSet, first string) {
	differ, first, outcast := p.admit(scope, c)
	if outcast != nil && p.replace(outcast.of, outcast.node) {
		p.wake(outcast.of)
	}
	return differ, first
}

// admit does the work of join. It returns the partition's Node if that was refused and the client's must be tried now.
func (p *partitionNodes) admit(scope cache.Scope, c partitionClient) (differ fieldSet, first string, outcast *refusedNode) {
	p.mu.Lock()
	if p.of[scope].outdated(&c) {
		// A Node may be large. Copying it must not block other callers.
		p.mu.Unlock()
		node, fields := c.member.node(), c.fields()
		p.mu.Lock()
		switch n := p.of[scope]; {
		case n == nil:
			p.of[scope] = &partitionNode{node: node, fields: fields, generation: c.generation, owner: c.member}
			if c.generation > 0 { // a directory may have been the partition's source before
				defer p.changed(scope)
			}
		case n.outdated(&c):
			n.change(node, c.member)
			n.fields = fields
			n.hashed, n.differ = false, 0
			defer p.changed(scope)
		}
	}
	defer p.mu.Unlock()
	n := p.of[scope]
	n.generation = max(n.generation, c.generation)
	n.clients++
	if !c.ownTool {
		outcast = n.add(c.member, time.Now())
	}
	switch {
	case c.ownTool:
		return 0, "", nil
	case !n.hashed:
		n.hashed, n.hashes = true, c.hashes
	}
	differ = n.hashes.differ(c.hashes)
	n.differ |= differ
	if differ == 0 || p.warned[c.rule] {
		return 0, "", outcast
	}
	p.warned[c.rule] = true
	return differ, n.node.GetId(), outcast
}

// outdated reports whether a partition needs a new Node, made from a client's: it has none, or the client is the
// first one since the configuration names other fields.
func (n *partitionNode) outdated(c *partitionClient) bool {
	return n == nil || n.generation < c.generation && n.fields != c.fields()
}

// fields are as in partitionNode.
func (c *partitionClient) fields() string { return strings.Join(c.upstream.Paths(), " ") }

// nodeOf returns the current Node.
func (p *partitionNodes) nodeOf(n *partitionNode) *corev3.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return n.node
}

// find returns the current Node of a partition, nil if there is none.
func (p *partitionNodes) find(scope cache.Scope) *corev3.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.of[scope]; n != nil {
		return n.node
	}
	return nil
}

// joinDerived adds a derived topic to a partition until leave. Like a client, it keeps the Node: the topic may
// subscribe to other topics after the clients have left.
func (p *partitionNodes) joinDerived(scope cache.Scope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[scope] == nil { // the source is a directory, which needs no Node
		p.of[scope] = &partitionNode{}
	}
	p.of[scope].clients++
}

// leave undoes the join of a member, or that of a derived topic if m is nil.
func (p *partitionNodes) leave(scope cache.Scope, m *partitionMember) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of[scope]
	if m != nil {
		n.remove(m)
	}
	n.clients--
	p.forgetUnused(scope)
}

// open adds a source to a partition until closed. It returns nil for xdstp names.
func (p *partitionNodes) open(scope cache.Scope) *partitionNode {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of[scope]
	if n != nil {
		n.sources++
	}
	return n
}

// closed undoes an open that returned n.
func (p *partitionNodes) closed(scope cache.Scope, n *partitionNode) {
	if n == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n.sources--
	p.forgetUnused(scope)
}

func (p *partitionNodes) forgetUnused(scope cache.Scope) {
	if n := p.of[scope]; n != nil && n.clients == 0 && n.sources == 0 {
		p.of = cache.Without(p.of, &p.room, scope)
	}
}

// describe returns the id of the Node of a scope's partition, and the fields in which its clients' Nodes differ. Both
// are empty for xdstp names.
func (p *partitionNodes) describe(scope cache.Scope) (id string, differ fieldSet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.of[partitionOf(scope)]; n != nil {
		return n.node.GetId(), n.differ
	}
	return "", 0
}

// isRefused reports whether a control plane has refused a Node of a scope's partition, and has answered none since.
func (p *partitionNodes) isRefused(scope cache.Scope) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of[partitionOf(scope)]
	return n != nil && n.refusals.refused
}
