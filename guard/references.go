package guard

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/urn"
)

// A member that is held must stay usable: the guard also holds the resources that it refers to, in sets and under the
// names that clients subscribe to one by one, however few are lost.

// namesOf returns the key under which a machine has the held names of an update's scope and type.
func namesOf(u *cache.Update) cache.Key { return cache.Key{Scope: u.Scope, TypeURL: u.TypeURL} }

// place is where a resource is held: a set, or namesOf an update.
type place struct {
	set  cache.Key
	name string
	// content: the resource is not lost, but its earlier content is held.
	content bool
}

// resource returns the key of the held resource itself.
func (p place) resource() cache.Key {
	k := p.set
	k.Name = p.name
	return k
}

// references are those of held resources. They are computed when a resource is held.
type references struct {
	// from has the resources to which each held resource refers.
	from map[place][]cache.Key
	to   map[cache.Key]need
	// only has, by resource, the places that are held only because of a reference.
	only map[cache.Key][]place
	// contents has, by resource, the places where its earlier content is held.
	contents map[cache.Key][]place
}

// need says how many held resources refer to a resource, and until when the last of them is held.
type need struct {
	places int
	until  time.Time
}

// referencesOf returns the resources to which a resource refers. Those of other scopes have other names.
func referencesOf(k cache.Key, r *cache.Resource) (keys []cache.Key) {
	if r == nil {
		return nil
	}
	found, _ := graph.References(k.TypeURL, r.Value()) // those before an error
	for i := range found {
		f := &found[i]
		if f.Many || f.Source != graph.Stream {
			continue
		}
		name := f.To.Name
		if urn.IsXdstp(name) {
			if canonical, err := urn.KeyOf(name); err == nil {
				name = canonical.Name
			}
		}
		keys = append(keys, cache.Key{Scope: k.Scope, TypeURL: f.To.TypeURL, Name: strings.Clone(name)})
	}
	return keys
}

// add records the references of a resource that is held until a time, and returns what it refers to. A member of a set
// also needs the same resource under its name.
func (f *references) add(p place, r *cache.Resource, until time.Time, only bool) []cache.Key {
	if f.from == nil {
		*f = references{map[place][]cache.Key{}, map[cache.Key]need{}, map[cache.Key][]place{}, map[cache.Key][]place{}}
	}
	keys := referencesOf(p.set, r)
	p.name = strings.Clone(p.name)
	switch {
	case only:
		f.only[p.resource()] = append(f.only[p.resource()], p)
	case p.content:
		f.contents[p.resource()] = append(f.contents[p.resource()], p)
	default:
		keys = append(keys, p.resource())
	}
	if len(keys) == 0 {
		return nil
	}
	f.from[p] = keys
	for _, k := range keys {
		n := f.to[k]
		n.places++
		if until.After(n.until) {
			n.until = until
		}
		f.to[k] = n
	}
	return keys
}

// remove forgets a place where nothing is held any more. It returns the places that are held only because of it. now is
// the resource that the source has there, nil if there is none: what this refers to is not among them.
func (f *references) remove(p place, now *cache.Resource) (unneeded []place) {
	k := p.resource()
	for _, places := range []map[cache.Key][]place{f.only, f.contents} {
		if rest := slices.DeleteFunc(places[k], func(o place) bool { return o == p }); len(rest) > 0 {
			places[k] = rest
		} else {
			delete(places, k)
		}
	}
	keys, ok := f.from[p]
	if !ok {
		return nil
	}
	delete(f.from, p)
	still := map[cache.Key]bool{}
	for _, k := range referencesOf(p.set, now) {
		still[k] = true
	}
	for _, k := range keys {
		n := f.to[k]
		if n.places--; n.places > 0 {
			f.to[k] = n
			continue
		}
		delete(f.to, k)
		if !still[k] {
			unneeded = append(unneeded, f.only[k]...)
		}
	}
	return unneeded
}

// follow records which members a decision holds, and which no longer.
func (g *Guard) follow(set cache.Key, d *decision, changes []cache.Change) {
	s := g.machine.sets[set]
	switch {
	case d.gone+d.replaced > 0: // also members of an earlier topic
		g.leaveAll(set)
		fallthrough
	case d.restored > 0:
		for i := range changes {
			g.leave(place{set: set, name: changes[i].Name}, changes[i].Resource)
		}
	}
	for i := range d.fresh {
		r := &d.fresh[i]
		g.refer(place{set: set, name: r.key}, r.resource, s.held[r.key].at, false)
	}
}

// refer records the references of a resource that is held until a time, and returns what it refers to. What is held
// because of earlier references stays as long.
func (g *Guard) refer(p place, r *cache.Resource, until time.Time, only bool) []cache.Key {
	keys := g.references.add(p, r, until, only)
	g.needed = append(g.needed, keys...)
	for _, k := range keys {
		for _, places := range [][]place{g.references.only[k], g.references.contents[k]} {
			for _, o := range places {
				if e, held := g.heldAt(o); held && e.at.Before(until) {
					e.at = until
					g.sets(o)[o.set].held[o.name] = e
				}
			}
		}
	}
	return keys
}

// leave forgets the references of a place where nothing is held any more, and releases what was held because of them.
func (g *Guard) leave(p place, now *cache.Resource) {
	if _, held := g.heldAt(p); held {
		return
	}
	for _, o := range g.references.remove(p, now) {
		if s := g.sets(o)[o.set]; s != nil {
			if e, held := s.held[o.name]; held {
				e.at = g.now // at once
				s.held[o.name] = e
				s.wake(e.at)
			}
		}
	}
}

// leaveAll calls leave for all places of a set.
func (g *Guard) leaveAll(set cache.Key) {
	for p := range g.references.from {
		if p.set == set {
			g.leave(p, nil)
		}
	}
}

// stopName forgets a name whose topic has ended.
func (g *Guard) stopName(p place) {
	s := g.sets(p)[p.set]
	if s == nil {
		return
	}
	if _, held := s.held[p.name]; !held {
		return
	}
	if delete(s.held, p.name); len(s.held) == 0 {
		delete(g.sets(p), p.set)
	}
	g.Stats(p.set.Scope).Held.Add(-1)
	g.leave(p, nil)
}

// sets returns the sets among which a place is.
func (g *Guard) sets(p place) map[cache.Key]*set {
	if p.content {
		return g.contents.sets
	}
	return g.machine.sets
}

func (g *Guard) heldAt(p place) (e deviation, held bool) {
	if s := g.sets(p)[p.set]; s != nil {
		e, held = s.held[p.name]
	}
	return e, held
}

// judgeNames decides on the names that are held.
func (g *Guard) judgeNames(u *cache.Update) {
	key := namesOf(u)
	s := g.machine.sets[key]
	if s == nil || len(u.Changes) == 0 {
		return
	}
	var d decision
	var left []int // indices in u.Changes
	passed := make([]cache.Change, 0, len(u.Changes))
	for i := range u.Changes {
		c := &u.Changes[i]
		if _, held := s.held[c.Name]; held && c.HasState() {
			old := g.cached(cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: c.Name})
			switch {
			case c.Resource != nil:
				d.restored++
			case old == nil || mustGo(c, c.Answer, old): // without old, the topic has ended
				d.gone++
			default:
				continue
			}
			delete(s.held, c.Name)
			left = append(left, i)
		}
		passed = append(passed, *c)
	}
	for _, i := range left {
		g.leave(place{set: key, name: u.Changes[i].Name}, u.Changes[i].Resource)
	}
	u.Changes = passed
	if len(s.held) == 0 {
		delete(g.machine.sets, key)
	}
	g.note(key, &d, u, nil)
}

// mustGo reports whether a removal takes effect although a held resource refers to the removed one: its TTL has ended, or
// no client may have it.
func mustGo(c *cache.Change, a cache.Answer, old *cache.Resource) bool {
	return isDenied(c.Err) || a == cache.NoAnswer && old.TTL() > 0
}

// cached returns the cache's resource under a name, nil if there is none.
func (g *Guard) cached(k cache.Key) (r *cache.Resource) {
	g.cache.Contents(k, func(_ string, is *cache.Resource) { r = is })
	return r
}

// at is the place of a change in updates. set is -1 for the change of an entry.
type at struct{ update, set, change int }

// loss is a change that removes a resource.
type loss struct {
	at
	old *cache.Resource // nil if only the store may have it
}

// keepReferred holds the resources that updates remove although held resources refer to them.
func (g *Guard) keepReferred(now time.Time, updates []cache.Update) {
	if len(g.references.to) == 0 {
		return
	}
	lost, queue := g.losses(updates)
	if len(lost) == 0 {
		return
	}
	kept := map[at]*cache.Resource{} // with what the store has of a resource
	for ; len(queue) > 0; queue = queue[1:] {
		need := g.references.to[queue[0]]
		if need.places == 0 {
			continue // it may be needed later: then it is queued again
		}
		for _, l := range lost[queue[0]] {
			u := &updates[l.update]
			var stored *cache.Resource
			if l.old == nil {
				if stored = g.StoredName(queue[0]); stored == nil {
					continue
				}
				l.old = stored
			}
			kept[l.at] = stored
			queue = append(queue, g.keepAt(now, l.placeIn(u), l.old, u, need.until)...)
		}
		delete(lost, queue[0])
	}
	drop(updates, kept, g.noteKept)
}

// losses returns the changes of updates that remove resources, by resource. queue are the resources.
func (g *Guard) losses(updates []cache.Update) (lost map[cache.Key][]loss, queue []cache.Key) {
	for i := range updates {
		u := &updates[i]
		if !removesAny(u) || g.Options(u.Scope) == nil {
			continue
		}
		if lost == nil {
			lost = map[cache.Key][]loss{}
		}
		add := func(l loss, c *cache.Change) {
			k := cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: c.Name}
			lost[k] = append(lost[k], l)
			queue = append(queue, k)
		}
		present := map[int]bool{}
		before := g.cache.Before(u, true)
		before.Replaced(u, func(set, change int, old *cache.Resource) {
			l := loss{at{i, set, change}, old}
			c, answer := l.changeIn(u)
			if l.set < 0 {
				present[change] = true
			}
			if c.Removes() && !mustGo(c, answer, old) {
				add(l, c)
			}
		})
		for j := range u.Changes {
			if c := &u.Changes[j]; g.StoredName != nil && !present[j] && c.Removes() && !isDenied(c.Err) {
				add(loss{at{i, -1, j}, nil}, c)
			}
		}
	}
	return lost, queue
}

// removesAny reports whether an update removes anything.
func removesAny(u *cache.Update) bool {
	any := func(changes []cache.Change) bool {
		return slices.ContainsFunc(changes, func(c cache.Change) bool { return c.Removes() })
	}
	return any(u.Changes) || slices.ContainsFunc(u.Sets, func(s cache.SetUpdate) bool { return s.Err == nil && any(s.Changes) })
}

// changeIn returns the change at a place in an update, and the answer to which it belongs.
func (a at) changeIn(u *cache.Update) (*cache.Change, cache.Answer) {
	if a.set < 0 {
		c := &u.Changes[a.change]
		return c, c.Answer
	}
	c := &u.Sets[a.set].Changes[a.change]
	return c, cmp.Or(c.Answer, u.Sets[a.set].Answer)
}

// placeIn returns the place of the change at a place in an update.
func (a at) placeIn(u *cache.Update) place {
	c, _ := a.changeIn(u)
	p := place{set: namesOf(u), name: c.Name}
	if a.set >= 0 {
		p.set.Name = u.Sets[a.set].Name
	}
	return p
}

// keepAt holds a resource until a time, and returns what it refers to.
func (g *Guard) keepAt(now time.Time, p place, r *cache.Resource, u *cache.Update, until time.Time) []cache.Key {
	s := g.sets(p)[p.set]
	if s == nil {
		s = &set{held: map[string]deviation{}}
		g.sets(p)[p.set] = s
	}
	s.keepFor(now, p.name, r, &Options{Hold: until.Sub(now)})
	stats := g.Stats(u.Scope)
	stats.Held.Add(1)
	stats.Holds.Add(1)
	return g.refer(p, r, until, true)
}

// drop removes changes from updates. Where the map has a resource, the change brings it instead. note is called for each
// set from which changes are removed, or with a nil set for names, with their number.
func drop(updates []cache.Update, dropped map[at]*cache.Resource, note func(u *cache.Update, set *cache.SetUpdate, n int)) {
	for i := range updates {
		u := &updates[i]
		if changes, n := without(u.Changes, at{i, -1, 0}, dropped); n > 0 {
			u.Changes = changes
			note(u, nil, n)
		}
		sets := u.Sets
		for j := range sets {
			changes, n := without(sets[j].Changes, at{i, j, 0}, dropped)
			if n == 0 {
				continue
			}
			if &sets[0] == &u.Sets[0] {
				u.Sets = slices.Clone(u.Sets) // the slice belongs to the source
			}
			u.Sets[j].Changes = changes
			note(u, &u.Sets[j], n)
		}
	}
}

// without returns changes without those that are dropped, and how many these are.
func without(changes []cache.Change, where at, dropped map[at]*cache.Resource) (rest []cache.Change, n int) {
	for i := range changes {
		where.change = i
		r, is := dropped[where]
		if !is {
			if n > 0 {
				rest = append(rest, changes[i])
			}
			continue
		}
		if n++; n == 1 {
			rest = append(make([]cache.Change, 0, len(changes)), changes[:i]...)
		}
		if r != nil {
			rest = append(rest, cache.Change{Name: changes[i].Name, Resource: r, Stale: true})
		}
	}
	return rest, n
}

// noteKept logs how many changes were removed from a set, or from the names. The set then differs from the source's
// version.
func (g *Guard) noteKept(u *cache.Update, set *cache.SetUpdate, n int) {
	key := namesOf(u)
	if set != nil {
		key.Name = set.Name
		if s := g.machine.sets[key]; len(s.held) == n {
			s.origin = set.Origin // otherwise decide has noted it
		}
		set.Origin = noVersion()
	}
	if l, ok := g.Lines.Next(g.Log); ok {
		g.with(l, key).Warn("the guard holds resources that held members need", "members", n, "server", u.Server)
	}
}

// with returns a logger for lines about a set.
func (g *Guard) with(l *slog.Logger, set cache.Key) *slog.Logger {
	return l.With("authority", set.Scope.Authority, "partition", set.Scope.Partition, "type_url", set.TypeURL, "set", set.Name)
}
