package session

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

// variants are those that match of names that have several.
type variants struct {
	of map[string][]variant
	// ambiguous are the names of which more than one matches, and warnings those of them
	// that were not logged yet.
	ambiguous map[string]bool
	warnings  []string
}

// drop forgets the variants of a name.
func (v *variants) drop(key string) {
	delete(v.of, key)
	delete(v.ambiguous, key)
}

// takeOver takes over what others keep of a resource besides itself. shared says that they are
// of one stream: otherwise it is as if it had come on an earlier one.
func (c *core) takeOver(key string, from *core, shared bool) {
	if at, ok := from.expiries.At(key); ok {
		c.expiries.Set(key, at)
	}
	if len(from.variants.of[key]) == 0 {
		return
	}
	if c.variants.of == nil {
		c.variants.of = map[string][]variant{}
	}
	all := slices.Clone(from.variants.of[key])
	for i := range all {
		if !shared {
			all[i].seen = c.before
		}
	}
	c.variants.of[key] = all
	if from.variants.ambiguous[key] {
		c.variants.markAmbiguous(key)
	}
}

func (v *variants) markAmbiguous(key string) {
	if v.ambiguous == nil {
		v.ambiguous = map[string]bool{}
	}
	v.ambiguous[key] = true
}

// takeWarnings returns the names of which several variants match, once for each
// time that it comes to that.
func (v *variants) takeWarnings() []string {
	w := v.warnings
	v.warnings = nil
	return w
}

// holder knows what is held: names, or sets.
type holder interface {
	// holds returns what is held under a key, or for an alias of it.
	holds(key string) *cache.Resource
	// lastSeen returns the last response that had what is held under a key, as far as it
	// matters on which stream that came.
	lastSeen(key string) uint64
	// concerns says whether anything is wanted that an update may be about.
	concerns(v *resourceUpdate) bool
}

// resolve puts, for each name of which there are variants, one update in the
// place of those of the variants. full says that what is not in the list is not
// there any more.
func (c *core) resolve(list []resourceUpdate, full bool, h holder) []resourceUpdate {
	touched := c.touched(list, full, h)
	if len(touched) == 0 {
		return list
	}
	before := map[string][]variant{}
	for _, key := range touched {
		before[key] = slices.Clone(c.variants.of[key])
		if full {
			c.variants.of[key] = nil
		}
	}
	rest := make([]resourceUpdate, 0, len(list))
	said := map[string]resourceUpdate{} // what is left to say of a name if no variant matches
	for i := range list {
		v := &list[i]
		if _, several := c.variants.of[v.key]; !several {
			rest = append(rest, *v)
			continue
		}
		parsed, err := parseConstraints(v.constraints)
		if err != nil || !parsed.match(c.params) {
			continue // of others, or bad, which accept has said
		}
		if v.resource != nil && !v.heartbeat {
			c.supersede(v.key)
		}
		c.takeVariant(v, before[v.key], said)
	}
	for _, key := range touched {
		if v, ok := c.choose(key, said, full, h); ok {
			rest = append(rest, v)
		}
		if len(c.variants.of[key]) == 0 {
			delete(c.variants.of, key)
		}
	}
	return rest
}

// touched returns the names of which there are variants, in order, and begins to
// keep those of new ones.
func (c *core) touched(list []resourceUpdate, full bool, h holder) []string {
	keys := map[string]bool{}
	for i := range list {
		v := &list[i]
		_, several := c.variants.of[v.key]
		if !several && v.constraints != "" && h.concerns(v) {
			if c.variants.of == nil {
				c.variants.of = map[string][]variant{}
			}
			// What was the only one becomes one of several.
			c.variants.of[v.key] = nil
			if r := h.holds(v.key); r != nil {
				c.variants.of[v.key] = []variant{{constraints: r.Constraints(), resource: r, seen: h.lastSeen(v.key)}}
			}
			several = true
		}
		if several {
			keys[v.key] = true
		}
	}
	if full {
		for key := range c.variants.of {
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

// supersede drops the variants of a name that matched, now that another comes which
// does, if they need not have been removed in so many words: a server has only one
// for everybody, SotW has no word for a removal, and who reconnects cannot say which
// variant it has.
func (c *core) supersede(key string) {
	c.variants.of[key] = slices.DeleteFunc(c.variants.of[key], func(o variant) bool {
		return o.seen <= c.before || c.sotw && o.seen < c.responses
	})
}

// takeVariant takes what was said of one variant that matches. before are those
// of its name that were held before the response.
func (c *core) takeVariant(v *resourceUpdate, before []variant, said map[string]resourceUpdate) {
	of := func(o variant) bool { return o.constraints == v.constraints }
	held := c.variants.of[v.key]
	at := slices.IndexFunc(held, of)
	was := slices.IndexFunc(before, of)
	var r *cache.Resource
	switch {
	case v.heartbeat && was >= 0:
		r = before[was].resource.WithTTL(v.resource.TTL)
	case v.heartbeat:
		return
	case v.resource != nil:
		r = c.encode(v.resource)
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
		held[at] = variant{v.constraints, r, aliases, c.responses}
	} else if r != nil {
		held = append(held, variant{v.constraints, r, aliases, c.responses})
	}
	c.variants.of[v.key] = held
	if v.resource == nil {
		said[v.key] = resourceUpdate{key: v.key, gone: v.gone, err: v.err, bad: v.bad}
	}
}

// choose returns what is to be said of a name: the variant that there is, or that
// there is none. What is missing in a full response is for takeMissing to say.
func (c *core) choose(key string, said map[string]resourceUpdate, full bool, h holder) (resourceUpdate, bool) {
	held := c.variants.of[key]
	if len(held) == 0 {
		delete(c.variants.ambiguous, key)
		v, ok := said[key]
		if !ok && !full && h.holds(key) != nil {
			v, ok = resourceUpdate{key: key, gone: true}, true
		}
		return v, ok
	}
	// TP2: "Matching Ambiguity": servers are to avoid it. Whichever came first, it
	// is always the same one that is taken.
	slices.SortFunc(held, func(a, b variant) int { return cmp.Compare(a.constraints, b.constraints) })
	if len(held) > 1 && !c.variants.ambiguous[key] {
		c.variants.markAmbiguous(key)
		c.variants.warnings = append(c.variants.warnings, key)
	} else if len(held) == 1 {
		delete(c.variants.ambiguous, key)
	}
	v := resourceUpdate{key: key, variant: held[0].resource, aliases: held[0].aliases}
	if e, ok := said[key]; ok && !e.gone {
		v.err = e.err
	}
	return v, v.err != nil || v.variant != h.holds(key)
}

// expireVariant drops what is held under a key and was not renewed, and returns what is to
// be said of it: that it is gone, or a variant that has no TTL.
func (c *core) expireVariant(key string, h holder) resourceUpdate {
	held := slices.DeleteFunc(c.variants.of[key], func(o variant) bool { return o.resource.TTL() > 0 })
	if len(held) == 0 {
		delete(c.variants.of, key)
		return resourceUpdate{key: key, gone: true}
	}
	c.variants.of[key] = held
	v, _ := c.choose(key, nil, false, h)
	return v
}
