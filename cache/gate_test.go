package cache

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stuck is a watcher that delays an update while it is being stored.
type stuck struct {
	Watch
	in, out chan struct{}
}

func newStuck() *stuck { return &stuck{in: make(chan struct{}), out: make(chan struct{})} }

func (s *stuck) Changed() Waker {
	close(s.in)
	<-s.out
	return nil
}

// storeStuck begins to store an update of a scope that does not finish before release is called.
// release waits for that.
func storeStuck(c *Cache, scope Scope) (release func()) {
	s := newStuck()
	k := Key{Scope: scope, TypeURL: testType, Name: "held up"}
	c.Watch(k, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Apply(Update{Scope: scope, TypeURL: testType, Changes: []Change{{Name: k.Name, Resource: res(k.Name, "1", "x")}}})
	}()
	<-s.in
	return func() {
		close(s.out)
		<-done
		c.Unwatch(s)
	}
}

// wakes counts.
type wakes struct{ n atomic.Int64 }

func (w *wakes) Wake() { w.n.Add(1) }

// An update that is being stored delays only readers of its own scope.
func TestAnUpdateHoldsUpNothingOfOtherScopes(t *testing.T) {
	for _, other := range []Scope{
		{Authority: "b"},
		{Authority: "a", Partition: "p"},
		{Authority: "a", OldStyle: true},
		{Authority: "a", Params: "x=1"},
		{Authority: "a", Derived: Resolved},
	} {
		t.Run(other.String(), func(t *testing.T) {
			c := New(newFeeds(), Options{IdleEntries: 10})
			defer c.Close()
			release := storeStuck(c, testScope)
			k := Key{Scope: other, TypeURL: testType, Name: "x"}
			reader, w, sw := c.NewReader(), &counter{}, &setCounter{}
			e, _ := reader.Watch(k, w)
			reader.WatchSet(Key{Scope: other, TypeURL: testType, Name: Wildcard}, sw)
			c.Apply(Update{Scope: other, TypeURL: testType, Changes: []Change{{Name: "x", Resource: res("x", "1", "y")}}})
			if e.State().Status != Present || w.woken != 1 {
				t.Errorf("the other scope's entry is %s, and its watcher was woken %d times", e.State().Status, w.woken)
			}
			if !reader.TryBeginRead(nil) {
				t.Error("the other scope cannot be held")
			}
			reader.EndRead()
			reader.Unwatch(sw)
			reader.Unwatch(w)
			c.Stats()
			release()
		})
	}
}

// A reader of several scopes does not wait for one of them, and does not keep the others locked until it can have all.
func TestAReaderHoldsAllScopesOrNone(t *testing.T) {
	c := New(newFeeds(), Options{IdleEntries: 10})
	defer c.Close()
	reader, other := c.NewReader(), Scope{Authority: "b"}
	for _, scope := range []Scope{other, testScope} {
		reader.Watch(Key{Scope: scope, TypeURL: testType, Name: "x"}, &counter{})
	}
	release := storeStuck(c, testScope)
	w := &wakes{}
	if reader.TryBeginRead(w) {
		t.Fatal("the scopes could be held while an update was being stored")
	}
	c.Apply(Update{Scope: other, TypeURL: testType, Changes: []Change{{Name: "x", Resource: res("x", "1", "y")}}})
	if n := w.n.Load(); n != 0 {
		t.Errorf("the reader was woken %d times before the update was stored", n)
	}
	release()
	if n := w.n.Load(); n != 1 {
		t.Errorf("the reader was woken %d times, want once", n)
	}
	if !reader.TryBeginRead(w) {
		t.Error("the scopes cannot be held after the update")
	}
	reader.EndRead()
}

// ReadLocks lock scopes one by one, and wait for each of them once.
func TestHoldsAwaitAScopeOnce(t *testing.T) {
	c := New(newFeeds(), Options{IdleEntries: 10})
	defer c.Close()
	here, there := &counter{}, &counter{}
	c.Watch(testKey("x"), here)
	c.Watch(Key{Scope: Scope{Authority: "b"}, TypeURL: testType, Name: "x"}, there)
	release := storeStuck(c, testScope)
	var h ReadLocks
	w := &wakes{}
	for range 3 {
		if h.TryBeginRead(here, w) || !h.TryBeginRead(there, w) {
			t.Fatal("want the scope without an update held, and the other one not")
		}
	}
	h.EndRead()
	release()
	if n := w.n.Load(); n != 1 {
		t.Errorf("woken %d times, want once", n)
	}
	if !h.TryBeginRead(here, w) || len(h.awaited) != 0 {
		t.Errorf("the scope cannot be held after the update; %d are awaited", len(h.awaited))
	}
	h.EndRead()
}

// However long an update is, a watcher that comes or leaves waits only for a part of it. Readers
// still see the update as a whole.
func TestALongUpdateLetsWatchersComeAndGo(t *testing.T) {
	const attempts = 50
	for range attempts {
		if comeAndGo(t) {
			return
		}
	}
	t.Errorf("in %d updates nobody could come in the middle of one", attempts)
}

func comeAndGo(t *testing.T) (between bool) {
	const members = 50 * atOnce
	c := New(newFeeds(), Options{IdleEntries: 10})
	defer c.Close()
	changes := make([]Change, members)
	for i := range changes {
		name := fmt.Sprint(i)
		changes[i] = Change{Name: name, Resource: res(name, "1", "x")}
	}
	k, first := testKey(Wildcard), &setCounter{}
	set := c.WatchSet(k, first)
	var came sync.WaitGroup
	stop := make(chan struct{})
	came.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			w, reader := &setCounter{}, c.NewReader()
			status, _ := set.Status()
			s := reader.WatchSet(k, w)
			n := s.Len()
			if between = between || n > 0 && n < members; status == Present && n < members {
				t.Errorf("with %d of %d members the set is %s", n, members, status)
			}
			reader.BeginRead()
			if n := s.Len(); n != 0 && n != members {
				t.Errorf("a reader that holds the scope sees %d members of %d", n, members)
			}
			reader.EndRead()
			reader.Unwatch(w)
		}
	})
	full(c, "", changes...)
	close(stop)
	came.Wait()
	if set.Len() != members || first.notified == 0 {
		t.Errorf("%d members, want %d; who watched from the beginning was notified %d times", set.Len(), members, first.notified)
	}
	return between
}

// A reader of two scopes that sees an update of the second also sees all earlier updates of the
// first, and never sees a part of an update, under concurrent updates of both.
func TestHoldsAreOfOneMoment(t *testing.T) {
	const rounds, readers = 2000, 4
	c := New(newFeeds(), Options{IdleEntries: 10})
	defer c.Close()
	scopes := []Scope{{Authority: "a"}, {Authority: "b", Partition: "p"}}
	write := func(scope Scope, n int) {
		r := res("x", fmt.Sprint(n), fmt.Sprint(n))
		version := NewOriginVersion(scope.Authority, fmt.Sprint(n))
		c.Apply(Update{Scope: scope, TypeURL: testType,
			Changes: []Change{{Name: "x", Resource: r, Origin: version}},
			Sets:    []SetUpdate{{Name: Wildcard, Extent: Whole, Changes: []Change{{Name: "x", Resource: r}}, Origin: version}}})
	}
	var entries []*Entry
	var sets []*Set
	keeper := c.NewReader()
	for _, scope := range scopes {
		e, _ := keeper.Watch(Key{Scope: scope, TypeURL: testType, Name: "x"}, &entryStream{stream: newStream()})
		entries = append(entries, e)
		sets = append(sets, keeper.WatchSet(Key{Scope: scope, TypeURL: testType, Name: Wildcard}, &setStream{stream: newStream()}))
		write(scope, 0)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for seed := range readers {
		wg.Go(func() {
			reader := c.NewReader()
			for i := range scopes {
				scope := scopes[(i+seed)%2] // in either order
				reader.Watch(Key{Scope: scope, TypeURL: testType, Name: "x"}, &entryStream{stream: newStream()})
			}
			for {
				select {
				case <-stop:
					return
				default:
				}
				reader.BeginRead()
				// The later scope is looked at first: what is missing in it must be seen in the other.
				var seen [2]int
				for i := range scopes {
					if _, err := fmt.Sscan(entries[i].State().Resource.Version(), &seen[i]); err != nil {
						t.Error(err)
					}
					if m := sets[i].Member("x"); m.Version() != fmt.Sprint(seen[i]) || sets[i].Origin().String() != m.Version() {
						t.Errorf("the entry is of version %d, the set of %s, the origin's is %s", seen[i], m.Version(), sets[i].Origin())
					}
				}
				if seen[1] > seen[0] || seen[0] > seen[1]+1 {
					t.Errorf("the scope written first is at %d, the other at %d", seen[0], seen[1])
				}
				reader.EndRead()
			}
		})
	}
	for n := range rounds {
		for _, scope := range scopes {
			write(scope, n+1)
		}
	}
	close(stop)
	wg.Wait()
}

// A scope of which the last topic ends may begin again in the same moment.
func TestScopesBeginAndEndUnderConcurrency(t *testing.T) {
	c := New(newFeeds(), Options{IdleEntries: 1, Linger: time.Nanosecond})
	defer c.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			reader := c.NewReader()
			for n := range 1000 {
				w := &entryStream{stream: newStream()}
				k := testKey(fmt.Sprint(n % 2))
				e, _ := reader.Watch(k, w)
				c.Apply(update(Change{Name: k.Name, Resource: res(k.Name, "1", fmt.Sprint(n))}))
				reader.BeginRead()
				if e.State().Status != Present {
					t.Errorf("what is watched got no update: %s", e.State().Status)
				}
				reader.EndRead()
				reader.Unwatch(w)
			}
		})
	}
	wg.Wait()
}
