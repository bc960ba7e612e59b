package cache

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// origin is an authority that feeds the started topics: first with its state, then with changes.
type origin struct {
	*feeds
	c     *Cache
	kick  chan struct{}
	fresh []Key // guarded by feeds.mu

	members map[string]*Resource // only for the feeding goroutine
}

func (o *origin) Start(k Key) {
	o.feeds.Start(k)
	o.mu.Lock()
	o.fresh = append(o.fresh, k)
	o.mu.Unlock()
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// feed sends the state of the topics that were started.
func (o *origin) feed() {
	o.mu.Lock()
	fresh := o.fresh
	o.fresh = nil
	o.mu.Unlock()
	for _, k := range fresh {
		if k.Name != Wildcard {
			o.c.Apply(update(Change{Name: k.Name, Resource: o.members[k.Name]}))
			continue
		}
		var all []Change
		for name, r := range o.members {
			all = append(all, Change{Name: name, Resource: r})
		}
		full(o.c, "", all...)
	}
}

// change gives some members another state, everywhere in one update.
func (o *origin) change(r *rand.Rand) {
	var changes []Change
	for range 1 + r.IntN(4) {
		c := Change{Name: fmt.Sprint(r.IntN(8))}
		if r.IntN(3) > 0 {
			c.Resource = res(c.Name, "", string(rune('a'+r.IntN(5))))
		}
		changes = append(changes, c)
		if c.Resource == nil {
			delete(o.members, c.Name)
		} else {
			o.members[c.Name] = c.Resource
		}
	}
	u := setUpdate(SetUpdate{Changes: changes})
	u.Changes = changes
	o.c.Apply(u)
}

// stream is a watcher as clients' streams are: notified, it reads when it likes.
type stream struct {
	dirty atomic.Bool
	wake  chan struct{}
}

func newStream() stream { return stream{wake: make(chan struct{}, 1)} }

func (s *stream) mark(w Waker) Waker {
	if s.dirty.Swap(true) {
		return nil
	}
	return w
}

func (s *stream) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

type entryStream struct {
	Watch
	stream
}

func (s *entryStream) Changed() Waker { return s.mark(s) }

type setStream struct {
	SetWatch
	stream
	have map[string]uint64
}

func (s *setStream) Changed() Waker { return s.mark(s) }

func (s *setStream) read(set *Set, r *rand.Rand) {
	s.dirty.Store(false)
	all := false
	for !all {
		n := r.IntN(5)
		all = set.Since(&s.SetWatch, func(m Member) bool {
			name, r := content(m)
			if r == nil {
				delete(s.have, name)
			} else {
				s.have[name] = r.Hash()
			}
			n--
			return n > 0
		})
	}
}

// However watchers come, go and read while updates pass, in the end each has
// what the origin has.
func TestEverybodyEndsWithTheOriginsState(t *testing.T) {
	o := &origin{feeds: newFeeds(), kick: make(chan struct{}, 1), members: map[string]*Resource{}}
	o.c = New(o, Options{Linger: time.Millisecond, IdleEntries: 3})
	defer o.c.Close()

	var clients, source sync.WaitGroup
	done := make(chan struct{})
	source.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-o.kick:
				o.feed()
			case <-done:
				o.feed()
				return
			default:
				o.change(r)
				runtime.Gosched()
			}
		}
	})

	const watchers = 8
	entries := make([]*Entry, watchers)
	entryStreams := make([]*entryStream, watchers)
	sets := make([]*Set, watchers)
	setStreams := make([]*setStream, watchers)
	for i := range watchers {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(i)))
			for n := range 300 {
				if n > 0 {
					o.c.Unwatch(entryStreams[i])
				}
				w := &entryStream{stream: newStream()}
				entryStreams[i] = w
				if key := testKey(fmt.Sprint(r.IntN(8))); r.IntN(2) == 0 {
					entries[i] = entryOf(o.c.Watch(key, w))
				} else {
					w.Group = &WatchGroup{Changed: func(*Watch) Waker { return w.Changed() }}
					entries[i] = entryOf(o.c.WatchInGroup(key, &w.Watch))
				}
				entries[i].State()
			}
		})
		clients.Go(func() {
			r := rand.New(rand.NewPCG(4, uint64(i)))
			for n := range 300 {
				if n%10 == 0 {
					if n > 0 {
						o.c.Unwatch(setStreams[i])
					}
					setStreams[i] = &setStream{stream: newStream(), have: map[string]uint64{}}
					sets[i] = o.c.WatchSet(testKey(Wildcard), setStreams[i])
				}
				setStreams[i].read(sets[i], r)
				sets[i].Len()
			}
		})
	}
	clients.Wait()
	close(done)
	source.Wait()

	want := map[string]uint64{}
	for name, r := range o.members {
		want[name] = r.Hash()
	}
	r := rand.New(rand.NewPCG(5, 6))
	for i := range watchers {
		e := entries[i]
		state := e.State()
		if r := o.members[e.Key().Name]; (state.Resource == nil) != (r == nil) || r != nil && state.Resource.Hash() != r.Hash() {
			t.Errorf("entry %s is %v, want %v", e.Key().Name, state.Status, r)
		}
		if setStreams[i].read(sets[i], r); fmt.Sprint(setStreams[i].have) != fmt.Sprint(want) {
			t.Errorf("a watcher of the set has %v, want %v", setStreams[i].have, want)
		}
		o.c.Unwatch(entryStreams[i])
		o.c.Unwatch(setStreams[i])
	}
	// What was started is stopped, but for those whose time is not over yet, and
	// perhaps one that is just being given up.
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken != "" || len(o.running) > 3+1 {
		t.Errorf("%d are fed: %s", len(o.running), o.broken)
	}
}

// together checks, when it is woken, that an update is there as a whole.
type together struct {
	Watch
	onWake func()
}

func (w *together) Changed() Waker { return w }

func (w *together) Wake() { w.onWake() }

type togetherSet struct {
	SetWatch
	onWake func()
}

func (w *togetherSet) Changed() Waker { return w }

func (w *togetherSet) Wake() { w.onWake() }

func TestUpdateIsSeenAsAWhole(t *testing.T) {
	c := New(newFeeds(), Options{Linger: time.Hour})
	defer c.Close()
	var entries []*Entry
	var set *Set
	var generation *Resource
	woken := 0
	check := func() {
		woken++
		for _, e := range entries {
			if got := e.State().Resource; got == nil || got.Hash() != generation.Hash() {
				t.Errorf("%s is not of this update", e.Key().Name)
			}
		}
		if got := set.Member("0"); got == nil || got.Hash() != generation.Hash() {
			t.Error("the set is not of this update")
		}
	}
	set = c.WatchSet(testKey(Wildcard), &togetherSet{onWake: check})
	for i := range 5 {
		entries = append(entries, entryOf(c.Watch(testKey(fmt.Sprint(i)), &together{onWake: check})))
	}
	for i := range 10 {
		generation = res("all", "", fmt.Sprint(i))
		var changes []Change
		for n := range entries {
			changes = append(changes, Change{Name: fmt.Sprint(n), Resource: generation})
		}
		u := setUpdate(SetUpdate{Changes: slices.Clone(changes)})
		u.Changes = changes
		c.Apply(u)
	}
	if want := 10 * 6; woken != want {
		t.Errorf("woken %d times, want %d", woken, want)
	}
}
