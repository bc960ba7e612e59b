package session

import (
	"cmp"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// xDS: TP2. If a name has several variants, clients with the scope's
// parameters get the one that matches. A resource without constraints is usually
// the only one of its name, and costs nothing here.

// variant is a variant that matches the scope's parameters.
type variant struct {
	constraints string
	resource    *cache.Resource
	aliases     []string
	seen        uint64 // the last response that had it
}

// variants are the matching variants of names that have variants.
type variants struct {
	of map[string][]variant
	// ambiguous are the names for which more than one matches, and warnings those of them
	// that were not logged yet.
	ambiguous map[string]bool
	warnings  []string
}

// drop forgets the variants of a name.
func (v *variants) drop(key string) {
	delete(v.of, key)
	delete(v.ambiguous, key)
}

// takeOver takes over the variants and the TTL of a resource from another core. shared says that both
// are on one stream. Otherwise the variants count as having come on an earlier stream.
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

// takeWarnings returns the names for which several variants match. It returns a name once each time
// that it begins to be ambiguous.
func (v *variants) takeWarnings() []string {
	w := v.warnings
	v.warnings = nil
	return w
}

// holder holds resources: names, or sets.
type holder interface {
	// holds returns the resource that is held under a key, or under an alias of it.
	holds(key string) *cache.Resource
	// lastSeen returns the last response that had the resource that is held under a key. It need only
	// be exact enough to know whether that came on the present stream.
	lastSeen(key string) uint64
	// concerns reports whether an update may concern a subscription.
	concerns(v *resourceUpdate) bool
}

// resolve replaces the updates of the variants of each name by one update of the name.
// full says that variants that are not in the list are gone.
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
	others := map[string]resourceUpdate{} // removals and errors, by name
	for i := range list {
		v := &list[i]
		if _, several := c.variants.of[v.key]; !several {
			rest = append(rest, *v)
			continue
		}
		parsed, err := parseConstraints(v.constraints)
		if err != nil || !parsed.match(c.params) {
			continue // it does not match, or is bad, which accept has reported
		}
		if v.resource != nil && !v.heartbeat {
			c.supersede(v.key)
		}
		c.takeVariant(v, before[v.key], others)
	}
	for _, key := range touched {
		if v, ok := c.choose(key, others, full, h); ok {
			rest = append(rest, v)
		}
		if len(c.variants.of[key]) == 0 {
			delete(c.variants.of, key)
		}
	}
	return rest
}

// touched returns the names in the list that have variants, in order. It begins to keep variants for
// names that had none before.
func (c *core) touched(list []resourceUpdate, full bool, h holder) []string {
	keys := map[string]bool{}
	for i := range list {
		v := &list[i]
		_, several := c.variants.of[v.key]
		if !several && v.constraints != "" && h.concerns(v) {
			if c.variants.of == nil {
				c.variants.of = map[string][]variant{}
			}
			// The only resource of the name becomes one of several variants.
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

// supersede drops variants of a name when another matching one comes: those that came on an earlier
// stream, because a client that reconnects cannot report which variant it holds, and in SotW those
// that came in earlier responses, because SotW has no removals.
func (c *core) supersede(key string) {
	c.variants.of[key] = slices.DeleteFunc(c.variants.of[key], func(o variant) bool {
		return o.seen <= c.before || c.sotw && o.seen < c.responses
	})
}

// takeVariant applies the update of one matching variant. before are the variants
// of its name that were held before the response. It adds removals and errors to others.
func (c *core) takeVariant(v *resourceUpdate, before []variant, others map[string]resourceUpdate) {
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
		// It removes all variants of the name, except those that have come in this response.
		held = slices.DeleteFunc(held, func(h variant) bool {
			return slices.ContainsFunc(before, func(b variant) bool { return b.constraints == h.constraints && b.resource == h.resource })
		})
	case v.gone && at >= 0:
		held = slices.Delete(held, at, at+1)
	case !v.gone && was >= 0 && at < 0:
		r = before[was].resource // only the newer resource is unavailable
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
		others[v.key] = resourceUpdate{key: v.key, gone: v.gone, err: v.err, bad: v.bad}
	}
}

// choose returns the update of a name: the variant to use, or that
// there is none. For a name that is missing in a full response, takeMissing makes the update instead.
func (c *core) choose(key string, others map[string]resourceUpdate, full bool, h holder) (resourceUpdate, bool) {
	held := c.variants.of[key]
	if len(held) == 0 {
		delete(c.variants.ambiguous, key)
		v, ok := others[key]
		if !ok && !full && h.holds(key) != nil {
			v, ok = resourceUpdate{key: key, gone: true}, true
		}
		return v, ok
	}
	// TP2: "Matching Ambiguity": servers should avoid it. The choice does not depend on the
	// order in which the variants came.
	slices.SortFunc(held, func(a, b variant) int { return cmp.Compare(a.constraints, b.constraints) })
	if len(held) > 1 && !c.variants.ambiguous[key] {
		c.variants.markAmbiguous(key)
		c.variants.warnings = append(c.variants.warnings, key)
	} else if len(held) == 1 {
		delete(c.variants.ambiguous, key)
	}
	v := resourceUpdate{key: key, variant: held[0].resource, aliases: held[0].aliases}
	if e, ok := others[key]; ok && !e.gone {
		v.err = e.err
	}
	return v, v.err != nil || v.variant != h.holds(key)
}

// expireVariant drops the variants of a name that have a TTL, which has expired. It returns the update
// of the name: that it is gone, or a variant without a TTL.
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
