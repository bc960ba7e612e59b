package upstream

import (
	"cmp"
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// Globs of a control plane that does not know them, or is asked in SotW: they are
// fed from the wildcard of their type, of which there is one subscription, however
// many globs. TP1: "Glob", "Discovery request and responses".

// filters says that globs are fed from the wildcard.
func (s *subscriptions) filters() bool { return s.sotw || s.noGlobs }

// due says whether a subscription that was started is one upstream, too.
func (s *subscriptions) due(sub *subscription) bool {
	switch {
	case sub == s.wildcard:
		return sub.started || s.filters() && len(s.globs) > 0
	case sub.set != nil:
		return sub.started && !s.filters()
	}
	return sub.started
}

// restateGlob tells a new glob what the wildcard has of it, or why nothing.
func (s *subscriptions) restateGlob(sub *subscription, down *cache.Error, u *cache.Update) {
	w := s.wildcard
	switch {
	case w.answered:
		set := cache.SetUpdate{Name: sub.name, Full: true, Incomplete: w.set.incomplete, Partial: w.set.partial(), Origin: w.set.origin}
		for key, r := range s.inWildcard(sub.name).All() {
			set.Changes = append(set.Changes, cache.Change{Name: key, Resource: r})
		}
		for key, err := range w.set.refused {
			if s.globOf(key) == sub {
				set.Changes = append(set.Changes, cache.Change{Name: key, Err: err})
			}
		}
		slices.SortFunc(set.Changes, func(a, b cache.Change) int { return cmp.Compare(a.Name, b.Name) })
		u.Sets = append(u.Sets, set)
	case down != nil:
		s.fail(sub, down, u)
	case w.failure != nil:
		s.fail(sub, w.failure, u)
	}
}

// tellSet adds to an update what has become of a set: if that is the wildcard, to
// the globs that are fed from it as well.
func (s *subscriptions) tellSet(set cache.SetUpdate, u *cache.Update) {
	if sub := s.get(set.Name); sub != nil {
		set.Partial = sub.set.partial()
	}
	if set.Name != cache.Wildcard || !s.filters() || len(s.globs) == 0 {
		u.Sets = append(u.Sets, set)
		return
	}
	if s.wildcard.started {
		u.Sets = append(u.Sets, set)
	}
	parts := map[string]*cache.SetUpdate{}
	if set.Full || set.Complete || set.Err != nil {
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
			part = &cache.SetUpdate{Name: glob.name, Partial: set.Partial, Origin: set.Origin}
			parts[glob.name] = part
		}
		part.Changes = append(part.Changes, c)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		u.Sets = append(u.Sets, *parts[name])
	}
}

// reroute is for a stream of another form than the last one's, when nothing has been
// sent on it: globs are asked for by themselves now, or not any more. What is held
// of them was of the other kind, and is told again.
func (s *subscriptions) reroute() {
	for _, sub := range s.globs {
		s.settling.End(sub.set)
		s.release(sub.set)
		*sub = subscription{name: sub.name, started: true}
		sub.set = &set{sub: sub}
		sub.wanted = s.due(sub)
	}
	s.needWildcard()
}

// needWildcard begins or ends the subscription to the wildcard for the sake of the
// globs that are fed from it.
func (s *subscriptions) needWildcard() {
	if s.wildcard == nil && s.filters() && len(s.globs) > 0 {
		s.add(cache.Wildcard)
	}
	if w := s.wildcard; w != nil {
		s.want(w)
	}
}
