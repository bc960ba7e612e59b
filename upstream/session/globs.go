package session

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// Globs in SotW, or of a control plane that does not know globs. They are
// fed from the wildcard of their type: one subscription for all
// globs. TP1: "Glob", "Discovery request and responses".

// KeepsApart reports that names cannot share the stream. If there is a wildcard, delta responses
// do not distinguish the wildcard's resources from those of names, and SotW control planes
// (go-control-plane's snapshots) take `*` among names for one more name.
func (s *Sets) KeepsApart() bool { return s.filters() || s.wildcard != nil || s.hadWildcard }

// filters reports whether globs are fed from the wildcard.
func (s *Sets) filters() bool { return s.sotw || s.noGlobs }

// due reports whether a set must be requested from the control plane.
func (s *Sets) due(c *set) bool {
	if c.isWildcard() {
		return c.started || s.filters() && len(s.globs) > 0
	}
	return c.started && !s.filters()
}

// requestOf returns the set that is requested from the control plane for a set: the wildcard for a glob that is fed from it.
func (s *Sets) requestOf(c *set) *set {
	if !c.isWildcard() && s.filters() {
		return s.wildcard
	}
	return c
}

// restateGlob adds the members of a glob that the wildcard has to the update, or the wildcard's error.
func (s *Sets) restateGlob(c *set, down *cache.Error, u *cache.Update) {
	w := s.wildcard
	switch {
	case w.answered:
		u.Sets = append(u.Sets, w.restateOf(c.name, s.inWildcard(c.name), func(key string) bool { return s.globOf(key) == c }))
	case down != nil:
		s.fail(&c.subscription, down, u)
	case w.failure != nil:
		s.fail(&c.subscription, w.failure, u)
	}
}

// send adds the update of a set to an update. If the set is the wildcard, send also adds the updates of
// the globs that are fed from it.
func (s *Sets) send(set cache.SetUpdate, u *cache.Update) {
	if c := s.find(set.Name); c != nil {
		set.Partial = c.partial()
	}
	if set.Name != cache.Wildcard || !s.filters() || len(s.globs) == 0 {
		u.Sets = append(u.Sets, set)
		return
	}
	if s.wildcard.started {
		u.Sets = append(u.Sets, set)
	}
	parts := map[string]*cache.SetUpdate{}
	if set.Extent != cache.Some || set.Err != nil {
		for name := range s.globs {
			part := set
			part.Name, part.Changes = name, nil
			parts[name] = &part
		}
	}
	for _, c := range set.Changes {
		glob := s.globOf(c.Name)
		if glob == nil {
			continue
		}
		part := parts[glob.name]
		if part == nil {
			part = &cache.SetUpdate{Name: glob.name, Partial: set.Partial, Origin: set.Origin, Answer: set.Answer}
			parts[glob.name] = part
		}
		part.Changes = append(part.Changes, c)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		u.Sets = append(u.Sets, *parts[name])
	}
}

// reroute is for a new stream of another form than the last one, before anything is sent on it: globs
// are now requested themselves, or no longer. Their members are dropped, and come again.
func (s *Sets) reroute() {
	for _, c := range s.globs {
		s.settling.End(c)
		s.release(c)
		*c = set{subscription: subscription{name: c.name, started: true}}
		c.wanted = s.due(c)
	}
	s.needWildcard()
}

// needWildcard begins or ends the subscription to the wildcard for the
// globs that are fed from it.
func (s *Sets) needWildcard() {
	if s.wildcard == nil && s.filters() && len(s.globs) > 0 {
		s.add(cache.Wildcard)
	}
	if w := s.wildcard; w != nil {
		s.want(w)
	}
}

// TP1: "Glob": a name is in one directory, and a glob is one directory. Clients decide
// how many globs there are, so the relay does not search all members of the wildcard for each:
// it keeps them by the glob of their directory. It begins that when a glob needs it, as most types
// have none.

// inWildcard returns the members of the wildcard that are in a glob's directory.
func (s *Sets) inWildcard(glob string) *cache.Resources {
	members := s.members()
	if members.Len() == 0 {
		return nil
	}
	m := &s.wildcard.byGlob
	if m.byGlob == nil {
		m.byGlob = map[string]*cache.Resources{}
		for key, r := range members.All() {
			m.put(key, r)
		}
	}
	return m.byGlob[glob]
}
