package collections

import (
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// entrySub watches an entry.
type entrySub struct{ cache.Watch }

func (*entrySub) Changed() cache.Waker { return nil }

// stuckWatcher blocks the update of which it is notified.
type stuckWatcher struct {
	cache.SetWatch
	in, out chan struct{}
}

func (s *stuckWatcher) Changed() cache.Waker {
	close(s.in)
	<-s.out
	return nil
}

// resolved watches the derived topic of a name.
func (w *workWorld) resolved(name string) *cache.Entry {
	k := keyOf(long(name))
	k.Scope.Derived = cache.Resolved
	e, _ := w.cache.Watch(k, &entrySub{})
	return e
}

// While an update of one authority is being stored, changes of other authorities are evaluated.
// Topics that depend on the first authority are evaluated after that, with the whole update.
func TestEvaluationsOfOneAuthorityWaitForNoOther(t *testing.T) {
	w := newWorkWorld(t, "b/*")
	for _, name := range []string{"a/x", "b/y"} {
		w.says[long(name)] = w.cluster(name, "1")
	}
	w.says[long("a/r")] = w.redirect("a/r", "b/y")
	w.says[long("a/s")] = w.redirect("a/s", "b/y")
	x, r, s, members := w.resolved("a/x"), w.resolved("a/r"), w.resolved("a/s"), w.watch()
	w.want(members(), 0)

	stuck := &stuckWatcher{in: make(chan struct{}), out: make(chan struct{})}
	y, stored := keyOf(long("b/y")), make(chan struct{})
	w.cache.WatchSet(cache.Key{Scope: y.Scope, TypeURL: y.TypeURL, Name: long("b/*")}, stuck)
	content := w.cluster("b/y", "2")
	go func() {
		defer close(stored)
		w.cache.Apply(cache.Update{Scope: y.Scope, TypeURL: y.TypeURL, Changes: []cache.Change{{Name: y.Name, Resource: content}},
			Sets: []cache.SetUpdate{{Name: long("b/*"), Changes: []cache.Change{{Name: y.Name, Resource: content}}}}})
	}()
	<-stuck.in

	w.say("a/x", w.cluster("a/x", "2"))
	w.say("a/s", w.cluster("a/s", "2"))
	w.resolver.runOnce(time.Now())
	if got := x.State().Resource.Version(); got != "2" {
		t.Errorf("what has nothing to do with the other authority is of version %s, want 2", got)
	}
	version := func(e *cache.Entry) string { return e.State().Resource.Version()[:1] }
	if got := version(r); got != "1" {
		t.Errorf("what leads to the other authority is of version %s, of an update that is not stored yet", got)
	}
	if p := &w.resolver.parked; len(p.lookups) != 2 || len(p.steps) != 1 {
		t.Errorf("%d evaluations of names and %d of sets wait for the update, want 2 and 1", len(p.lookups), len(p.steps))
	}
	if next, timed := w.resolver.runOnce(time.Now()); timed && next == 0 {
		t.Error("what waits for the update keeps the resolver busy")
	}

	close(stuck.out)
	<-stored
	w.want(members(), 1)
	if got := version(r) + version(s); got != "22" {
		t.Errorf("in the end the versions are %s, want 22", got)
	}
	if n := len(w.resolver.parked.lookups) + len(w.resolver.parked.steps); n != 0 {
		t.Errorf("%d evaluations still wait", n)
	}
}
