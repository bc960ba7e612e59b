package collections

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
)

// Topics is where the Resolver watches leaf topics and writes derived ones: a
// *cache.Cache.
type Topics interface {
	Watch(cache.Key, cache.Watcher) (e *cache.Entry, withheld *cache.Resource)
	WatchSet(cache.Key, cache.SetWatcher) *cache.Set
	Unwatch(cache.Watching)
	Apply(cache.Update)
}

// Names maps names to topics and policies. It must be safe for concurrent use.
type Names interface {
	// Key returns the key of the leaf topic of a canonical name or glob that a client
	// requests as typeURL. Clients are sent the error.
	Key(typeURL, name string) (cache.Key, error)
	// Policy returns when alternatives replace an authority's resources.
	Policy(authority string) Policy
	// Unreachable reports whether the servers of a scope are unreachable, and since when.
	Unreachable(cache.Scope) (since time.Time, down bool)
}

// Options are a Resolver's settings.
type Options struct {
	// Depth is the maximal number of redirects and alternatives in a row: 10 by
	// default.
	Depth int
	// Views are the configured views, by Scope.Derived.
	Views map[string]View
	// SpeaksFor, if not nil, reports whether an authority may send resources with names
	// of another one.
	SpeaksFor func(authority, other string) bool
	Log       *slog.Logger
}

const defaultDepth = 10

// Resolver is the cache.Source of all derived topics. Its exported methods are safe for
// concurrent use.
type Resolver struct {
	topics    Topics
	names     Names
	depth     int
	speaksFor func(authority, other string) bool
	log       *slog.Logger
	wake      chan struct{}
	stop      chan struct{}
	done      chan struct{}
	stats     struct{ loops atomic.Uint64 }

	// inbox has what the goroutine has not processed yet. Its lock comes last in the
	// order of locks.
	inbox struct {
		sync.Mutex
		notes []note
		dirty []changedTopic // leaf topics that have changed
		reach bool           // reachability has changed
		freed bool           // an update is stored for which parked work waits
	}

	// The fields below belong to the goroutine.
	derived      map[cache.Key]derived
	leaves       map[cache.Key]*leaf
	dirtyLookups map[*lookup]struct{} // that need an evaluation
	changed      map[derived]struct{} // that have something to write
	// choosing are the lookups that depend on reachability, mostly by an alternative;
	// timers those that need an evaluation at some time.
	choosing  map[*lookup]struct{}
	timers    lookupTimers
	loops     map[string]int // how many lookups have met each, see recordLoops
	loopLines loglines.Lines
	sets      *sets
	budget    workBudget
	holds     cache.Holds
	parked    parked
	// queues are those with work, in the order of their turns; entryQueues those of
	// entries, by authority.
	queues      []*workQueue
	entryQueues map[string]*workQueue
	// rooms shrink the maps that clients fill.
	rooms struct{ nodes, leaves, follows, changed, choosing, entryLines cache.Room }
}

// note is one call of Start, Refresh or Stop.
type note struct {
	key           cache.Key
	refresh, stop bool
}

// changedTopic is a leaf topic that has changed.
type changedTopic interface {
	// onChange schedules everything that depends on the topic. The goroutine calls it.
	onChange()
	// inInbox points to whether the topic is in the inbox; guarded by inbox.
	inInbox() *bool
}

// derived is a derived topic.
type derived interface {
	key() cache.Key
	// appendTo appends the changes since its last call to the update of the topic's
	// scope and type.
	appendTo(*cache.Update)
	// refresh requests anew what must not be served to new subscribers from the cache
	// (Resource.DoNotCache).
	refresh()
	close()
}

// NewResolver begins to feed derived topics. Close stops it.
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
		topics: topics, names: names, depth: o.Depth, speaksFor: o.SpeaksFor, log: o.Log,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		derived:      map[cache.Key]derived{},
		leaves:       map[cache.Key]*leaf{},
		dirtyLookups: map[*lookup]struct{}{},
		changed:      map[derived]struct{}{},
		choosing:     map[*lookup]struct{}{},
		loops:        map[string]int{},
		sets:         newSets(o.Views),

		entryQueues: map[string]*workQueue{},
	}
}

// Start implements cache.Source.
func (r *Resolver) Start(k cache.Key) { r.note(note{key: k}) }

// Refresh implements cache.Source.
func (r *Resolver) Refresh(k cache.Key) { r.note(note{key: k, refresh: true}) }

// Stop implements cache.Source.
func (r *Resolver) Stop(k cache.Key) { r.note(note{key: k, stop: true}) }

// ReachabilityChanged repeats the choices between alternatives. It does not block, and
// may be called with any lock held.
func (r *Resolver) ReachabilityChanged() {
	r.inbox.Lock()
	r.inbox.reach = true
	r.inbox.Unlock()
	r.Wake()
}

// Loops returns the number of redirect loops found since the start.
func (r *Resolver) Loops() uint64 { return r.stats.loops.Load() }

// Close stops the Resolver and waits for it. The Resolver then watches nothing.
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

// enqueue adds a changed topic to the inbox: it is the Changed of all watchers.
func (r *Resolver) enqueue(d changedTopic) cache.Waker {
	r.inbox.Lock()
	defer r.inbox.Unlock()
	if queued := d.inInbox(); !*queued {
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
			r.closeAll()
			return
		}
		if next, ok := r.runOnce(time.Now()); ok {
			timer.Reset(next)
		}
	}
}

func (r *Resolver) closeAll() {
	for _, n := range r.derived {
		n.close()
	}
}

// runOnce processes the inbox and a bounded amount of work. It returns the time until
// it has to run again without being woken; timed is false if there is none.
func (r *Resolver) runOnce(now time.Time) (next time.Duration, timed bool) {
	r.inbox.Lock()
	notes, dirty, reach, freed := r.inbox.notes, r.inbox.dirty, r.inbox.reach, r.inbox.freed
	r.inbox.notes, r.inbox.dirty, r.inbox.reach, r.inbox.freed = nil, nil, false, false
	for _, d := range dirty {
		*d.inInbox() = false
	}
	r.inbox.Unlock()

	if freed {
		r.unpark()
	}
	for _, n := range notes {
		r.processNote(n)
	}
	for _, d := range dirty {
		d.onChange()
	}
	if reach {
		for f := range r.choosing {
			r.markDirty(f)
		}
	}
	for f := r.timers.take(now); f != nil; f = r.timers.take(now) {
		r.markDirty(f)
	}
	r.work(now, reach)
	updates := map[updateKey]*cache.Update{}
	for n := range r.changed {
		r.changed = cache.Without(r.changed, &r.rooms.changed, n)
		r.collect(n, updates)
	}
	r.reportClashes()
	for _, u := range updates {
		if len(u.Changes)+len(u.Sets) > 0 {
			r.topics.Apply(*u)
		}
	}
	if len(r.queues) > 0 {
		return 0, true // for the rest of the work
	}
	if len(r.timers) > 0 {
		next, timed = r.timers[0].dueAt.Sub(now), true
	}
	return r.sets.next(now, next, timed)
}

type updateKey struct {
	scope   cache.Scope
	typeURL string
}

// processNote starts, refreshes or stops a derived topic.
func (r *Resolver) processNote(n note) {
	old := r.derived[n.key]
	switch {
	case n.stop && old != nil:
		r.derived = cache.Without(r.derived, &r.rooms.nodes, n.key)
		old.close()
		r.changed = cache.Without(r.changed, &r.rooms.changed, old) // close may have added it
	case n.stop:
	case n.refresh && old != nil:
		old.refresh()
	case !n.refresh && old == nil:
		r.derived[n.key] = r.open(n.key)
	}
}

// open returns the derived topic of a key.
func (r *Resolver) open(k cache.Key) derived {
	view, isView := r.sets.views[k.Scope.Derived]
	switch {
	case isView && k.IsSet():
		return newViewSet(r, k, view)
	case isView:
		return newViewList(r, k, view)
	case k.IsSet():
		return newResolvedSet(r, k)
	}
	return newDerivedEntry(r, k)
}

// collect adds the changes of a derived topic to the update that they belong to.
func (r *Resolver) collect(n derived, updates map[updateKey]*cache.Update) {
	k := n.key()
	id := updateKey{k.Scope, k.TypeURL}
	if updates[id] == nil {
		updates[id] = &cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	}
	n.appendTo(updates[id])
}
