package feed

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/history"
	"github.com/xds-relay/xds-relay/internal/inbox"
	"github.com/xds-relay/xds-relay/rollout/gate"
	"github.com/xds-relay/xds-relay/store"
)

// Options are what a Feed consists of.
type Options struct {
	// Servers are the servers that feed the scope, if it has servers.
	Servers Servers
	// Guard are the settings of the guard. Waits is set if the Feed has servers, Stored and StoredName if it has a store.
	Guard guard.Settings
	// Store, if not nil, keeps what is accepted.
	Store        *store.Store
	StoreWaits   store.KeeperOptions
	Rollouts     *gate.Controller
	Rollout      *gate.Options // nil if nothing is rolled out
	Cache        Cache
	Reachability *Reachability
	// History, if not nil, keeps what changes.
	History *history.Log
	Log     *slog.Logger
}

// Cache has the methods of the cache that a Feed needs: see [cache.Cache].
type Cache interface {
	guard.Cache
	store.Cache
	Apply(updates ...cache.Update)
}

// Feed is the way of what sources say to the cache: of the servers of one scope, of a directory, or of the resolver.
// The latter two feed several scopes.
type Feed struct {
	Options
	links    Links
	only     Source        // of the only server, nil if there are several or none
	answered chan struct{} // closed once a server has answered, or could not be reached
	inbox    *inbox.Inbox[note]
	stepping atomic.Bool // a goroutine is about to call step
	serving  atomic.Bool // a goroutine calls serve
	loads    loads
	reading  sync.WaitGroup               // goroutines that read what is stored
	ended    atomic.Bool                  // they have to end
	held     atomic.Bool                  // the guard holds names
	look     func(cache.Key) store.Stored // keeper.Look

	// mu is held while the cache applies updates, so that nothing comes between a decision and the update.
	mu     sync.Mutex
	guard  *guard.Guard
	keeper *store.Keeper // nil without a store
	// muted: deliveries are dropped. closed: so are events, and nothing is due any more.
	muted, closed bool
	// cause is why clients get the updates that are on their way to the cache, and before is what the cache has of them.
	cause    history.Cause
	before   []cache.Before
	resolver resolver
	timer    *time.Timer // nil until something is due
	wakeAt   time.Time   // when the timer fires, zero for never
	servers
}

// New returns a Feed. If it has one server, that is opened now, and otherwise the first once a topic is wanted. Close
// ends it.
func New(o Options) *Feed {
	f := &Feed{Options: o, cause: history.RolledOut, answered: make(chan struct{}), inbox: inbox.New[note]()}
	if o.Store != nil {
		f.keeper = store.NewKeeper(o.Store, o.Servers.Scope, o.Cache, o.StoreWaits)
		f.Guard.Stored, f.look = f.keeper.Stored, f.keeper.Look
		f.Guard.StoredName = func(k cache.Key) (r *cache.Resource) {
			f.keeper.Accepted(k, func(_ string, stored *cache.Resource) { r = stored })
			return r
		}
	}
	if len(o.Servers.Names) > 0 {
		f.Guard.Waits = func(set cache.Key, since, late time.Time) time.Time { return f.links.Waits(set.TypeURL, since, late) }
	}
	f.guard = guard.New(o.Cache, f.Guard)
	f.openServers()
	return f
}

// Link returns the receiver of a source that is not one of the servers.
func (f *Feed) Link() delivery.Receiver { return &Link{feed: f, active: true} }

// Deliver implements delivery.Receiver. It is the way of a change to clients.
func (s *Link) Deliver(e delivery.Event) {
	f := s.feed
	f.awaitLoads(e.Types)
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.closed || f.closed {
		return // the scope, or the server, has another source by now
	}
	now := time.Now()
	f.takeNotes(now)
	switch {
	case e.Kind != delivery.Delivered:
		f.event(now, s, e)
	case !f.muted:
		updates := f.pick(s, e.Types, e.Cause)
		if len(updates) > 0 {
			f.distinguish(s, updates)
			f.resolve(updates)
			news := f.record(now, s, updates, e.ExpiresAt)
			updates = f.judge(now, updates)
			f.stage(history.Cause(e.Cause.String()), updates)
			f.History.KeepBack(updates)
			if news {
				f.machine.Missing(now, f.wanted.missing > 0)
				f.act()
			}
		}
	}
	f.plan(now)
}

// judge passes updates through the guard. The caller holds mu.
func (f *Feed) judge(now time.Time, updates []cache.Update) []cache.Update {
	updates = f.guard.Judge(now, updates)
	f.held.Store(f.guard.HoldsNames())
	return updates
}

// stage passes updates through the scope's rollout, if there is one, and accepts the rest. The caller holds mu.
func (f *Feed) stage(cause history.Cause, updates []cache.Update) {
	f.cause = cause
	if f.Rollout == nil {
		(*accepting)(f).Accept(updates)
	} else {
		f.Rollouts.Apply((*accepting)(f), f.Rollout, updates)
	}
	f.cause = history.RolledOut // of what the rollout accepts later
}

// accepting is the Feed below its rollout: a gate.Below.
type accepting Feed

// Lock implements gate.Below.
func (f *accepting) Lock() { f.mu.Lock() }

// Unlock implements gate.Below.
func (f *accepting) Unlock() { f.mu.Unlock() }

// Accept implements gate.Below. It gives updates to the cache, and notes for the store and the history what they have
// changed. The caller holds mu.
func (f *accepting) Accept(updates []cache.Update) {
	if f.keeper != nil {
		(*Feed)(f).restore(f.keeper.Judge(updates))
	}
	(*Feed)(f).compare(updates)
	f.Cache.Apply(updates...)
	if f.History.On() {
		f.History.Record(f.cause, updates, f.before)
	}
	if f.keeper != nil {
		f.keeper.Note(updates, f.before)
	}
	clear(f.before)
}

// restore gives the cache what was stored. The caller holds mu.
func (f *Feed) restore(updates []cache.Update) {
	f.compare(updates)
	f.Cache.Apply(updates...)
	if f.History.On() {
		f.History.Record(history.Stored, updates, f.before)
	}
	clear(f.before)
}

// compare sets before to what the cache has of the topics of updates. The caller holds mu.
func (f *Feed) compare(updates []cache.Update) {
	f.before = f.before[:0]
	if f.keeper == nil && !f.History.On() {
		return
	}
	for i := range updates {
		f.before = append(f.before, f.Cache.Before(&updates[i], false))
	}
}

// Accepted implements gate.Below.
func (f *accepting) Accepted(k cache.Key, yield func(key string, r *cache.Resource)) bool {
	return f.keeper != nil && f.keeper.Accepted(k, yield)
}

// step does what is due.
func (f *Feed) step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stepping.Store(false)
	if f.wakeAt = (time.Time{}); f.closed {
		return
	}
	now := time.Now()
	f.takeNotes(now)
	f.tick(now)
	if !f.muted {
		for scope := range cache.EachScope(f.guard.Release(now)) {
			f.stage(history.Released, scope)
		}
	}
	f.serveLater(now)
	f.plan(now)
}

// wake calls step soon, in another goroutine.
func (f *Feed) wake() {
	if !f.stepping.Swap(true) {
		go f.step()
	}
}

// plan sets the timer. The caller holds mu.
func (f *Feed) plan(now time.Time) {
	next := f.nextTick(now)
	if !f.muted {
		next = earlier(next, f.guard.Next())
	}
	if f.keeper != nil && !f.serving.Load() {
		next = earlier(next, f.keeper.Next())
	}
	if f.closed || next.Equal(f.wakeAt) {
		return
	}
	switch f.wakeAt = next; {
	case next.IsZero():
		f.timer.Stop()
	case f.timer == nil:
		f.timer = time.AfterFunc(max(next.Sub(now), 1), f.step)
	default:
		f.timer.Reset(max(next.Sub(now), 1))
	}
}

// earlier returns the earlier of two times. Either may be zero, for none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Answered is closed once a server has answered, or could not be reached.
func (f *Feed) Answered() <-chan struct{} { return f.answered }

// Held returns the sets with members that the guard holds.
func (f *Feed) Held() []guard.Held {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takeNotes(time.Now())
	return f.guard.Held()
}

// Waits returns when to check again whether members may go that are held since a time: see guard.Settings.
func (f *Feed) Waits(set cache.Key, since, late time.Time) time.Time {
	return f.links.Waits(set.TypeURL, since, late)
}

// NamesAnswered reports whether the active server has sent a SotW response for names of a type since then. It may be called
// with any lock held.
func (f *Feed) NamesAnswered(typeURL string, since time.Time) bool {
	return f.links.answeredSince(typeURL, since)
}

// Contents iterates over the cache's resources of a topic, without members that the guard holds, for sources that resume
// from the cache.
func (f *Feed) Contents(k cache.Key, yield func(key string, r *cache.Resource)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takeNotes(time.Now())
	f.guard.Contents(k, yield)
}

// Mute drops all further deliveries. It waits for one that is being stored.
func (f *Feed) Mute() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.muted = true
}

// Close closes the sources, and waits for them, but not long for a slow disk. What a rollout accepts still reaches the
// cache.
func (f *Feed) Close() {
	f.loads.mu.Lock()
	f.ended.Store(true) // no more reading begins
	f.loads.mu.Unlock()
	f.mu.Lock()
	f.closed = true
	if f.timer != nil {
		f.timer.Stop()
	}
	sources := slices.Collect(f.closeServers)
	f.guard.Close()
	f.mu.Unlock()
	for _, s := range sources {
		<-s.Done()
	}
	if f.keeper != nil {
		f.awaitReading()
	}
}
