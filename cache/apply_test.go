package cache

import (
	"slices"
	"testing"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// readAttempt is a watcher that tries to begin a read when it is notified of a change.
type readAttempt struct {
	Watch
	reader *Reader
	could  bool
}

func (g *readAttempt) Changed() Waker {
	if g.reader.TryBeginRead(nil) {
		g.could = true
		g.reader.EndRead()
	}
	return nil
}

// Updates of several types are seen as a whole: no reader gets in between, and watchers are woken after the last.
func TestUpdatesOfSeveralTypesAreOneChange(t *testing.T) {
	c := New(newFeeds(), Options{IdleEntries: 10})
	defer c.Close()
	cluster, listener := testKey("c"), Key{Scope: testScope, TypeURL: xdstype.ListenerV3, Name: "l"}
	reader, w := c.NewReader(), &counter{}
	g := &readAttempt{reader: &reader}
	e, _ := reader.Watch(cluster, w)
	l, _ := c.Watch(listener, g)
	spec := Spec{Name: "l", TypeURL: xdstype.ListenerV3, Value: message("l", "")}
	updates := []Update{
		{Scope: testScope, TypeURL: xdstype.ListenerV3, Changes: []Change{{Name: "l", Resource: NewResource(spec)}}},
		update(Change{Name: "c", Resource: res("c", "1", "x")}),
	}
	InOrder(updates)
	if updates[0].TypeURL != testType {
		t.Error("a Listener comes before a Cluster")
	}
	c.Apply(updates...)
	if g.could {
		t.Error("a reader got in between two types of one change")
	}
	if e.State().Status != Present || l.State().Status != Present || w.woken != 1 {
		t.Errorf("the Cluster is %s, the Listener %s; woken %d times", e.State().Status, l.State().Status, w.woken)
	}
}

// Two updates of one set in one call are stored one after the other.
func TestTheSecondUpdateOfASetFollowsTheFirst(t *testing.T) {
	c := New(newFeeds(), Options{IdleEntries: 10})
	defer c.Close()
	s := c.WatchSet(testKey(Wildcard), &setCounter{})
	whole := func(names ...string) Update {
		u := SetUpdate{Extent: Whole}
		for _, name := range names {
			u.Changes = append(u.Changes, Change{Name: name, Resource: res(name, "1", "")})
		}
		return setUpdate(u)
	}
	c.Apply(whole("a", "b"), whole("b", "c"))
	if s.Len() != 2 || s.Member("a") != nil {
		t.Errorf("the set has %d members", s.Len())
	}
}

func TestUpdatesAreCutByScope(t *testing.T) {
	other := testScope
	other.OldStyle = true
	updates := []Update{{Scope: testScope, TypeURL: testType}, {Scope: other, TypeURL: testType}, {Scope: testScope, TypeURL: xdstype.RouteV3}}
	InOrder(updates)
	var got []int
	for of := range EachScope(updates) {
		got = append(got, len(of))
	}
	if !slices.Equal(got, []int{2, 1}) {
		t.Errorf("scopes have %v updates", got)
	}
}
