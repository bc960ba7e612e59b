package cache

import (
	"fmt"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache/resource"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

type respelled int

func (n *respelled) Respelled() { *n++ }

// The spelling of a name is the oldest that a resource of the name's authority in the cache has, or else the oldest. It
// lasts as long as that resource.
func TestSpellingLastsAsLongAsWhatHasIt(t *testing.T) {
	const name = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/n?a=1&b=2"
	spell := func(tail string) string { return "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/n" + tail }
	refers := func(cluster, tail string) *Resource {
		value, err := proto.Marshal(&clusterv3.Cluster{
			Name: cluster, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: spell(tail)},
		})
		if err != nil {
			t.Fatal(err)
		}
		return NewResource(Spec{Name: cluster, TypeURL: xdstype.ClusterV3, Value: value})
	}
	c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 1})
	defer c.Close()
	own, other := Scope{Authority: "a", OldStyle: true}, Scope{Authority: "b", OldStyle: true}
	entry := &keptWatch{}
	c.Watch(Key{own, xdstype.ClusterV3, "one"}, entry)
	sets := map[Scope]*keptSetWatch{own: {}, other: {}}
	for scope, w := range sets {
		c.WatchSet(Key{scope, xdstype.ClusterV3, Wildcard}, w)
	}
	var changes respelled
	c.WatchSpelling(xdstype.EndpointsV3, name, &changes)
	set := func(scope Scope, changes ...Change) {
		c.Apply(Update{Scope: scope, TypeURL: xdstype.ClusterV3, Sets: []SetUpdate{{Name: Wildcard, Changes: changes, Extent: Whole}}})
	}
	put := func(r *Resource) {
		c.Apply(Update{Scope: own, TypeURL: xdstype.ClusterV3, Changes: []Change{{Name: "one", Resource: r}}})
	}
	for i, step := range []struct {
		what    func()
		want    string
		changes int
	}{
		{func() {}, "", 0},
		{func() { set(other, Change{Name: "x", Resource: refers("x", "?b=2&a=%31")}) }, "?b=2&a=%31", 1},
		{func() { put(refers("one", "?b=2&a=1")) }, "?b=2&a=1", 2}, // of the name's own authority
		{func() { set(own, Change{Name: "y", Resource: refers("y", "?b=%32&a=1")}) }, "?b=2&a=1", 2},
		{func() { put(refers("one", "?b=2&a=1")) }, "?b=2&a=1", 2},
		{func() { put(refers("one", "?a=1&b=2")) }, "?b=%32&a=1", 3}, // canonical
		{func() { set(own) }, "?b=2&a=%31", 4},
		{func() { put(refers("one", "?b=2&a=1")) }, "?b=2&a=1", 5},
		{func() { c.Unwatch(sets[other]); c.Unwatch(entry) }, "?b=2&a=1", 5}, // one of them may linger, which is the newest
		{func() { c.DropIdle(own, 0) }, "", 6},
	} {
		step.what()
		got, want := c.Spelling(xdstype.EndpointsV3, name), ""
		if step.want != "" {
			want = spell(step.want)
		}
		if got != want || int(changes) != step.changes {
			t.Errorf("step %d: %q, %d changes, want %q, %d", i, got, changes, want, step.changes)
		}
	}
	c.UnwatchSpelling(xdstype.EndpointsV3, name, &changes)
	if left := len(c.spellings.names); left > 0 {
		t.Errorf("%d names are remembered, which nothing has", left)
	}
}

type keptWatch struct{ Watch }

func (*keptWatch) Changed() Waker { return nil }

type keptSetWatch struct{ SetWatch }

func (*keptSetWatch) Changed() Waker { return nil }

// One control plane may write a name of another in very many ways. That takes bounded time and memory, and does not hide
// how the name's own authority writes it.
func TestSpellingsOfANameAreBounded(t *testing.T) {
	const name = "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/n"
	var s spellings
	of := func(written string) resource.Spelling {
		return resource.Spelling{TypeURL: xdstype.EndpointsV3, Name: name, Written: written}
	}
	const many = 10 * mostSpelled
	for i := range many {
		s.addOne("b", of(fmt.Sprint(name, "#", i)), 1)
	}
	known := s.get(spelledName{xdstype.EndpointsV3, name})
	if len(known.all) != mostSpelled {
		t.Errorf("%d spellings are known, want %d", len(known.all), mostSpelled)
	}
	s.addOne("a", of(name+"#own"), 1)
	if got := known.best(); got != name+"#own" {
		t.Errorf("the name is written %q, want as its own authority does", got)
	}
	s.addOne("a", of(name+"#own"), -1)
	for i := range many {
		s.addOne("b", of(fmt.Sprint(name, "#", i)), -1)
	}
	if len(s.names) > 0 {
		t.Errorf("%d names are remembered, which nothing has", len(s.names))
	}
}
