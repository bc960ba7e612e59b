package session

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// Aliases: the answer for a name may be a resource with a name of its own that lists the
// requested name among its aliases. For which resource a name stands follows from all of a response,
// whatever the order of its resources. xDS: "Resource names" of "Incremental xDS".
//
//   - A resource under the name itself takes precedence over those that list it as an alias, if it
//     has come on the present stream.
//   - If several resources list the name, it stands for the one that did so last. In
//     one response that is the one that had not listed it before, or else the one for which the
//     name stands already.
//   - If that resource no longer lists it, the name stands for another that still does. If that one is
//     not held, the relay requests the name again.

// aliasUpdate collects the changes of aliases by a response.
type aliasUpdate struct {
	names   *Names
	changes []cache.Change
	gains   map[string]*resourceUpdate // the resource for which each alias stands, if the response has it
	losses  map[string]*resourceUpdate // the update by which an alias has lost its resource
	made    map[*resourceUpdate]*cache.Resource
}

// takeAliases adds the changes of names that are aliases of resources. list are all updates of a
// response.
func (n *Names) takeAliases(list []resourceUpdate, changes []cache.Change) []cache.Change {
	if len(n.claims.by) == 0 && !slices.ContainsFunc(list, func(v resourceUpdate) bool { return len(v.aliases) > 0 }) {
		return changes
	}
	r := aliasUpdate{names: n, changes: changes}
	for i := range list {
		if v := &list[i]; len(v.aliases) > 0 && !v.present() {
			r.end(v)
		}
	}
	for i := range list {
		if v := &list[i]; len(v.aliases) > 0 && v.present() {
			r.gain(v)
		}
	}
	for i := range list {
		v := &list[i]
		if len(v.aliases)+len(n.claims.of[v.key]) > 0 {
			r.update(v)
		}
		if v.gone && len(n.claims.by[v.key]) > 0 {
			r.lose(v.key, v) // there is no resource under the name itself any more
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.gains)) {
		r.settle(name, r.gains[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.losses)) {
		if r.gains[name] == nil {
			r.fall(name, r.losses[name])
		}
	}
	return r.changes
}

// present reports whether there is a resource that is new, or was sent again.
func (v *resourceUpdate) present() bool { return v.variant != nil || v.resource != nil && !v.heartbeat }

// end notes that the aliases of an update stand for nothing, whichever resources listed them before.
func (r *aliasUpdate) end(v *resourceUpdate) {
	for _, alias := range v.aliases {
		if name := canonical(alias); r.names.subs[name] != nil && name != v.key {
			r.names.unalias(name)
			r.lose(name, v)
		}
	}
}

// gain notes the names for which a resource is the answer.
func (r *aliasUpdate) gain(v *resourceUpdate) {
	for _, alias := range v.aliases {
		name := canonical(alias)
		if name == v.key || r.names.subs[name] == nil {
			continue
		}
		if other := r.gains[name]; other == nil || r.before(name, v, other) {
			if r.gains == nil {
				r.gains = map[string]*resourceUpdate{}
			}
			r.gains[name] = v
		}
	}
}

// before reports whether a takes precedence over b, when both list a name in one response.
func (r *aliasUpdate) before(name string, a, b *resourceUpdate) bool {
	if had := r.names.claims.has(a.key, name); had != r.names.claims.has(b.key, name) {
		return !had
	}
	via := r.names.subs[name].via
	return b.key != via && (a.key == via || a.key < b.key)
}

// lose notes that a name may now stand for another resource, or for none.
func (r *aliasUpdate) lose(name string, v *resourceUpdate) {
	if r.losses == nil {
		r.losses = map[string]*resourceUpdate{}
	}
	r.losses[name] = v
}

// update records the aliases that a resource lists now. If the update is a heartbeat or an error, it
// applies that to the present aliases.
func (r *aliasUpdate) update(v *resourceUpdate) {
	s := r.names
	before := slices.Sorted(maps.Keys(s.claims.of[v.key]))
	replaced := v.present() || v.gone
	for _, name := range before {
		sub := s.subs[name]
		answers := sub.via == v.key && r.gains[name] == nil
		held := sub.answer.Resource
		switch {
		case replaced:
			s.claims.remove(v.key, name)
			if answers {
				r.lose(name, v)
			}
		case !answers || held == nil:
		case v.heartbeat:
			r.change(name, v.key, v, cache.Change{Resource: held.WithTTL(v.resource.TTL)})
		default: // the held resource remains
			r.change(name, v.key, v, cache.Change{Resource: held, Err: v.err})
		}
	}
	if !v.present() {
		return
	}
	for _, alias := range v.aliases {
		if name := canonical(alias); name != v.key && s.subs[name] != nil {
			s.claims.add(v.key, name)
		}
	}
}

// settle makes a name stand for a resource of the response.
func (r *aliasUpdate) settle(name string, v *resourceUpdate) {
	s := r.names
	s.claims.add(v.key, name) // now it is the last one that lists the name
	sub := s.subs[name]
	if sub.via == "" && sub.answer.Resource != nil && sub.seen > s.before {
		return // there is a resource under the name itself
	}
	res := r.made[v]
	if res == nil {
		if res = v.variant; res == nil {
			res = s.encode(v.resource)
		}
		if r.made == nil {
			r.made = map[*resourceUpdate]*cache.Resource{}
		}
		res = res.Aliased()
		r.made[v] = res
	}
	r.change(name, v.key, v, cache.Change{Resource: res, Err: v.err, Gone: v.gone})
}

// fall makes a name that has lost its resource stand for another one, or for none.
func (r *aliasUpdate) fall(name string, v *resourceUpdate) {
	s := r.names
	if sub := s.subs[name]; sub.via == "" && sub.answer.Resource != nil && sub.seen == s.responses {
		return // there is a resource under the name itself
	}
	for _, own := range slices.Backward(s.claims.by[name]) {
		if res := s.holds(own); res != nil && canonical(res.Name()) == own {
			r.change(name, own, v, cache.Change{Resource: res.Aliased()})
			return
		}
	}
	if _, more := s.claims.more[name]; more || len(s.claims.by[name]) > 0 {
		s.refresh(s.subs[name]) // its resource is not held, or not known
		return
	}
	r.change(name, "", v, cache.Change{Err: v.err, Gone: true})
}

// change adds the change of a name. via is the resource that lists the name as an alias, empty if none
// does.
func (r *aliasUpdate) change(name, via string, v *resourceUpdate, c cache.Change) {
	s, sub := r.names, r.names.subs[name]
	c.Name = sub.name
	c.Origin = s.versionIn(&c)
	s.answer(sub, c)
	sub.reported = c.Err != nil && !v.bad
	sub.via = via
	if sub.wanted {
		r.changes = append(r.changes, c)
	}
}
