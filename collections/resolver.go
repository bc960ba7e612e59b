package collections

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
)

// Topics is where leaf topics are watched and derived ones are written: a
// *cache.Cache.
type Topics interface {
	Watch(cache.Key, cache.Watcher) (e *cache.Entry, withheld *cache.Resource)
	WatchSet(cache.Key, cache.SetWatcher) *cache.Set
	Unwatch(cache.Watching)
	Apply(cache.Update)
}

// Names says where names belong. It must be safe for concurrent use.
type Names interface {
	// Key returns the key of the leaf topic of a canonical name or glob that is
	// asked for as typeURL. The error, for clients' eyes, says why there is none.
	Key(typeURL, name string) (cache.Key, error)
	// Policy returns when alternatives take the place of an authority's resources.
	Policy(authority string) Policy
	// Unreachable says that what feeds a scope cannot be reached, and since when.
	Unreachable(cache.Scope) (since time.Time, down bool)
}

// Options are a Resolver's settings.
type Options struct {
	// Depth is how many redirects and alternatives in a row are followed: 10 by
	// default.
	Depth int
	// Views are what views are made of, by Scope.Derived.
	Views map[string]View
	// Speaks, if not nil, says whether what an authority says of another one's names is
	// believed.
	Speaks func(authority, other string) bool
	Log    *slog.Logger
}

const defaultDepth = 10

// Resolver is the cache.Source of all derived topics.
type Resolver struct {
	topics Topics
	names  Names
	depth  int
	speaks func(authority, other string) bool
	log    *slog.Logger
	wake   chan struct{}
	stop   chan struct{}
	done   chan struct{}
	stats  struct{ loops atomic.Uint64 }

	// inbox is what the goroutine is to look at. It comes last in the order of locks.
	inbox struct {
		sync.Mutex
		notes []note
		dirty []dirtier // leaves that have changed
		reach bool      // reachability has changed
		freed bool      // an update has been stored that something waits for
	}

	// Of the goroutine.
	nodes   map[cache.Key]node
	leaves  map[cache.Key]*leaf
	follows map[*follow]struct{} // those to be evaluated
	changed map[node]struct{}    // those that have something to write
	// choosing are the follows that have chosen, or may, between alternatives; due
	// those that are to be evaluated again at some time.
	choosing  map[*follow]struct{}
	due       due
	loops     map[string]int // how many follows have come upon each, see noteLoops
	loopLines loglines.Lines
	sets      *sets
	turn      turn
	holds     cache.Holds
	parked    parked
	// lines are those in which something is waiting; entryLines those of them that are not
	// of a set, by authority.
	lines      []*line
	entryLines map[string]*line
	// rooms are of those of the maps that clients fill.
	rooms struct{ nodes, leaves, follows, changed, choosing, entryLines cache.Room }
}

// note is one call of Start, Refresh or Stop.
type note struct {
	key         cache.Key
	again, stop bool
}

// dirtier is a leaf topic that has changed.
type dirtier interface {
	// dirty marks all that depends on it. It is called by the goroutine.
	dirty()
	// queue is whether it is in the inbox already; guarded by inbox.
	queue() *bool
}

// node is a derived topic.
type node interface {
	key() cache.Key
	// write appends what has changed since it was last called to the update of the
	// node's scope and type.
	write(*cache.Update)
	// refresh has what is not for newcomers asked for anew (Resource.DoNotCache).
	refresh()
	close()
}

// NewResolver begins to feed derived topics. Close ends it.
func NewResolver(topics Topics, names Names, o Options) *Resolver {
	r := newResolver(topics, names, o)
	go r.run()
	return r
}

func newResolver(topics Topics, names Names, o Options) *Resolver {
	if o.Depth == 0 {
		o.Depth = defaultDepth
	}
	return &Resolver{
		topics: topics, names: names, depth: o.Depth, speaks: o.Speaks, log: o.Log,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		nodes:    map[cache.Key]node{},
		leaves:   map[cache.Key]*leaf{},
		follows:  map[*follow]struct{}{},
		changed:  map[node]struct{}{},
		choosing: map[*follow]struct{}{},
		loops:    map[string]int{},
		sets:     newSets(o.Views),

		entryLines: map[string]*line{},
	}
}

// Start implements cache.Source.
func (r *Resolver) Start(k cache.Key) { r.note(note{key: k}) }

// Refresh implements cache.Source.
func (r *Resolver) Refresh(k cache.Key) { r.note(note{key: k, again: true}) }

// Stop implements cache.Source.
func (r *Resolver) Stop(k cache.Key) { r.note(note{key: k, stop: true}) }

// ReachabilityChanged has the choices between alternatives made anew. It does not
// block, and may be called with any lock held.
func (r *Resolver) ReachabilityChanged() {
	r.inbox.Lock()
	r.inbox.reach = true
	r.inbox.Unlock()
	r.Wake()
}

// Loops returns how many loops of redirects were found since the start.
func (r *Resolver) Loops() uint64 { return r.stats.loops.Load() }

// Close ends the feeding, and waits for that. Nothing is watched any more then.
func (r *Resolver) Close() {
	close(r.stop)
	<-r.done
}

func (r *Resolver) note(n note) {
	r.inbox.Lock()
	r.inbox.notes = append(r.inbox.notes, n)
	r.inbox.Unlock()
	r.Wake()
}

// Wake implements cache.Waker.
func (r *Resolver) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// mark is what a watcher's Changed does.
func (r *Resolver) mark(d dirtier) cache.Waker {
	r.inbox.Lock()
	defer r.inbox.Unlock()
	if queued := d.queue(); !*queued {
		*queued = true
		r.inbox.dirty = append(r.inbox.dirty, d)
	}
	return r
}

func (r *Resolver) run() {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.wake:
		case <-timer.C:
		case <-r.stop:
			r.closeNodes()
			return
		}
		if next, ok := r.round(time.Now()); ok {
			timer.Reset(next)
		}
	}
}

func (r *Resolver) closeNodes() {
	for _, n := range r.nodes {
		n.close()
	}
}

// round brings everything up to date, and says in what time there is something to
// be looked at again, if there is.
func (r *Resolver) round(now time.Time) (next time.Duration, timed bool) {
	r.inbox.Lock()
	notes, dirty, reach, freed := r.inbox.notes, r.inbox.dirty, r.inbox.reach, r.inbox.freed
	r.inbox.notes, r.inbox.dirty, r.inbox.reach, r.inbox.freed = nil, nil, false, false
	for _, d := range dirty {
		*d.queue() = false
	}
	r.inbox.Unlock()

	if freed {
		r.unpark()
	}
	for _, n := range notes {
		r.take(n)
	}
	for _, d := range dirty {
		d.dirty()
	}
	if reach {
		for f := range r.choosing {
			r.dirty(f)
		}
	}
	for f := r.due.take(now); f != nil; f = r.due.take(now) {
		r.dirty(f)
	}
	r.work(now, reach)
	updates := map[updateKey]*cache.Update{}
	for n := range r.changed {
		r.changed = cache.Without(r.changed, &r.rooms.changed, n)
		r.write(n, updates)
	}
	r.tellClashes()
	for _, u := range updates {
		if len(u.Changes)+len(u.Sets) > 0 {
			r.topics.Apply(*u)
		}
	}
	if len(r.lines) > 0 {
		return 0, true // and then the rest
	}
	if len(r.due) > 0 {
		next, timed = r.due[0].dueAt.Sub(now), true
	}
	return r.sets.next(now, next, timed)
}

type updateKey struct {
	scope   cache.Scope
	typeURL string
}

// take takes a note.
func (r *Resolver) take(n note) {
	old := r.nodes[n.key]
	switch {
	case n.stop && old != nil:
		r.nodes = cache.Without(r.nodes, &r.rooms.nodes, n.key)
		old.close()
		r.changed = cache.Without(r.changed, &r.rooms.changed, old) // which closing may add to
	case n.stop:
	case n.again && old != nil:
		old.refresh()
	case !n.again && old == nil:
		r.nodes[n.key] = r.open(n.key)
	}
}

// open makes the node of a derived topic.
func (r *Resolver) open(k cache.Key) node {
	view, isView := r.sets.views[k.Scope.Derived]
	switch {
	case isView && k.IsSet():
		return newViewNode(r, k, view)
	case isView:
		return newListNode(r, k, view)
	case k.IsSet():
		return newResolvedNode(r, k)
	}
	return newEntryNode(r, k)
}

// write has a node write to the update that it belongs to.
func (r *Resolver) write(n node, updates map[updateKey]*cache.Update) {
	k := n.key()
	id := updateKey{k.Scope, k.TypeURL}
	if updates[id] == nil {
		updates[id] = &cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	}
	n.write(updates[id])
}
