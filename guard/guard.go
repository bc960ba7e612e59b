package guard

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Cache has the methods of the cache that a Guard needs: see [cache.Cache].
type Cache interface {
	Before(u *cache.Update, removals bool) cache.Before
	Contents(cache.Key, func(key string, r *cache.Resource))
	Browse(cache.Scope, string, func(cache.Item) bool)
	Find(cache.Key) (*cache.Entry, *cache.Set)
}

// Settings are the settings of a Guard.
type Settings struct {
	// Options returns the guard's options for a scope, nil if the scope is not guarded.
	Options func(cache.Scope) *Options
	// Stored, if not nil, iterates over the store's members of a set without an answer.
	Stored func(cache.Key, func(key string, r *cache.Resource))
	// StoredName, if not nil, returns what the store has under a name without an answer, nil if it has nothing.
	StoredName func(cache.Key) *cache.Resource
	// Waits, if not nil, returns the time until which members that were held at since must wait for an answer from
	// the source: see feed.Links. late, if not zero, is a time since which a
	// source is believed if it has answered again and again.
	Waits func(set cache.Key, since, late time.Time) time.Time
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
	// references are those of what is held.
	references references
	// needed are the resources to which what was held last refers.
	needed []cache.Key
	// contents has the earlier contents that are held.
	contents machine
	// passed is what has gone lately although it counted as lost: see restore.go.
	passed passed
	// tallies are by scope and type.
	tallies map[cache.Key]*tally
	// now is the time of the last call that has one.
	now time.Time
}

// New returns a guard.
func New(c Cache, s Settings) *Guard {
	return &Guard{Settings: s, cache: c, machine: machine{sets: map[cache.Key]*set{}}, contents: machine{sets: map[cache.Key]*set{}, content: true}}
}

// Judge decides on updates, and returns them with other words on resources that are held. It changes the slice.
func (g *Guard) Judge(now time.Time, updates []cache.Update) []cache.Update {
	g.now = now
	g.passed.end(now, updates)
	again := g.unsay(updates)
	for i := range updates {
		g.judgeNames(&updates[i])
		g.judge(now, &updates[i])
	}
	g.judgeContents(now, updates, again)
	g.keepReferred(now, updates)
	if g.holdsContents() {
		g.unversion(updates)
	}
	return g.bringBack(now, updates)
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
		g.follow(key, &d, u.Sets[i].Changes)
		for j := range d.passed {
			g.passed.add(now, passing{place: place{set: key, name: d.passed[j].key}, resource: d.passed[j].resource})
		}
		for j := range d.fresh {
			u.Receipt.KeepBack("guard", u.TypeURL, d.fresh[j].key)
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
	if g.Stored != nil {
		g.Stored(key, func(name string, r *cache.Resource) {
			if stored == nil {
				stored = map[string]*cache.Resource{}
			}
			stored[name] = r
		})
	}
	before := g.cache.Before(&cache.Update{Scope: key.Scope, TypeURL: key.TypeURL, Sets: []cache.SetUpdate{*u}}, true)
	members := func(yield func(string, *cache.Resource)) { g.cache.Contents(key, yield) }
	return g.machine.decide(now, key, u, &before.Sets[0], stored, members, o)
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
			line(g.with(l, key))
		}
	}
	if d.held > 0 {
		log(func(l *slog.Logger) {
			l.Warn("the guard holds members that the source no longer has", "members", d.held, "of", d.of, "for", o.Hold, "server", u.Server, "event", "guard")
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
func (g *Guard) held(key cache.Key) map[string]deviation {
	if s := g.machine.sets[key]; s != nil {
		return s.held
	}
	return nil
}

// Next returns when Release must be called, zero if nothing is held.
func (g *Guard) Next() time.Time {
	next, content := g.machine.next(), g.contents.next()
	if next.IsZero() || !content.IsZero() && content.Before(next) {
		return content
	}
	return next
}

// Release returns the updates that end deviations after they were held long enough.
func (g *Guard) Release(now time.Time) []cache.Update {
	g.now = now
	var all releases
	waits := g.waits(now)
	for _, m := range g.machines() {
		due := m.due(now, waits)
		for _, key := range slices.SortedFunc(maps.Keys(due), byOrder) {
			r := due[key]
			for _, name := range slices.Sorted(maps.Keys(r.ended)) {
				c, server := cache.Change{Name: name, Gone: true}, ""
				if said := r.ended[name].said; said != nil {
					c, server = said.change, said.server
					c.Answer, c.Receipt = cache.NoAnswer, nil
				}
				g.leave(place{set: key, name: name, content: m.content}, c.Resource)
				all.add(key, c, g.originAfter(key, r.origin), server)
			}
			g.released(key, len(r.ended), m.content)
		}
	}
	cache.InOrder(all.updates)
	return all.updates
}

// machines returns the machines.
func (g *Guard) machines() [2]*machine { return [2]*machine{&g.machine, &g.contents} }

// waits returns until when sets with members that are due must wait for an answer from the source. If held resources
// refer to others, the sets of a scope wait for each other, so that these go together.
func (g *Guard) waits(now time.Time) map[cache.Key]time.Time {
	waits := map[cache.Key]time.Time{}
	if g.Waits == nil {
		return waits
	}
	latest := map[cache.Scope]time.Time{}
	for _, m := range g.machines() {
		for key, of := range m.overdue(now) {
			var late time.Time
			if o := g.Options(key.Scope); o != nil {
				if at := now.Add(-o.Hold - mostBroken); !at.Before(of.at) {
					late = at
				}
			}
			until := g.Waits(key, of.since, late)
			waits[key] = later(waits[key], until)
			latest[key.Scope] = later(latest[key.Scope], until)
		}
	}
	if len(g.references.only) > 0 || g.holdsContents() {
		for key := range waits {
			waits[key] = latest[key.Scope]
		}
	}
	return waits
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// released counts and logs resources that are released.
func (g *Guard) released(key cache.Key, n int, content bool) {
	stats := g.Stats(key.Scope)
	stats.Held.Add(-int64(n))
	stats.Released.Add(uint64(n))
	l, ok := g.Lines.Next(g.Log)
	switch {
	case !ok:
	case content:
		g.with(l, key).Warn("the guard releases contents that the source still does not have", "members", n, "event", "guard")
	default:
		g.with(l, key).Warn("the guard releases members that the source still does not have", "members", n, "event", "guard")
	}
}

// releases are updates with what is released, one for each type and server.
type releases struct {
	updates []cache.Update
	index   map[releasedFrom]int
}

type releasedFrom struct {
	scope           cache.Scope
	typeURL, server string
}

// add adds the change of a set, or of a name if the key is without one.
func (r *releases) add(key cache.Key, c cache.Change, origin *cache.OriginVersion, server string) {
	from := releasedFrom{key.Scope, key.TypeURL, server}
	i, ok := r.index[from]
	if !ok {
		if r.index == nil {
			r.index = map[releasedFrom]int{}
		}
		i = len(r.updates)
		r.index[from] = i
		r.updates = append(r.updates, cache.Update{Scope: key.Scope, TypeURL: key.TypeURL, Server: server})
	}
	u := &r.updates[i]
	if key.Name == "" {
		u.Changes = append(u.Changes, c)
		return
	}
	if n := len(u.Sets); n == 0 || u.Sets[n-1].Name != key.Name {
		u.Sets = append(u.Sets, cache.SetUpdate{Name: key.Name, Origin: origin})
	}
	last := &u.Sets[len(u.Sets)-1]
	last.Changes = append(last.Changes, c)
}

// Stop forgets a topic that has ended: nothing of it is held any longer.
func (g *Guard) Stop(key cache.Key) {
	for _, content := range []bool{false, true} {
		if !key.IsSet() { // it may be empty, as namesOf is
			g.stopName(place{set: cache.Key{Scope: key.Scope, TypeURL: key.TypeURL}, name: key.Name, content: content})
			continue
		}
		p := place{set: key, content: content}
		s := g.sets(p)[key]
		if s == nil {
			continue
		}
		delete(g.sets(p), key)
		g.Stats(key.Scope).Held.Add(-int64(len(s.held)))
		for p.name = range s.held {
			g.leave(p, nil)
		}
	}
}

// HoldsNames reports whether Stop must be called for names, and not only for sets.
func (g *Guard) HoldsNames() bool { return len(g.references.only) > 0 || g.holdsContents() }

// Contents iterates over the cache's resources of a topic, without held ones, for sources that resume from the cache.
func (g *Guard) Contents(key cache.Key, yield func(key string, r *cache.Resource)) {
	p := place{set: key}
	if !key.IsSet() {
		p.set.Name = ""
	}
	g.cache.Contents(key, func(name string, r *cache.Resource) {
		p.name = name
		for _, p.content = range []bool{false, true} {
			if _, held := g.heldAt(p); held {
				return
			}
		}
		yield(name, r)
	})
}

// Held is a set with held members.
type Held struct {
	// Key is without a name for the names of the scope and type that clients subscribe to one by one.
	Key     cache.Key
	Members int
	// Contents: the members are not lost, but their earlier contents are held.
	Contents bool
	// Since is when the first member was held, and Until when the first one goes.
	Since, Until time.Time
}

// Held returns the sets with held members, sorted by scope, type and name.
func (g *Guard) Held() []Held {
	var all []Held
	for _, m := range g.machines() {
		for key, s := range m.sets {
			if len(s.held) > 0 {
				all = append(all, Held{key, len(s.held), m.content, s.since, s.next})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Held) int { return byOrder(a.Key, b.Key) })
	return all
}

func byOrder(a, b cache.Key) int { return strings.Compare(order(a), order(b)) }

func order(k cache.Key) string {
	return strings.Join([]string{k.Scope.Authority, k.Scope.Partition, k.Scope.Params, xdstype.Word(k.TypeURL), k.Name}, "\x00")
}

// Close forgets everything.
func (g *Guard) Close() {
	g.references = references{}
	for _, m := range g.machines() {
		for key, s := range m.sets {
			g.Stats(key.Scope).Held.Add(-int64(len(s.held)))
		}
		clear(m.sets)
	}
	g.tallies, g.passed = nil, passed{}
}
