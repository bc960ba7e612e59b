package guard

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// What went a moment before something was held that refers to it.

// bringBack returns updates that also restore names to which held resources refer, and that have gone a moment before: some
// control planes remove ClusterLoadAssignments before their Clusters. The cache still has what there was.
func (g *Guard) bringBack(now time.Time, updates []cache.Update) []cache.Update {
	var back releases
	var brought map[cache.Key]struct{} // nil as long as there is nothing to restore
	for ; len(g.needed) > 0; g.needed = g.needed[1:] {
		k := g.needed[0]
		r := g.lately(now, k)
		if r == nil || g.references.to[k].places == 0 {
			continue
		}
		if brought == nil {
			brought = namesWithResource(updates)
		}
		if _, ok := brought[k]; ok {
			continue
		}
		brought[k] = struct{}{}
		p := place{set: cache.Key{Scope: k.Scope, TypeURL: k.TypeURL}, name: k.Name}
		back.add(p.set, cache.Change{Name: k.Name, Resource: r}, nil, updates[0].Server)
		g.keepAt(now, p, r, &updates[0], g.references.to[k].until)
	}
	g.needed = nil
	if len(back.updates) == 0 {
		return updates
	}
	for i := range back.updates {
		u := &back.updates[i]
		if l, ok := g.Lines.Next(g.Log); ok {
			g.with(l, namesOf(u)).Warn("the guard restores resources that held members need", "members", len(u.Changes), "server", u.Server)
		}
	}
	all := append(slices.Clip(updates), back.updates...)
	cache.InOrder(all)
	return all
}

// lately returns the resource that a name had until it went in the same first answers as what is held now, nil if there is
// none, or no client may have it any longer.
func (g *Guard) lately(now time.Time, k cache.Key) *cache.Resource {
	e, _ := g.cache.Find(k)
	o := g.Options(k.Scope)
	if e == nil || o == nil {
		return nil
	}
	st := e.State()
	if st.Status != cache.Absent || st.Previous == nil || st.Previous.TTL() > 0 || !o.guards(st.Answer) || isDenied(st.Err) ||
		now.Sub(time.Unix(0, st.Since)) >= firstAnswers {
		return nil
	}
	return st.Previous
}

// namesWithResource returns the names for which updates have a resource.
func namesWithResource(updates []cache.Update) map[cache.Key]struct{} {
	names := map[cache.Key]struct{}{}
	for i := range updates {
		u := &updates[i]
		for j := range u.Changes {
			if u.Changes[j].Resource != nil {
				names[cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: u.Changes[j].Name}] = struct{}{}
			}
		}
	}
	return names
}
