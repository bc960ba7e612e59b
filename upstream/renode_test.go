package upstream

import (
	"fmt"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// manyNodes are Nodes of which each can take the place of any other.
type manyNodes struct {
	mu       sync.Mutex
	node     *corev3.Node
	answered int
	changes  int
}

func newManyNodes() *manyNodes { return &manyNodes{node: &corev3.Node{Id: "0"}} }

func (n *manyNodes) Current() *corev3.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.node
}

func (n *manyNodes) Answered(node *corev3.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if node == n.node {
		n.answered++
	}
}

func (n *manyNodes) Lost(node *corev3.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if node == n.node {
		n.answered--
	}
}

func (n *manyNodes) Refused(node *corev3.Node, answered bool) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if node != n.node {
		return true
	}
	if answered || n.answered > 0 {
		return false
	}
	n.changes++
	n.node = &corev3.Node{Id: fmt.Sprint(n.changes)}
	return true
}

func (n *manyNodes) Watch(func()) (stop func()) { return func() {} }

func (n *manyNodes) changed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changes
}

// The Node is blamed first, but a name for which the control plane ends streams costs the others no more than 5 s, however
// many Nodes there are to try, and changes the Node no more once something is answered.
func TestNodesAreNotBlamedForANameForLong(t *testing.T) {
	for _, protocol := range []Protocol{Delta, SotW} {
		for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound} {
			t.Run(fmt.Sprint(protocol, "/", code), func(t *testing.T) {
				nodes := newManyNodes()
				isolatingAs(t, Options{Protocol: protocol, Nodes: nodes}, map[string]codes.Code{"bad": code}, func(b *bench, _ *touchyPlane) {
					good := b.watch("eds", "a", "bad", "b")
					pass(5 * time.Second)
					b.wantPresent(good["a"], good["b"])
					changes := nodes.changed()
					if changes > 8 {
						t.Errorf("%d Nodes were tried, want a few", changes)
					}
					pass(10 * time.Minute)
					b.wantPresent(good["a"], good["b"])
					if n := nodes.changed(); n != changes {
						t.Errorf("the Node has changed %d times in ten minutes", n-changes)
					}
				})
			})
		}
	}
}

// If each Node is refused, the streams slow down.
func TestNodesAreTriedWithBackoff(t *testing.T) {
	nodes := newManyNodes()
	isolatingAs(t, Options{Protocol: Delta, Nodes: nodes}, map[string]codes.Code{"a": codes.PermissionDenied}, func(b *bench, p *touchyPlane) {
		b.watch("eds", "a")
		pass(10 * time.Second)
		if n := nodes.changed(); n < 6 {
			t.Errorf("%d Nodes were tried in 10 s, want one every 2 s at least", n)
		}
		pass(time.Minute)
		n := nodes.changed()
		pass(10 * time.Minute)
		if n := nodes.changed() - n; n > 40 {
			t.Errorf("%d Nodes were tried in ten minutes, want one for each wait of the backoff", n)
		}
		p.forgive()
		pass(31 * time.Second)
		b.wantPresent(b.watch("eds", "a")["a"])
	})
}

// A trial that ends after its Node was replaced says nothing of what it requests: the next one has the new Node.
func TestATrialWithARefusedNodeConvictsNothing(t *testing.T) {
	nodes := newManyNodes()
	isolatingAs(t, Options{Protocol: Delta, Nodes: nodes}, nil, func(b *bench, p *touchyPlane) {
		p.ponders = 300 * time.Millisecond
		b.wantAfter(time.Second, b.watch("eds", "a")["a"])
		p.endFor(codes.NotFound, "c")
		c := b.watch("eds", "c")["c"]
		for before := p.opened(); p.opened() == before; { // the trial is the first
			pass(10 * time.Millisecond)
		}
		nodes.replace() // another stream has found that it is refused
		pass(10 * time.Millisecond)
		p.forgive()
		b.wantAfter(2*time.Second, c)
		if n := b.logs.count("control plane ends each stream"); n > 0 {
			t.Error("the name is blamed for the Node")
		}
	})
}

// replace replaces the Node.
func (n *manyNodes) replace() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes++
	n.node = &corev3.Node{Id: fmt.Sprint(n.changes)}
}

func (b *bench) wantAfter(d time.Duration, e *cache.Entry) {
	b.Helper()
	pass(d)
	b.wantPresent(e)
}
