package partition

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// ring is a partition with clients in a ring, and what its streams know.
func ring(ids ...string) (*Nodes, scopeNodes, []*Member) {
	p := NewNodes()
	var members []*Member
	for _, id := range ids {
		c := asNode(edge(id))
		p.Join(scopeA, c)
		members = append(members, c.Member)
	}
	return p, scopeNodes{p, p.of[scopeA]}, members
}

// refuse refuses the current Node, and returns the id of the next.
func (s scopeNodes) refuse(answered bool) string {
	s.Refused(s.Current(), answered)
	return s.Current().GetId()
}

func TestEachNodeIsTriedOnceInARound(t *testing.T) {
	p, nodes, members := ring("a", "b", "b", "c", "a")
	var tried string
	for range 6 {
		tried += nodes.refuse(false)
	}
	if tried != "bcabca" && tried != "bcacbc" && tried != "bcabac" {
		t.Errorf("tried are %s", tried)
	}
	for _, m := range members {
		p.Leave(scopeA, m)
	}
	if len(p.of) != 0 {
		t.Error("the partition stays")
	}
}

// The control plane may have ended a stream for another reason.
func TestAnAcceptedNodeStays(t *testing.T) {
	p, nodes, members := ring("a", "b")
	if got := nodes.refuse(true); got != "a" {
		t.Errorf("a Node whose client is connected, and that was answered, is replaced by that of %s", got)
	}
	nodes.Answered(nodes.Current())
	if got := nodes.refuse(false); got != "a" {
		t.Errorf("a Node that another stream uses is replaced by that of %s", got)
	}
	nodes.Lost(nodes.Current())
	if got := nodes.refuse(false); got != "b" {
		t.Errorf("a Node without any answer is replaced by that of %s", got)
	}
	nodes.Answered(nodes.Current())
	p.Leave(scopeA, members[1])
	if got := nodes.refuse(true); got != "a" {
		t.Errorf("the Node of a client that has left is replaced by that of %s", got)
	}
	p.Leave(scopeA, members[0])
	if nodes.Refused(nodes.Current(), false) {
		t.Error("a Node is replaced though no client is connected")
	}
}

// The client of a Node may come back, or get other names by a reload.
func TestAClientThatComesBackKeepsItsNode(t *testing.T) {
	p, nodes, members := ring("a", "b", "a")
	p.Leave(scopeA, members[0])
	if got := nodes.refuse(true); got != "a" {
		t.Errorf("the Node of a client with new names is replaced by that of %s", got)
	}
	p.Leave(scopeA, members[2])
	p.Join(scopeA, asNode(edge("a")))
	if got := nodes.refuse(true); got != "a" {
		t.Errorf("the Node of a client that came back is replaced by that of %s", got)
	}
}

// A client that comes again and again, each time with another Node, does not keep the Nodes of others from being tried.
func TestNewcomersDoNotStarveOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, nodes, _ := ring("bad", "good")
		woken := 0
		stop := nodes.Watch(func() { woken++ })
		defer stop()
		p.of[scopeA].refusals.refused = true
		var tried []string
		for n := range 20 { // every second
			c := asNode(edge(fmt.Sprint("new", n)))
			p.Join(scopeA, c)
			tried = append(tried, nodes.refuse(false))
			p.Leave(scopeA, c.Member)
			time.Sleep(time.Second)
		}
		if woken != 2 {
			t.Errorf("newcomers have woken the streams %d times in 20 s, want 2", woken)
		}
		if !slices.Contains(tried[:5], "good") {
			t.Errorf("the Nodes that were tried are %q", tried)
		}
	})
}

var scopeA = cache.Scope{Authority: "a", Partition: "p", OldStyle: true}

func edge(id string) *corev3.Node { return &corev3.Node{Id: id, Cluster: "edge"} }

// asNode is a client that has this Node and sends all of it.
func asNode(node *corev3.Node) Client {
	return Client{Member: &Member{ID: node.GetId(), Node: func() *corev3.Node { return node }}, Hashes: HashesOf(node)}
}
