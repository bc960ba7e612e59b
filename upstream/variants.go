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
		s.takeVariant(v, before[v.key], said)
	}
	for _, key := range touched {
		if v, ok := s.choose(key, said); ok {
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
		if !several && v.constraints != "" {
			if s.variants == nil {
				s.variants = map[string][]variant{}
			}
			// What was the only one becomes one of several.
			s.variants[v.key] = nil
			if r := s.holds(v.key); r != nil {
				s.variants[v.key] = []variant{{resource: r}}
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

// holds returns what is held under a key, or for an alias of it.
func (s *subscriptions) holds(key string) *cache.Resource {
	if r := s.held(key); r != nil {
		return r
	}
	for _, alias := range s.aliased[key] {
		if r := s.held(alias); r != nil {
			return r
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
		r = s.encode(v.resource, v.key)
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
		held[at].resource, held[at].aliases = r, aliases
	} else if r != nil {
		held = append(held, variant{v.constraints, r, aliases})
	}
	s.variants[v.key] = held
	if v.resource == nil {
		said[v.key] = verdict{key: v.key, gone: v.gone, err: v.err, bad: v.bad}
	}
}

// choose returns what is to be said of a name: the variant that there is, or that
// there is none.
func (s *subscriptions) choose(key string, said map[string]verdict) (verdict, bool) {
	held := s.variants[key]
	if len(held) == 0 {
		delete(s.ambiguous, key)
		v, ok := said[key]
		if !ok && s.holds(key) != nil {
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
