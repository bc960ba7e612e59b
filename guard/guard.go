package guard

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/xdstype"
)

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
	// the source: see feed.Links.
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

// Guard decides which members stay, and keeps count. It is a value: its caller calls one method at a time, with the time,
// and applies an update before the next decision.
type Guard struct {
	Settings
	cache   Cache
	machine machine
}

// New returns a guard.
func New(c Cache, s Settings) *Guard {
	return &Guard{Settings: s, cache: c, machine: machine{sets: map[cache.Key]*set{}}}
}

// Judge decides on updates, and replaces the sets of which members are held.
func (g *Guard) Judge(now time.Time, updates []cache.Update) {
	for i := range updates {
		g.judge(now, &updates[i])
	}
}

func (g *Guard) judge(now time.Time, u *cache.Update) {
	if len(u.Sets) == 0 {
		return
	}
	o := g.Options(u.Scope)
	if o == nil {
		return
	}
	decided := false
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
			return []attribute.KeyValue{attribute.Int("xds.guard.held", d.held), attribute.Int("xds.guard.restored", d.restored), attribute.Int("xds.guard.gone", d.gone+d.replaced)}
		})
		g.note(key, &d, u, o)
	}
}

// decide calls the machine's decide.
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
	members := func(yield func(string, *cache.Resource)) { g.cache.Contents(key, yield) }
	return g.machine.decide(now, key, u, &would, stored, members, o)
}

// note counts and logs a decision.
func (g *Guard) note(key cache.Key, d *decision, u *cache.Update, o *Options) {
	stats := g.Stats(key.Scope)
	stats.Held.Add(int64(d.held - d.restored - d.gone - d.replaced))
	stats.Holds.Add(uint64(d.held))
	stats.Restored.Add(uint64(d.restored))
	stats.Released.Add(uint64(d.gone + d.replaced))
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
	if d.replaced > 0 {
		log(func(l *slog.Logger) {
			l.Info("others have taken the place of members that the guard held", "members", d.replaced, "held", len(g.held(key)))
		})
	}
}

// held returns the held members of a set.
func (g *Guard) held(key cache.Key) map[string]end {
	if s := g.machine.sets[key]; s != nil {
		return s.held
	}
	return nil
}

// Next returns when Release must be called, zero if nothing is held.
func (g *Guard) Next() time.Time { return g.machine.next() }

// Release returns the updates that remove the members that were held long enough.
func (g *Guard) Release(now time.Time) (updates []cache.Update) {
	waits := map[cache.Key]time.Time{}
	if g.Waits != nil {
		for key, since := range g.machine.overdue(now) {
			waits[key] = g.Waits(key, since)
		}
	}
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
		updates = append(updates, u)
	}
	cache.InOrder(updates)
	return updates
}

// Stop forgets a topic that has ended: its members are no longer held.
func (g *Guard) Stop(key cache.Key) {
	if held := g.machine.forget(key); held > 0 {
		g.Stats(key.Scope).Held.Add(-int64(held))
	}
}

// Contents iterates over the cache's members of a set, without held ones, for sources that resume from the cache.
func (g *Guard) Contents(key cache.Key, yield func(key string, r *cache.Resource)) {
	held := g.held(key)
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

// Held returns the sets with held members, sorted by scope, type and name.
func (g *Guard) Held() []Held {
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

// Close forgets everything.
func (g *Guard) Close() {
	for key := range g.machine.sets {
		g.Stop(key)
	}
}
