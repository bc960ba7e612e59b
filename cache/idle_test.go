package cache

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Clients can make up any number of names and globs. Of the topics without a resource only the newest
// few linger, and they do not displace topics with resources.
func TestFewTopicsLingerInWhichThereIsNothing(t *testing.T) {
	const many = 1000
	c := New(nothingFed{}, Options{Linger: time.Hour, IdleEntries: 10 * many})
	defer c.Close()
	visit := func(kind string, i int) {
		k := Key{Scope: Scope{Authority: "a"}, TypeURL: "t", Name: fmt.Sprintf("xdstp://a/t/%s/%d", kind, i)}
		switch kind {
		case "set":
			k.Name += "/*"
			w := &setCounter{}
			c.WatchSet(k, w)
			c.Unwatch(w)
		default:
			w := &counter{}
			c.Watch(k, w)
			if kind == "there" {
				r := NewResource(Spec{Name: k.Name, TypeURL: k.TypeURL, Version: "1"})
				c.Apply(Update{Scope: k.Scope, TypeURL: k.TypeURL, Changes: []Change{{Name: k.Name, Resource: r}}})
			}
			c.Unwatch(w)
		}
	}
	for i := range many {
		for _, kind := range []string{"there", "made-up", "set"} {
			visit(kind, i)
		}
	}
	s := c.Stats()
	if s.Idle != many+maxIdleEmpty || s.Entries != many+maxIdleEmpty/2 || s.Sets != maxIdleEmpty/2 {
		t.Errorf("%+v linger, want %d entries with a resource and %d topics without", s, many, maxIdleEmpty)
	}

	// One that has come to have a resource since lingers as any other.
	scope := Scope{Authority: "a"}
	name := fmt.Sprintf("xdstp://a/t/made-up/%d", many-1)
	c.Apply(Update{Scope: scope, TypeURL: "t", Changes: []Change{{Name: name, Resource: NewResource(Spec{Name: name, TypeURL: "t", Version: "1"})}}})
	for i := range many {
		visit("set", i)
	}
	if s := c.Stats(); s.Idle != many+1+maxIdleEmpty || s.Entries != many+1 {
		t.Errorf("%+v linger, want %d entries with a resource and %d sets", s, many+1, maxIdleEmpty)
	}
}

// The last topic of a scope ends, and begins again at the same moment. Its source stops before it starts again:
// otherwise the source would not feed a topic that is watched.
func TestATopicBeginsAgainAfterItHasEnded(t *testing.T) {
	k := Key{Scope: Scope{Authority: "a"}, TypeURL: "t", Name: "n"}
	s := &restartedSource{}
	c := New(s, Options{Linger: time.Hour, IdleEntries: 1})
	defer c.Close()
	var again sync.WaitGroup
	s.stop = func() {
		again.Go(func() { c.Watch(k, &counter{}) })
		for range 1000 { // time for the other goroutine
			runtime.Gosched()
		}
		if s.starts.Load() > 1 {
			t.Error("the topic's source was started again before it was stopped")
		}
	}
	w := &counter{}
	c.Watch(k, w)
	c.Unwatch(w)
	if !c.GiveUpIdle(func(Scope) bool { return true }) {
		t.Fatal("the scope is not idle")
	}
	again.Wait()
	if n := s.starts.Load(); n != 2 {
		t.Errorf("the source was started %d times, want 2", n)
	}
}

type restartedSource struct {
	nothingFed
	starts atomic.Int64
	stop   func()
}

func (s *restartedSource) Start(Key) { s.starts.Add(1) }
func (s *restartedSource) Stop(Key)  { s.stop() }
