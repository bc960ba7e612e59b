package partition

import (
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
)

// Nodes are the Nodes that the relay sends upstream for the partitions of old-style names. All dynamic
// parameters of a partition share its Node. The relay makes it from the Node of the first client, and keeps it as
// long as the partition has a client or a source, and its control plane does not refuse it: see refused.go.
//
// It is safe for concurrent use. Its lock comes after the lock of scopes.
type Nodes struct {
	mu   sync.Mutex
	of   map[cache.Scope]*Node
	room cache.Room // of the map
	// warned has the rules for which a log line has reported that their clients' Nodes differ.
	warned map[int]bool
	// Changed, if not nil, is called when a partition has a new Node because the configuration now names other fields
	// to send.
	Changed func(scope cache.Scope)
}

// Node is the Node of a partition. Nodes.mu guards it. node is replaced, never changed.
type Node struct {
	node *corev3.Node
	// fields are the fields of node that the configuration of a generation names.
	fields     string
	generation uint64
	clients    int
	sources    int
	// front is the first of the connected clients, a ring, whose Nodes can take the place of a refused one. owner is the
	// last to join of those with the id of node, nil if it has gone.
	front, owner *Member
	refusals     refusals
	// hashes are those of the first client other than the relay's own tools. differ are the fields in which later
	// clients differed from it.
	hashes Hashes
	hashed bool // hashes are set
	differ Fields
}

// Client is a client that joins a partition.
type Client struct {
	Rule int // index of the rule that chose the partition
	// Generation is as in Node. upstream are the fields of the partition's Node.
	Generation uint64
	Upstream   configs.NodeFields
	Member     *Member
	Hashes     Hashes
	// OwnTool: the client is `xds-relay get` or `watch`. Its Node is not compared with others, and replaces none.
	OwnTool bool
}

// Member is what a partition keeps of a client. Nodes.mu guards the links.
type Member struct {
	ID         string
	Node       func() *corev3.Node // makes the partition's Node from the client's
	next, prev *Member             // nil if it is in no ring
}

// NewNodes returns the Nodes of no partitions.
func NewNodes() *Nodes {
	return &Nodes{of: map[cache.Scope]*Node{}, warned: map[int]bool{}}
}

// Of returns a scope without its dynamic parameters: the scope that clients join.
func Of(scope cache.Scope) cache.Scope {
	scope.Params, scope.New = "", false
	return scope
}

// Join adds a client to a partition until leave. If the client's Node differs from that of the partition's first
// client, and no client of its rule has differed before, then differ has the fields that differ, and first is the id
// of the partition's Node. Otherwise differ is empty.
func (p *Nodes) Join(scope cache.Scope, c Client) (differ Fields, first string) {
	differ, first, outcast := p.admit(scope, c)
	if outcast != nil && p.replace(outcast.of, outcast.node) {
		p.wake(outcast.of)
	}
	return differ, first
}

// admit does the work of join. It returns the partition's Node if that was refused and the client's must be tried now.
func (p *Nodes) admit(scope cache.Scope, c Client) (differ Fields, first string, outcast *refusedNode) {
	p.mu.Lock()
	if p.of[scope].outdated(&c) {
		// A Node may be large. Copying it must not block other callers.
		p.mu.Unlock()
		node, fields := c.Member.Node(), c.fields()
		p.mu.Lock()
		switch n := p.of[scope]; {
		case n == nil:
			p.of[scope] = &Node{node: node, fields: fields, generation: c.Generation, owner: c.Member}
			if c.Generation > 0 { // a directory may have been the partition's source before
				defer p.Changed(scope)
			}
		case n.outdated(&c):
			n.change(node, c.Member)
			n.fields = fields
			n.hashed, n.differ = false, 0
			defer p.Changed(scope)
		}
	}
	defer p.mu.Unlock()
	n := p.of[scope]
	n.generation = max(n.generation, c.Generation)
	n.clients++
	if !c.OwnTool {
		outcast = n.add(c.Member, time.Now())
	}
	switch {
	case c.OwnTool:
		return 0, "", nil
	case !n.hashed:
		n.hashed, n.hashes = true, c.Hashes
	}
	differ = n.hashes.differ(c.Hashes)
	n.differ |= differ
	if differ == 0 || p.warned[c.Rule] {
		return 0, "", outcast
	}
	p.warned[c.Rule] = true
	return differ, n.node.GetId(), outcast
}

// outdated reports whether a partition needs a new Node, made from a client's: it has none, or the client is the
// first one since the configuration names other fields.
func (n *Node) outdated(c *Client) bool {
	return n == nil || n.generation < c.Generation && n.fields != c.fields()
}

// fields are as in Node.
func (c *Client) fields() string { return strings.Join(c.Upstream.Paths(), " ") }

// NodeOf returns the current Node.
func (p *Nodes) NodeOf(n *Node) *corev3.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return n.node
}

// Find returns the current Node of a partition, nil if there is none.
func (p *Nodes) Find(scope cache.Scope) *corev3.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.of[scope]; n != nil {
		return n.node
	}
	return nil
}

// JoinDerived adds a derived topic to a partition until leave. Like a client, it keeps the Node: the topic may
// subscribe to other topics after the clients have left.
func (p *Nodes) JoinDerived(scope cache.Scope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[scope] == nil { // the source is a directory, which needs no Node
		p.of[scope] = &Node{}
	}
	p.of[scope].clients++
}

// Leave undoes the join of a member, or that of a derived topic if m is nil.
func (p *Nodes) Leave(scope cache.Scope, m *Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of[scope]
	if m != nil {
		n.remove(m)
	}
	n.clients--
	p.forgetUnused(scope)
}

// Open adds a source to a partition until closed. It returns nil for xdstp names.
func (p *Nodes) Open(scope cache.Scope) *Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of[scope]
	if n != nil {
		n.sources++
	}
	return n
}

// Closed undoes an open that returned n.
func (p *Nodes) Closed(scope cache.Scope, n *Node) {
	if n == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n.sources--
	p.forgetUnused(scope)
}

func (p *Nodes) forgetUnused(scope cache.Scope) {
	if n := p.of[scope]; n != nil && n.clients == 0 && n.sources == 0 {
		p.of = cache.Without(p.of, &p.room, scope)
	}
}

// Describe returns the id of the Node of a scope's partition, and the fields in which its clients' Nodes differ. Both
// are empty for xdstp names.
func (p *Nodes) Describe(scope cache.Scope) (id string, differ Fields) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.of[Of(scope)]; n != nil {
		return n.node.GetId(), n.differ
	}
	return "", 0
}

// Refused reports whether a control plane has refused a Node of a scope's partition, and has answered none since.
func (p *Nodes) Refused(scope cache.Scope) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of[Of(scope)]
	return n != nil && n.refusals.refused
}
