package guard

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Sink receives the updates that pass: the cache, or what stands before it.
type Sink interface {
	Apply(...cache.Update)
}

// Cache has the methods of the cache that a Guard needs: see [cache.Cache].
type Cache interface {
	Removals(cache.Scope, string, *cache.SetUpdate) cache.Removals
	Contents(cache.Key, func(key string, r *cache.Resource))
}

// Settings are the settings of a Guard.
type Settings struct {
	// Options returns the guard's options for a scope, nil if the scope is not guarded.
	Options func(cache.Scope) *Options
	// Stored, if not nil, iterates over the store's members of a set without an answer.
	Stored func(cache.Key, func(key string, r *cache.Resource))
	// Waits, if not nil, returns the time until which members that were held at since must wait for an answer from
	// the source: see Links.
	Waits func(set cache.Key, since time.Time) time.Time
	// Stats returns the counters of a scope.
	Stats func(cache.Scope) *Stats
	Log   *slog.Logger
	// Lines bounds the number of log lines.
	Lines *loglines.Shared
}

// Stats are the counters of one authority's guards. They are safe for concurrent use.
type Stats struct {
	// Held is the number of members that are held now.
	Held atomic.Int64
	// Holds counts the members that were held, Restored those that the source sent again, and Released those that
	// went.
	Holds, Restored, Released atomic.Uint64
}

// Guard stands between a source and the cache. All updates of the source pass it.
type Guard struct {
	Settings
	sink  Sink
	cache Cache

	ends ends

	// mu is held while the sink applies an update, so that nothing comes between the decision on an update and the
	// update. It comes after the locks of the source, and before those of the sink.
	mu      sync.Mutex
	machine machine
	timer   *time.Timer // nil until something is held
	closed  bool
}

// ends are the topics that have ended. Its lock comes last: Stop is called while locks of the cache are held.
type ends struct {
	sync.Mutex
	known   map[cache.Key]struct{} // the sets that the machine knows
	stopped []cache.Key            // the topics that have ended and must still be forgotten
}

// New returns a guard. Close ends it.
func New(sink Sink, c Cache, s Settings) *Guard {
	return &Guard{Settings: s, sink: sink, cache: c, machine: machine{sets: map[cache.Key]*set{}}}
}

// Apply passes updates on, without the removals that the guard holds.
func (g *Guard) Apply(updates ...cache.Update) {
	if !slices.ContainsFunc(updates, func(u cache.Update) bool { return len(u.Sets) > 0 }) {
		g.sink.Apply(updates...)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.takeStopped()
	now, decided := time.Now(), false
	for i := range updates {
		decided = g.judge(now, &updates[i]) || decided
	}
	g.sink.Apply(updates...)
	if decided {
		g.arm(now)
	}
}

// judge decides on the sets of an update, and replaces those of which members are held. It returns false if there was
// nothing to decide. The caller holds mu.
func (g *Guard) judge(now time.Time, u *cache.Update) (decided bool) {
	o := g.Options(u.Scope)
	if o == nil {
		return false
	}
	for i := range u.Sets {
		key := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: u.Sets[i].Name}
		if !g.machine.concerns(key, &u.Sets[i], o) {
			continue
		}
		d := g.decide(now, key, &u.Sets[i], o)
		if !decided {
			u.Sets, decided = slices.Clone(u.Sets), true // the slice belongs to the source
		}
		u.Sets[i] = d.update
		u.Receipt.Event("guard", func() []attribute.KeyValue {
			return []attribute.KeyValue{attribute.Int("xds.guard.held", d.held), attribute.Int("xds.guard.restored", d.restored), attribute.Int("xds.guard.gone", d.gone)}
		})
		g.note(key, &d, u, o)
	}
	return decided
}

// decide calls the machine's decide. The caller holds mu.
func (g *Guard) decide(now time.Time, key cache.Key, u *cache.SetUpdate, o *Options) decision {
	// Stored comes first: the cache may get the stored members in between.
	var stored map[string]*cache.Resource
	if g.Stored != nil && u.Extent.Full() {
		g.Stored(key, func(name string, r *cache.Resource) {
			if stored == nil {
				stored = map[string]*cache.Resource{}
			}
			stored[name] = r
		})
	}
	would := g.cache.Removals(key.Scope, key.TypeURL, u)
	return g.machine.decide(now, key, u, &would, stored, o)
}

// note counts and logs a decision. The caller holds mu.
func (g *Guard) note(key cache.Key, d *decision, u *cache.Update, o *Options) {
	g.know(key)
	stats := g.Stats(key.Scope)
	stats.Held.Add(int64(d.held - d.restored - d.gone))
	stats.Holds.Add(uint64(d.held))
	stats.Restored.Add(uint64(d.restored))
	stats.Released.Add(uint64(d.gone))
	log := func(line func(*slog.Logger)) {
		if l, ok := g.Lines.Next(g.Log); ok {
			line(l.With("authority", key.Scope.Authority, "partition", key.Scope.Partition, "type_url", key.TypeURL, "set", key.Name))
		}
	}
	if d.held > 0 {
		log(func(l *slog.Logger) {
			l.Warn("the guard holds members that the source no longer has", "members", d.held, "of", d.of, "for", o.Hold, "server", u.Server)
		})
	}
	if d.restored > 0 {
		log(func(l *slog.Logger) {
			l.Info("the source has members again that the guard held", "members", d.restored, "held", len(g.held(key)))
		})
	}
}

// held returns the held members of a set. The caller holds mu.
func (g *Guard) held(key cache.Key) map[string]end {
	if s := g.machine.sets[key]; s != nil {
		return s.held
	}
	return nil
}

// arm sets the timer. The caller holds mu.
func (g *Guard) arm(now time.Time) {
	next := g.machine.next()
	switch {
	case g.closed:
	case next.IsZero():
		if g.timer != nil {
			g.timer.Stop()
		}
	case g.timer == nil:
		g.timer = time.AfterFunc(max(next.Sub(now), 1), g.release)
	default:
		g.timer.Reset(max(next.Sub(now), 1))
	}
}

// release releases the members that were held long enough.
func (g *Guard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.takeStopped()
	now := time.Now()
	waits := map[cache.Key]time.Time{}
	if g.Waits != nil {
		for key, since := range g.machine.overdue(now) {
			waits[key] = g.Waits(key, since)
		}
	}
	var updates []cache.Update
	for key, r := range g.machine.due(now, waits) {
		u := cache.Update{Scope: key.Scope, TypeURL: key.TypeURL, Sets: []cache.SetUpdate{{Name: key.Name, Origin: r.origin}}}
		for _, name := range r.names {
			u.Sets[0].Changes = append(u.Sets[0].Changes, cache.Change{Name: name, Gone: true})
		}
		stats := g.Stats(key.Scope)
		stats.Held.Add(-int64(len(r.names)))
		stats.Released.Add(uint64(len(r.names)))
		if l, ok := g.Lines.Next(g.Log); ok {
			l.Warn("the guard releases members that the source still does not have", "authority", key.Scope.Authority, "partition", key.Scope.Partition,
				"type_url", key.TypeURL, "set", key.Name, "members", len(r.names))
		}
		g.know(key)
		updates = append(updates, u)
	}
	cache.InOrder(updates)
	for scope := range cache.EachScope(updates) {
		g.sink.Apply(scope...)
	}
	g.arm(now)
}

// know records whether the machine knows a set. The caller holds mu.
func (g *Guard) know(key cache.Key) {
	g.ends.Lock()
	defer g.ends.Unlock()
	switch {
	case g.machine.sets[key] == nil:
		delete(g.ends.known, key)
	case g.ends.known == nil:
		g.ends.known = map[cache.Key]struct{}{}
		fallthrough
	default:
		g.ends.known[key] = struct{}{}
	}
}

// Stop reports that a topic has ended: its members are no longer held. It does not block, and may be called with
// locks of the cache held.
func (g *Guard) Stop(key cache.Key) {
	g.ends.Lock()
	defer g.ends.Unlock()
	if _, known := g.ends.known[key]; known {
		delete(g.ends.known, key)
		g.ends.stopped = append(g.ends.stopped, key)
	}
}

// takeStopped forgets the topics that have ended. The caller holds mu.
func (g *Guard) takeStopped() {
	g.ends.Lock()
	keys := g.ends.stopped
	g.ends.stopped = nil
	g.ends.Unlock()
	for _, key := range keys {
		g.forget(key)
	}
}

// forget forgets a set. The caller holds mu.
func (g *Guard) forget(key cache.Key) {
	if held := g.machine.forget(key); held > 0 {
		g.Stats(key.Scope).Held.Add(-int64(held))
	}
}

// Contents iterates over the cache's members of a set, without held ones, for sources that resume from the cache.
func (g *Guard) Contents(key cache.Key, yield func(key string, r *cache.Resource)) {
	g.mu.Lock()
	g.takeStopped()
	held := maps.Clone(g.held(key))
	g.mu.Unlock()
	g.cache.Contents(key, func(name string, r *cache.Resource) {
		if _, is := held[name]; !is {
			yield(name, r)
		}
	})
}

// Held is a set with held members.
type Held struct {
	Key     cache.Key
	Members int
	// Since is when the first member was held, and Until when the first one goes.
	Since, Until time.Time
}

// Held returns the sets with held members, sorted by scope, type and name. The caller must not hold locks of the
// cache.
func (g *Guard) Held() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.takeStopped()
	var all []Held
	for key, s := range g.machine.sets {
		if len(s.held) > 0 {
			all = append(all, Held{key, len(s.held), s.since, s.next})
		}
	}
	slices.SortFunc(all, func(a, b Held) int { return strings.Compare(order(a.Key), order(b.Key)) })
	return all
}

func order(k cache.Key) string {
	return strings.Join([]string{k.Scope.Authority, k.Scope.Partition, k.Scope.Params, xdstype.Word(k.TypeURL), k.Name}, "\x00")
}

// Close ends the guard. Afterwards it sends nothing to the sink except what Apply passes on.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.timer != nil {
		g.timer.Stop()
	}
	for key := range g.machine.sets {
		g.forget(key)
	}
}
