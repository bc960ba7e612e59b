package upstream

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// From what a response says to what the cache is told.

// fullState are the types whose SotW responses are the whole state, also of
// what is asked for by name. Those to a wildcard always are.
// xDS: "Grouping Resources into Responses".
var fullState = map[string]bool{
	"type.googleapis.com/envoy.config.cluster.v3.Cluster":   true,
	"type.googleapis.com/envoy.config.listener.v3.Listener": true,
}

// apply takes a response's verdicts. version is the version_info of a SotW
// response.
func (s *subscriptions) apply(v *verdicts, sotw bool, version string) cache.Update {
	s.responses++
	s.hidden = v.hidden
	u := s.newUpdate()
	set := s.knowsWildcard(v)
	full := sotw && !v.hidden && (set || fullState[s.typeURL])
	held := s.members
	if set && (full || held == nil) {
		s.members = make(map[string]*cache.Resource, len(v.list))
	}

	u.Changes = make([]cache.Change, 0, len(v.list))
	for i := range v.list {
		if c, ok := s.take(&v.list[i], set, held); ok {
			u.Changes = append(u.Changes, c)
		}
	}
	members := u.Changes[:len(u.Changes):len(u.Changes)]
	u.Changes = s.takeAliases(v, u.Changes)
	if full {
		u.Changes = s.takeMissing(u.Changes)
	}

	switch {
	case set:
		s.wildcard.answered = true
		if v.nack != "" {
			version = "" // the set is not what the control plane calls so
		}
		if full || len(members) > 0 {
			s.setVersion = version
		}
		u.Sets = append(u.Sets, cache.SetUpdate{
			Name: cache.Wildcard, Changes: members, Full: full, Version: version,
		})
	case s.wildcard != nil && v.wildcard != nil:
		s.wildcard.answered = true
		u.Sets = append(u.Sets, cache.SetUpdate{Name: cache.Wildcard, Err: v.wildcard})
	}
	return u
}

// knowsWildcard says whether a response may be taken for the wildcard's too.
// One that was added later on a stream may have crossed with a response that
// knows only the names: that would make the set look smaller than it is.
func (s *subscriptions) knowsWildcard(v *verdicts) bool {
	w := s.wildcard
	if w == nil || !w.sent || v.wildcard != nil {
		return false
	}
	if s.members != nil || w.first {
		return true
	}
	for i := range v.list {
		if s.names[v.list[i].key] == nil {
			return true
		}
	}
	w.heard = true
	return false
}

// take takes what was said of one name, and returns what to tell. set says that
// it is the wildcard's as well; held is what it gave before.
func (s *subscriptions) take(v *verdict, set bool, held map[string]*cache.Resource) (cache.Change, bool) {
	sub := s.names[v.key]
	if sub == nil && !set {
		return cache.Change{}, false // nobody asked
	}
	c := cache.Change{Name: v.key, Err: v.err, Gone: v.gone}
	if sub != nil {
		c.Name = sub.name
	}
	last := held[v.key]
	if sub != nil && sub.answer.Resource != nil {
		last = sub.answer.Resource
	}
	switch {
	case v.heartbeat:
		if last == nil {
			return cache.Change{}, false
		}
		c.Resource = last
	case v.resource != nil:
		c.Resource = s.encode(v.resource, c.Name)
	}
	if sub != nil {
		sub.seen = s.responses
		sub.answered, sub.answer = true, c
		sub.reported = v.err != nil && !v.bad
	}
	keep := c.Resource
	if keep == nil && c.Err != nil && !c.Gone {
		// The last good one stays, here as in the cache.
		keep = last
	}
	if sub != nil {
		sub.answer.Resource = keep
	}
	if set {
		if keep != nil {
			s.members[v.key] = keep
		} else {
			delete(s.members, v.key)
		}
	}
	return c, true
}

// takeAliases tells those who asked for a resource by another of its names.
// xDS: "Resource names" of "Incremental xDS".
func (s *subscriptions) takeAliases(v *verdicts, changes []cache.Change) []cache.Change {
	for i := range v.list {
		r := v.list[i].resource
		if r == nil || v.list[i].heartbeat {
			continue
		}
		for _, alias := range r.aliases {
			sub := s.names[canonical(alias)]
			if sub == nil || sub.seen == s.responses {
				continue
			}
			sub.seen, sub.answered, sub.reported = s.responses, true, false
			sub.answer = cache.Change{Name: sub.name, Resource: s.encode(r, "")}
			changes = append(changes, sub.answer)
		}
	}
	return changes
}

// takeMissing tells the names absent that a full response does not have.
// xDS: "Deleting Resources", "Knowing When a Requested Resource Does Not Exist".
func (s *subscriptions) takeMissing(changes []cache.Change) []cache.Change {
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		sub := s.names[name]
		absent := sub.answered && sub.answer.Resource == nil && sub.answer.Err == nil
		// A name that was added on this stream may be missing because the response
		// was sent before the request had come.
		known := sub.first || sub.answer.Resource != nil
		if sub.seen == s.responses || !sub.sent || !known || absent || sub.reported {
			continue
		}
		sub.answered, sub.answer = true, cache.Change{Name: name}
		changes = append(changes, sub.answer)
	}
	return changes
}

// encode makes what is stored. key is what it is kept under, if that is to
// share its memory with the resource's name.
func (s *subscriptions) encode(r *resource, key string) *cache.Resource {
	name := r.name
	if name == key {
		name = key
	}
	return cache.NewResource(cache.Spec{
		Name:    name,
		Version: r.version,
		TypeURL: s.typeURL,
		Value:   r.value,
		Extra:   r.extra,
	})
}
