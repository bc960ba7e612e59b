package guard

import (
	"slices"
	"strings"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// What went a moment before something was held that refers to it.

// passed is what has gone by first answers although it counts as lost, because it was too little. It is by resource, which
// may be a member of several sets, for as long as first answers count together.
type passed struct {
	of    map[cache.Key][]passing // nil if there is nothing
	swept time.Time
}

// passing is a resource that has gone from a place; said is what the source said, nil if it has removed the resource.
type passing struct {
	place
	resource *cache.Resource
	said     *said
	at       time.Time
}

func (p *passed) add(now time.Time, gone passing) {
	if gone.resource == nil || gone.resource.TTL() > 0 {
		return
	}
	if p.of == nil {
		p.of, p.swept = map[cache.Key][]passing{}, now
	}
	gone.at, gone.name = now, strings.Clone(gone.name)
	k := gone.place.resource()
	p.of[k] = append(p.of[k], gone)
}

// end forgets what is over, and that of which updates say something new.
func (p *passed) end(now time.Time, updates []cache.Update) {
	if p.of == nil {
		return
	}
	if now.Sub(p.swept) >= firstAnswers {
		p.swept = now
		for k, all := range p.of {
			if all = slices.DeleteFunc(all, func(gone passing) bool { return now.Sub(gone.at) >= firstAnswers }); len(all) == 0 {
				delete(p.of, k)
			}
		}
	}
	for i := range updates {
		each(&updates[i], func(a at, c *cache.Change, _ cache.Answer) {
			k := cache.Key{Scope: updates[i].Scope, TypeURL: updates[i].TypeURL, Name: c.Name}
			if all := p.of[k]; len(all) > 0 && c.HasState() {
				set := a.placeIn(&updates[i]).set
				if p.of[k] = slices.DeleteFunc(all, func(gone passing) bool { return gone.set == set }); len(p.of[k]) == 0 {
					delete(p.of, k)
				}
			}
		})
	}
	if len(p.of) == 0 {
		p.of = nil
	}
}

// bringBack returns updates that also restore resources to which held resources refer, and that have gone or were emptied a
// moment before: some control planes remove ClusterLoadAssignments before their Clusters.
func (g *Guard) bringBack(now time.Time, updates []cache.Update) []cache.Update {
	var back releases
	var brought map[cache.Key]struct{} // nil as long as there is nothing to restore
	for ; len(g.needed) > 0; g.needed = g.needed[1:] {
		k := g.needed[0]
		need := g.references.to[k]
		lately := g.lately(now, k)
		if len(lately) == 0 || need.places == 0 {
			continue
		}
		if brought == nil {
			brought = withResource(updates)
		}
		if _, ok := brought[k]; ok {
			continue
		}
		brought[k] = struct{}{}
		for i := range lately {
			p := &lately[i]
			if _, held := g.heldAt(p.place); held {
				continue
			}
			var origin *cache.OriginVersion
			if p.set.Name != "" {
				origin = noVersion()
			}
			back.add(p.set, cache.Change{Name: p.name, Resource: p.resource}, origin, updates[0].Server)
			g.keepAt(now, p.place, p.resource, &updates[0], need.until)
			if p.said != nil {
				s := g.contents.sets[p.set]
				e := s.held[p.name]
				e.said = p.said
				s.held[p.name] = e
			}
		}
		delete(g.passed.of, k)
	}
	g.needed = nil
	if len(back.updates) == 0 {
		return updates
	}
	for i := range back.updates {
		u, n := &back.updates[i], 0
		each(u, func(at, *cache.Change, cache.Answer) { n++ })
		if l, ok := g.Lines.Next(g.Log); ok {
			g.with(l, namesOf(u)).Warn("the guard restores resources that held members need", "members", n, "server", u.Server)
		}
	}
	all := append(slices.Clip(updates), back.updates...)
	cache.InOrder(all)
	return all
}

// lately returns the resources that were at the places of a resource until they went in the same first answers as what is
// held now. None is returned that no client may have any longer. Of names that were removed, the cache has what there was.
func (g *Guard) lately(now time.Time, k cache.Key) (all []passing) {
	o := g.Options(k.Scope)
	if o == nil {
		return nil
	}
	for _, gone := range g.passed.of[k] {
		if now.Sub(gone.at) < firstAnswers && g.has(gone.place) {
			all = append(all, gone)
		}
	}
	e, _ := g.cache.Find(k)
	if e == nil {
		return all
	}
	st := e.State()
	if st.Status != cache.Absent || st.Previous == nil || st.Previous.TTL() > 0 || !o.guards(st.Answer) || isDenied(st.Err) ||
		now.Sub(time.Unix(0, st.Since)) >= firstAnswers {
		return all
	}
	return append(all, passing{place: place{set: cache.Key{Scope: k.Scope, TypeURL: k.TypeURL}, name: k.Name}, resource: st.Previous})
}

// has reports whether the cache has an answer for the topic of a place.
func (g *Guard) has(p place) bool {
	k := p.set
	if k.Name == "" {
		k.Name = p.name
	}
	e, s := g.cache.Find(k)
	switch {
	case e != nil:
		return e.Snapshot().Status == cache.Present
	case s != nil:
		status, _ := s.Status()
		return status == cache.Present
	}
	return false
}

// withResource returns the resources that updates bring.
func withResource(updates []cache.Update) map[cache.Key]struct{} {
	resources := map[cache.Key]struct{}{}
	for i := range updates {
		u := &updates[i]
		each(u, func(_ at, c *cache.Change, _ cache.Answer) {
			if c.Resource != nil {
				resources[cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: c.Name}] = struct{}{}
			}
		})
	}
	return resources
}
