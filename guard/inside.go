package guard

import (
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A control plane may also lose what is inside its resources: all endpoints of many ClusterLoadAssignments, the virtual
// hosts of a RouteConfiguration, the entries of a table. The guard counts these parts as it counts members. If many of
// them would go, it holds the earlier content of the resources, and remembers what the source says.
//
// The parts are counted in the encoded resources, so a type need not be known to the relay.

// said is what the source says of a resource whose earlier content is held.
type said struct {
	change cache.Change
	server string
	lost   int // how many parts are missing in it
}

// tally counts the parts of a type's resources over the first answers: went of had parts are gone.
type tally struct {
	had, went int
	until     time.Time
}

// holdsContents reports whether the earlier content of any resource is held.
func (g *Guard) holdsContents() bool { return len(g.contents.sets) > 0 }

// unsay takes back the earlier contents of which updates say something new: judgeContents holds them again, or not.
func (g *Guard) unsay(updates []cache.Update) (again map[place]deviation) {
	if !g.holdsContents() {
		return nil
	}
	again = map[place]deviation{}
	for i := range updates {
		each(&updates[i], func(a at, c *cache.Change, _ cache.Answer) {
			p := a.placeIn(&updates[i])
			p.content = true
			e, held := g.heldAt(p)
			if !held || !c.HasState() {
				return
			}
			e.said = &said{change: *c}
			again[p] = e
			delete(g.contents.sets[p.set].held, p.name)
		})
	}
	return again
}

// each calls f for each change of an update, with the answer to which it belongs.
func each(u *cache.Update, f func(a at, c *cache.Change, answer cache.Answer)) {
	for i := range u.Changes {
		f(at{set: -1, change: i}, &u.Changes[i], u.Changes[i].Answer)
	}
	for i := range u.Sets {
		for j := range u.Sets[i].Changes {
			a := at{set: i, change: j}
			c, answer := a.changeIn(u)
			f(a, c, answer)
		}
	}
}

// emptied is a resource that loses parts by an update.
type emptied struct {
	at
	in   place
	old  *cache.Resource
	lost int
	// stored is old, if the cache does not have it.
	stored *cache.Resource
	// again: its earlier content was held before. alone: it must be held, whatever others lose.
	again, alone bool
	until        time.Time // until when something that is held needs it, zero if nothing does
}

// judgeContents holds the earlier contents of resources that lose many parts. again are those that were held before.
func (g *Guard) judgeContents(now time.Time, updates []cache.Update, again map[place]deviation) {
	dropped := map[at]*cache.Resource{}
	for i := range updates {
		u := &updates[i]
		o := g.Options(u.Scope)
		if o == nil || len(again) == 0 && !g.mayLose(u, o) {
			continue
		}
		if strings.HasSuffix(u.TypeURL, "Collection") {
			continue // a list collection: its members count in views
		}
		held := 0
		all, stored := g.emptiedBy(u, o, again)
		for _, e := range g.beyond(now, u, all, stored, o) {
			e.update = i
			dropped[e.at] = e.stored
			if g.holdContent(now, u, &e, again, o); !e.again {
				u.Receipt.KeepBack("guard", u.TypeURL, e.in.name)
				held++
			}
		}
		if held > 0 {
			if l, ok := g.Lines.Next(g.Log); ok {
				g.with(l, namesOf(u)).Warn("the guard holds the earlier contents of resources that lost many parts", "members", held, "for", o.Hold, "server", u.Server, "event", "guard")
			}
		}
	}
	if len(dropped) > 0 {
		drop(updates, dropped, func(*cache.Update, *cache.SetUpdate, int) {})
	}
	g.restored(again)
}

// mayLose reports whether the parts of an update's resources count.
func (g *Guard) mayLose(u *cache.Update, o *Options) bool {
	if u.TypeURL == xdstype.EndpointsV3 && len(g.references.to) > 0 {
		return true
	}
	counts := func(c cache.Change) bool { return c.Resource != nil && o.guards(c.Answer) }
	return slices.ContainsFunc(u.Changes, counts) || slices.ContainsFunc(u.Sets, func(s cache.SetUpdate) bool {
		return s.Err == nil && len(s.Changes) > 0 && o.guards(s.Answer)
	})
}

// replaced is a resource that an update replaces or removes.
type replaced struct {
	at
	old *cache.Resource
}

// replaced returns the resources that an update replaces or removes. Those from n on are in the store, and not in the
// cache.
func (g *Guard) replaced(u *cache.Update) (all []replaced, n int) {
	before := g.cache.Before(u, false)
	before.Replaced(u, func(set, change int, old *cache.Resource) { all = append(all, replaced{at{0, set, change}, old}) })
	if n = len(all); g.StoredName == nil {
		return all, n
	}
	inCache := map[at]bool{}
	for _, r := range all {
		inCache[r.at] = true
	}
	add := func(set, change int, old *cache.Resource) {
		if old != nil && !inCache[at{set: set, change: change}] {
			all = append(all, replaced{at{0, set, change}, old})
		}
	}
	key := namesOf(u)
	for i := range u.Changes {
		key.Name = u.Changes[i].Name
		add(-1, i, g.StoredName(key))
	}
	for i := range u.Sets {
		key.Name = u.Sets[i].Name
		stored := map[string]*cache.Resource{}
		g.Stored(key, func(name string, r *cache.Resource) { stored[name] = r })
		for j := range u.Sets[i].Changes {
			if len(stored) > 0 {
				add(i, j, stored[u.Sets[i].Changes[j].Name])
			}
		}
	}
	return all, n
}

// emptiedBy returns the resources that lose parts by an update, and how many parts those have that are only stored.
func (g *Guard) emptiedBy(u *cache.Update, o *Options, again map[place]deviation) (all []emptied, parts int) {
	lose, n := g.replaced(u)
	for i, r := range lose {
		e := emptied{at: r.at, old: r.old}
		if i >= n {
			e.stored = r.old
			parts += partsOf(u.TypeURL, r.old)
		}
		c, answer := e.changeIn(u)
		if c.Resource == nil || r.old.TTL() > 0 { // no response renews the TTL of what is held
			continue
		}
		e.in = e.placeIn(u)
		e.in.content = true
		_, e.again = again[e.in]
		var need need
		if u.TypeURL == xdstype.EndpointsV3 {
			need = g.references.to[e.in.resource()]
		}
		if !e.again && need.places == 0 && !o.guards(answer) {
			continue
		}
		switch had, now := r.old.Value(), c.Resource.Value(); u.TypeURL {
		case xdstype.EndpointsV3:
			if !hasEndpoints(had) || hasEndpoints(now) {
				continue
			}
			e.lost, e.alone, e.until = 1, e.again || need.places > 0, need.until
		case xdstype.RouteV3:
			lost, of := lostHosts(had, now)
			e.lost, e.alone = lost, o.many(lost, of)
		default:
			e.lost = o.lostEntries(had, now)
			e.alone = true
		}
		if e.lost > 0 {
			all = append(all, e)
		}
	}
	return all, parts
}

// many reports whether so many parts are lost, of so many, that they must stay.
func (o *Options) many(lost, of int) bool {
	return lost >= o.Least && float64(lost) >= o.Ratio*float64(of)
}

// beyond returns the resources whose earlier content must be held: all of them if they lose many parts together.
// stored is how many parts the update's resources have that are only stored.
func (g *Guard) beyond(now time.Time, u *cache.Update, all []emptied, stored int, o *Options) []emptied {
	key := namesOf(u)
	t := g.tallies[key]
	counts := t != nil && now.Before(t.until)
	if counts {
		t.had += stored
	}
	if len(all) == 0 {
		return nil
	}
	if !counts {
		t = &tally{had: g.parts(u) + stored}
	}
	lost := 0
	for i := range all {
		lost += all[i].lost
	}
	total := t.went + lost
	for set, s := range g.contents.sets {
		for _, e := range s.held {
			if set.Scope == u.Scope && set.TypeURL == u.TypeURL {
				total += e.said.lost
			}
		}
	}
	if t.had > 0 && o.many(total, t.had) {
		return all
	}
	all = slices.DeleteFunc(all, func(e emptied) bool {
		if !e.alone {
			t.went += e.lost
			t.until = now.Add(firstAnswers)
			if c, _ := e.changeIn(u); u.TypeURL == xdstype.EndpointsV3 {
				g.passed.add(now, passing{place: e.in, resource: e.old, said: &said{change: *c, server: u.Server, lost: e.lost}})
			}
		}
		return !e.alone
	})
	if g.tallies == nil {
		g.tallies = map[cache.Key]*tally{}
	}
	if g.tallies[key] = t; t.until.IsZero() {
		delete(g.tallies, key)
	}
	return all
}

// parts returns how many parts the cache's resources of an update's type have.
func (g *Guard) parts(u *cache.Update) (n int) {
	if u.TypeURL != xdstype.EndpointsV3 && u.TypeURL != xdstype.RouteV3 {
		return 0
	}
	g.cache.Browse(u.Scope, u.TypeURL, func(i cache.Item) bool {
		n += partsOf(u.TypeURL, i.Resource)
		return true
	})
	return n
}

// partsOf returns how many parts of a resource count together with those of others: none in most types.
func partsOf(typeURL string, r *cache.Resource) int {
	switch {
	case r == nil:
	case typeURL == xdstype.RouteV3:
		return entries(r.Value())[virtualHosts]
	case typeURL == xdstype.EndpointsV3 && hasEndpoints(r.Value()):
		return 1
	}
	return 0
}

// holdContent holds the earlier content of a resource.
func (g *Guard) holdContent(now time.Time, u *cache.Update, e *emptied, again map[place]deviation, o *Options) {
	s := g.contents.sets[e.in.set]
	if s == nil {
		s = &set{held: map[string]deviation{}}
		g.contents.sets[e.in.set] = s
	}
	c, _ := e.changeIn(u)
	s.keepFor(now, e.in.name, e.old, o)
	held := s.held[e.in.name]
	switch before, was := again[e.in]; {
	case was:
		held = before
		held.at = later(held.at, e.until)
	case !e.until.IsZero():
		held.at = e.until
	}
	held.said = &said{change: *c, server: u.Server, lost: e.lost}
	s.held[e.in.name] = held
	s.wake(held.first())
	if !e.again {
		stats := g.Stats(u.Scope)
		stats.Held.Add(1)
		stats.Holds.Add(1)
		g.refer(e.in, e.old, held.at, false)
	}
}

// restored counts and logs the earlier contents that are not held again.
func (g *Guard) restored(again map[place]deviation) {
	byType := map[cache.Key]int{}
	for p, e := range again {
		if _, held := g.heldAt(p); held {
			continue
		}
		if s := g.contents.sets[p.set]; s != nil && len(s.held) == 0 {
			delete(g.contents.sets, p.set)
		}
		stats := g.Stats(p.set.Scope)
		stats.Held.Add(-1)
		if e.said.change.Resource != nil {
			stats.Restored.Add(1)
			byType[cache.Key{Scope: p.set.Scope, TypeURL: p.set.TypeURL}]++
		} else {
			stats.Released.Add(1)
		}
		g.leave(p, e.said.change.Resource)
	}
	for key, n := range byType {
		if l, ok := g.Lines.Next(g.Log); ok {
			g.with(l, key).Info("the source has contents again that the guard held", "members", n)
		}
	}
}

// unversion takes the version of the source from sets in which earlier contents are held: the set differs from it.
func (g *Guard) unversion(updates []cache.Update) {
	for i := range updates {
		u := &updates[i]
		sets := u.Sets
		for j := range sets {
			key := namesOf(u)
			key.Name = sets[j].Name
			s := g.contents.sets[key]
			if s == nil || sets[j].Origin == nil {
				continue
			}
			if s.origin = sets[j].Origin; len(g.held(key)) > 0 {
				s.origin = g.machine.sets[key].origin
			}
			if &sets[0] == &u.Sets[0] {
				u.Sets = slices.Clone(u.Sets) // the slice belongs to the source
			}
			u.Sets[j].Origin = noVersion()
		}
	}
}

// originAfter returns the version of a set after a release: the source's one, unless something else is still held in it.
func (g *Guard) originAfter(key cache.Key, origin *cache.OriginVersion) *cache.OriginVersion {
	if s := g.contents.sets[key]; len(g.held(key)) > 0 || s != nil && len(s.held) > 0 {
		return noVersion()
	}
	return origin
}

// Fields of envoy.config.route.v3.RouteConfiguration and VirtualHost, of envoy.config.endpoint.v3.ClusterLoadAssignment
// and LocalityLbEndpoints.
const (
	virtualHosts, hostName, hostDomains = 2, 1, 2

	localities, lbEndpoints, lbEndpointList, leds = 2, 2, 7, 8
)

// hasEndpoints reports whether a ClusterLoadAssignment has endpoints, or says where they are.
func hasEndpoints(value []byte) bool {
	for f := wire.Walk(value); f.Next(); {
		if f.Num != localities || f.Bytes == nil {
			continue
		}
		for l := wire.Walk(f.Bytes); l.Next(); {
			if l.Num == lbEndpoints || l.Num == lbEndpointList && len(l.Bytes) > 0 || l.Num == leds {
				return true
			}
		}
	}
	return false
}

// lostHosts returns how many virtual hosts of a RouteConfiguration another one lacks, and how many it has. A virtual host
// whose domain another one has now is replaced, and not lost.
func lostHosts(had, now []byte) (lost, of int) {
	names, domains := map[string]bool{}, map[string]bool{}
	eachHost(now, func(name string, host []byte) {
		names[name] = true
		for f := wire.Walk(host); f.Next(); {
			if f.Num == hostDomains {
				domains[string(f.Bytes)] = true
			}
		}
	})
	eachHost(had, func(name string, host []byte) {
		of++
		if names[name] {
			return
		}
		for f := wire.Walk(host); f.Next(); {
			if f.Num == hostDomains && domains[string(f.Bytes)] {
				return
			}
		}
		lost++
	})
	return lost, of
}

func eachHost(value []byte, f func(name string, host []byte)) {
	for r := wire.Walk(value); r.Next(); {
		if r.Num == virtualHosts {
			name, _ := wire.Last(r.Bytes, hostName)
			f(string(name), r.Bytes)
		}
	}
}

// lostEntries returns how many entries a list or map at the top of a resource loses, if these are many. A list that has as
// many entries as before has lost none.
func (o *Options) lostEntries(had, now []byte) (lost int) {
	before := entries(had)
	var after map[int]int
	for num, n := range before {
		if n < o.Least {
			continue
		}
		if after == nil {
			after = entries(now)
		}
		if l := n - after[num]; o.many(l, n) {
			lost = max(lost, l)
		}
	}
	return lost
}

// entries returns how often each field occurs that is a string, bytes or a message. Fields that occur several times are
// lists or maps.
func entries(value []byte) map[int]int {
	n := map[int]int{}
	for f := wire.Walk(value); f.Next(); {
		if f.OnlyBytes(); f.Num != 0 {
			n[int(f.Num)]++
		}
	}
	return n
}
