package upstream

import (
	"cmp"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// xDS: TP2. Of several variants of a name, those who ask with the scope's
// parameters are given the one that matches. What comes without constraints is
// the only one of its name, and costs nothing here.

// variant is one that matches.
type variant struct {
	constraints string
	resource    *cache.Resource
	aliases     []string
	seen        uint64 // the last response that had it
}

// resolve puts, for each name of which there are variants, one verdict in the
// place of those of the variants. full says that what is not in the list is not
// there any more.
func (s *subscriptions) resolve(list []verdict, full bool) []verdict {
	touched := s.touched(list, full)
	if len(touched) == 0 {
		return list
	}
	before := map[string][]variant{}
	for _, key := range touched {
		before[key] = slices.Clone(s.variants[key])
		if full {
			s.variants[key] = nil
		}
	}
	rest := make([]verdict, 0, len(list))
	said := map[string]verdict{} // what is left to say of a name if no variant matches
	for i := range list {
		v := &list[i]
		if _, several := s.variants[v.key]; !several {
			rest = append(rest, *v)
			continue
		}
		c, err := parseConstraints(v.constraints)
		if err != nil || !c.match(s.params) {
			continue // of others, or bad, which accept has said
		}
		if v.resource != nil && !v.heartbeat {
			s.supersede(v.key)
		}
		s.takeVariant(v, before[v.key], said)
	}
	for _, key := range touched {
		if v, ok := s.choose(key, said, full); ok {
			rest = append(rest, v)
		}
		if len(s.variants[key]) == 0 {
			delete(s.variants, key)
		}
	}
	return rest
}

// touched returns the names of which there are variants, in order, and begins to
// keep those of new ones.
func (s *subscriptions) touched(list []verdict, full bool) []string {
	keys := map[string]bool{}
	for i := range list {
		v := &list[i]
		_, several := s.variants[v.key]
		if !several && v.constraints != "" && s.concerns(v) {
			if s.variants == nil {
				s.variants = map[string][]variant{}
			}
			// What was the only one becomes one of several.
			s.variants[v.key] = nil
			if r := s.holds(v.key); r != nil {
				s.variants[v.key] = []variant{{constraints: r.Constraints(), resource: r, seen: s.lastSeen(v.key)}}
			}
			several = true
		}
		if several {
			keys[v.key] = true
		}
	}
	if full {
		for key := range s.variants {
			keys[key] = true
		}
	}
	sorted := make([]string, 0, len(keys))
	for key := range keys {
		sorted = append(sorted, key)
	}
	slices.Sort(sorted)
	return sorted
}

// concerns says whether anything is wanted that a verdict may be about.
func (s *subscriptions) concerns(v *verdict) bool {
	if g := s.globOf(v.key); g != nil && g.sent {
		return true
	}
	return s.wildcard != nil && s.wildcard.sent || s.names[v.key] != nil || len(s.claims.of[v.key]) > 0 ||
		slices.ContainsFunc(v.aliases, func(alias string) bool { return s.names[canonical(alias)] != nil })
}

// holds returns what is held under a key, or for an alias of it.
func (s *subscriptions) holds(key string) *cache.Resource {
	if r := s.held(key); r != nil {
		return r
	}
	for alias := range s.claims.of[key] {
		if sub := s.names[alias]; sub.via == key && sub.answer.Resource != nil {
			return sub.answer.Resource
		}
	}
	return nil
}

func (s *subscriptions) held(key string) *cache.Resource {
	if sub := s.names[key]; sub != nil && sub.answer.Resource != nil {
		return sub.answer.Resource
	}
	return s.member(key)
}

// supersede drops the variants of a name that matched, now that another comes which
// does, if they need not have been removed in so many words: a server has only one
// for everybody, SotW has no word for a removal, and who reconnects cannot say which
// variant it has.
func (s *subscriptions) supersede(key string) {
	s.variants[key] = slices.DeleteFunc(s.variants[key], func(o variant) bool {
		return o.seen <= s.before || s.sotw && o.seen < s.responses
	})
}

// lastSeen returns the last response that had what is held under a key, as far as it
// matters on which stream that came.
func (s *subscriptions) lastSeen(key string) uint64 {
	switch sub := s.names[key]; {
	case sub != nil:
		return sub.seen
	case s.isInherited(key):
		return s.before
	}
	return s.responses
}

// isInherited says that what is held under a key has not come on this stream.
func (s *subscriptions) isInherited(key string) bool {
	if sub := s.names[key]; sub != nil {
		return sub.seen <= s.before
	}
	_, inherited := s.inherited[key]
	return inherited
}

// forgetVariants drops those that only a wildcard had.
func (s *subscriptions) forgetVariants() {
	for key := range s.variants {
		if s.holds(key) == nil {
			delete(s.variants, key)
			delete(s.ambiguous, key)
		}
	}
}

// takeVariant takes what was said of one variant that matches. before are those
// of its name that were held before the response.
func (s *subscriptions) takeVariant(v *verdict, before []variant, said map[string]verdict) {
	of := func(o variant) bool { return o.constraints == v.constraints }
	held := s.variants[v.key]
	at := slices.IndexFunc(held, of)
	was := slices.IndexFunc(before, of)
	var r *cache.Resource
	switch {
	case v.heartbeat && was >= 0:
		r = before[was].resource.WithTTL(v.resource.ttl)
	case v.heartbeat:
		return
	case v.resource != nil:
		r = s.encode(v.resource)
	case v.gone && v.constraints == "" && was < 0:
		// The name as a whole, but for what has come with this.
		held = slices.DeleteFunc(held, func(h variant) bool {
			return slices.ContainsFunc(before, func(b variant) bool { return b.constraints == h.constraints && b.resource == h.resource })
		})
	case v.gone && at >= 0:
		held = slices.Delete(held, at, at+1)
	case !v.gone && was >= 0 && at < 0:
		r = before[was].resource // it could not be had anew
	}
	aliases := v.aliases
	if v.resource == nil || v.heartbeat {
		if was >= 0 {
			aliases = before[was].aliases
		}
	}
	if r != nil && at >= 0 {
		held[at] = variant{v.constraints, r, aliases, s.responses}
	} else if r != nil {
		held = append(held, variant{v.constraints, r, aliases, s.responses})
	}
	s.variants[v.key] = held
	if v.resource == nil {
		said[v.key] = verdict{key: v.key, gone: v.gone, err: v.err, bad: v.bad}
	}
}

// choose returns what is to be said of a name: the variant that there is, or that
// there is none. What is missing in a full response is for takeMissing to say.
func (s *subscriptions) choose(key string, said map[string]verdict, full bool) (verdict, bool) {
	held := s.variants[key]
	if len(held) == 0 {
		delete(s.ambiguous, key)
		v, ok := said[key]
		if !ok && !full && s.holds(key) != nil {
			v, ok = verdict{key: key, gone: true}, true
		}
		return v, ok
	}
	// TP2: "Matching Ambiguity": servers are to avoid it. Whichever came first, it
	// is always the same one that is taken.
	slices.SortFunc(held, func(a, b variant) int { return cmp.Compare(a.constraints, b.constraints) })
	if len(held) > 1 && !s.ambiguous[key] {
		if s.ambiguous == nil {
			s.ambiguous = map[string]bool{}
		}
		s.ambiguous[key] = true
		s.warnings = append(s.warnings, key)
	} else if len(held) == 1 {
		delete(s.ambiguous, key)
	}
	v := verdict{key: key, variant: held[0].resource, aliases: held[0].aliases}
	if e, ok := said[key]; ok && !e.gone {
		v.err = e.err
	}
	return v, v.err != nil || v.variant != s.holds(key)
}

// takeWarnings returns the names of which several variants match, once for each
// time that it comes to that.
func (s *subscriptions) takeWarnings() []string {
	w := s.warnings
	s.warnings = nil
	return w
}
