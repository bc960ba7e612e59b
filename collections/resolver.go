package collections

import (
	"log/slog"
	"maps"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/inbox"
)

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

// NewResolver begins to feed derived topics, whose results go to a receiver. Close stops it.
func NewResolver(topics Topics, to delivery.Receiver, names Names, o Options) *Resolver {
	r := newResolver(topics, to, names, o)
	go r.run()
	return r
}

func newResolver(topics Topics, to delivery.Receiver, names Names, o Options) *Resolver {
	if o.Depth == 0 {
		o.Depth = defaultDepth
	}
	return &Resolver{
		topics: topics, to: to, names: names, depth: o.Depth, speaksFor: o.SpeaksFor, log: o.Log,
		inbox: inbox.New[event](), stop: make(chan struct{}), done: make(chan struct{}),
		derived:      map[cache.Key]derived{},
		leaves:       map[cache.Key]*leaf{},
		dirtyLookups: map[*lookup]struct{}{},
		changed:      map[derived]struct{}{},
		choosing:     map[*lookup]struct{}{},
		loops:        map[string]int{},
		sets:         newSets(o.Views),
		together:     map[cache.Scope]*together{},

		entryQueues: map[string]*workQueue{},
	}
}

// Loops returns the number of redirect loops found since the start.
func (r *Resolver) Loops() uint64 { return r.stats.loops.Load() }

// Close stops the Resolver and waits for it. The Resolver then watches nothing.
func (r *Resolver) Close() {
	close(r.stop)
	<-r.done
}

func (r *Resolver) run() {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.inbox.Awake():
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
	if r.freed.Swap(false) {
		r.unpark()
	}
	for _, e := range r.inbox.Take() {
		e.process(r)
	}
	reach := r.reach.Swap(false)
	if reach {
		for f := range r.choosing {
			r.markDirty(f)
		}
	}
	for _, f := range r.timers.Due(now) {
		r.markDirty(f)
	}
	r.work(now, reach)
	updates, written := r.collectAll(now)
	r.reportClashes()
	r.write(updates)
	if len(r.queues) > 0 {
		return 0, true // for the rest of the work
	}
	at, _ := r.timers.Next()
	if at = earlier(at, written); !at.IsZero() {
		next, timed = at.Sub(now), true
	}
	return r.sets.next(now, next, timed)
}

// Reload changes the views. A view with a known name is the same view. all: names may have other meanings, so
// all derived topics are computed again. Until then, their state stays.
func (r *Resolver) Reload(views map[string]View, all bool) { r.inbox.Put(reload{views, all}) }

// reload is a call of Reload.
type reload struct {
	views map[string]View
	all   bool
}

// process implements event.
func (e reload) process(r *Resolver) {
	views := maps.Clone(e.views)
	for k := range r.derived { // keep removed views that still have topics: their clients are about to leave
		if v, ok := r.sets.views[k.Scope.Derived]; ok {
			views[k.Scope.Derived] = v
		}
	}
	r.sets.views = views
	if !e.all {
		return
	}
	for k, old := range r.derived {
		r.derived[k] = r.open(k) // before old is closed, so that leaf topics stay watched
		old.close()
		r.changed = cache.Without(r.changed, &r.rooms.changed, old) // close may have added it
	}
}

type updateKey struct {
	scope   cache.Scope
	typeURL string
}

// process starts, refreshes or stops a derived topic.
func (n note) process(r *Resolver) {
	old := r.derived[n.key]
	switch {
	case n.stop && old != nil:
		r.derived = cache.Without(r.derived, &r.rooms.derived, n.key)
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

// collect adds the changes of a derived topic to the update to which they belong.
func (r *Resolver) collect(n derived, updates map[updateKey]*cache.Update) {
	k := n.key()
	id := updateKey{k.Scope, k.TypeURL}
	if updates[id] == nil {
		updates[id] = &cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	}
	n.appendTo(updates[id])
}

func newSets(views map[string]View) *sets {
	return &sets{views: views, maxEntries: maxEntriesOfSet, steps: map[step]bool{}, active: map[step]struct{}{}, clashKeys: map[clashKey]struct{}{}}
}

// Clashes returns the number of members since the start that were hidden by a member of the same
// name in an earlier source of the same set.
func (r *Resolver) Clashes() uint64 { return r.sets.clashes.Load() }

// Failures returns how often since the start a collection of a set was unavailable, or an
// entry of a list collection could not be used.
func (r *Resolver) Failures() uint64 { return r.sets.failures.Load() }
