package upstream

import (
	"maps"
	"slices"

	"google.golang.org/grpc/codes"

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
	set := s.wildcard != nil && s.wildcard.sent && (v.wildcard == nil || len(v.list) > 0)
	full := sotw && !v.hidden && (set || fullState[s.typeURL])
	held := s.members
	begins := set && held == nil
	if begins || set && full {
		s.members = make(map[string]*cache.Resource, len(v.list))
	}
	u.Changes = make([]cache.Change, 0, len(v.list))
	if begins && !sotw {
		u.Changes = s.takeListed(u.Changes)
	}
	listed := len(u.Changes)
	for i := range v.list {
		if c, ok := s.take(&v.list[i], set, held); ok {
			u.Changes = append(u.Changes, c)
		}
	}
	members := u.Changes[listed:len(u.Changes):len(u.Changes)]
	u.Changes = s.takeAliases(v, u.Changes)
	if full {
		u.Changes = s.takeMissing(u.Changes, set)
	}

	switch {
	case begins && len(s.members) == 0 && v.nack != "":
		// That nothing could be stored does not make the set an empty one.
		s.members = nil
		s.fail(s.wildcard, &cache.Error{
			Code:    codes.InvalidArgument,
			Message: "the control plane has sent nothing that can be stored: " + v.nack,
		}, &u)
	case begins && !sotw:
		s.wildcard.answered = true
		u.Sets = append(u.Sets, s.restate())
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
		s.fail(s.wildcard, v.wildcard, &u)
	}
	return u
}

// takeListed makes members of a set that begins of what is held by name and was
// listed. Who has asked for such a name anew in the meantime is told.
func (s *subscriptions) takeListed(changes []cache.Change) []cache.Change {
	for _, name := range slices.Sorted(maps.Keys(s.listed)) {
		r := s.listed[name]
		s.members[name] = r
		if sub := s.names[name]; sub != nil && !sub.answered {
			sub.answered, sub.answer = true, cache.Change{Name: name, Resource: r}
			changes = append(changes, sub.answer)
		}
	}
	s.listed = nil
	return changes
}

// take takes what was said of one name, and returns what to tell. set says that
// it is the wildcard's as well; held is what that gave before.
func (s *subscriptions) take(v *verdict, set bool, held map[string]*cache.Resource) (c cache.Change, tell bool) {
	sub := s.names[v.key]
	if sub == nil && !set {
		return c, false // nobody asked
	}
	c = cache.Change{Name: v.key, Err: v.err, Gone: v.gone}
	last := held[v.key]
	if sub != nil {
		c.Name = sub.name
		if sub.answer.Resource != nil {
			last = sub.answer.Resource
		}
	}
	if v.heartbeat {
		return s.keepAlive(sub, c.Name, last, set)
	}
	if v.resource != nil {
		c.Resource = s.encode(v.resource, c.Name)
	}
	keep := c.Resource
	if keep == nil && c.Err != nil && !c.Gone {
		keep = last // here as in the cache
	}
	if set {
		if keep != nil {
			s.members[v.key] = keep
		} else {
			delete(s.members, v.key)
		}
	}
	if sub == nil {
		return c, true
	}
	sub.seen, sub.reported = s.responses, v.err != nil && !v.bad
	sub.answered, sub.answer = true, c
	sub.answer.Resource = keep
	return c, set || sub.wanted
}

// keepAlive takes a heartbeat: there is nothing new about the resource, but it is
// not missing from the response.
func (s *subscriptions) keepAlive(sub *subscription, key string, held *cache.Resource, set bool) (cache.Change, bool) {
	if held == nil {
		return cache.Change{}, false
	}
	if set {
		s.members[key] = held
	}
	if sub == nil {
		return cache.Change{Name: key, Resource: held}, true
	}
	sub.seen = s.responses
	return sub.answer, true
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
func (s *subscriptions) takeMissing(changes []cache.Change, set bool) []cache.Change {
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		sub := s.names[name]
		absent := sub.answered && sub.answer.Resource == nil && sub.answer.Err == nil
		// A name that was added on this stream, or again, may be missing because the
		// response was sent before the request had come; but the wildcard came first.
		known := set || !sub.left && (sub.first || sub.answer.Resource != nil)
		if sub.seen == s.responses || !known || absent || sub.reported {
			continue
		}
		sub.answered, sub.answer = true, cache.Change{Name: name}
		if sub.wanted {
			changes = append(changes, sub.answer)
		}
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
