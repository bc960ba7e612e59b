package upstream

import (
	"maps"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// Servers that share versions: what one of them has said may be offered to another
// in initial_resource_versions, which then sends what differs.

// seed takes what is held elsewhere for what the control plane has said before, of
// all that has no answer yet. Only in delta a server says of each name that it does
// not have that it does not.
func (s *subscriptions) seed(now time.Time, held func(cache.Key, func(string, *cache.Resource))) {
	take := func(key string, r *cache.Resource) {
		if r.TTL() > 0 {
			s.expiries.Set(key, now.Add(r.TTL()))
		}
	}
	for sub := range s.all() {
		if !sub.wanted || sub.answered || sub.set != nil && sub.set.members != nil {
			continue
		}
		held(cache.Key{Scope: s.scope, TypeURL: s.typeURL, Name: sub.name}, func(key string, r *cache.Resource) {
			switch {
			case r.Alias() || r.DoNotCache():
				// It is not known of which resource, or it is not for us.
			case sub.set != nil:
				if sub.set.members == nil {
					sub.set.members = cache.NewResources(0)
				}
				sub.set.members.Put(key, r)
				sub.answered = true
				take(key, r)
			default:
				sub.answered, sub.answer = true, cache.Change{Name: key, Resource: r}
				take(key, r)
			}
		})
	}
}

// Resend tells the sink once more all that is held, and why what is wanted and not
// held cannot be had: for a sink that has not listened. It neither blocks nor calls
// the sink.
func (s *Stream) Resend() { s.note(note{resend: true}) }

// Resend is [Stream.Resend] of each stream.
func (s *Streams) Resend() {
	for _, st := range s.all() {
		st.Resend()
	}
	s.refused.restate()
}

// resendAll does what Resend asked for. The caller holds mu.
func (s *Stream) resendAll() {
	for _, f := range s.sorted() {
		s.apply(f.subs.restateAll())
	}
}

func (s *subscriptions) restateAll() cache.Update {
	u := s.newUpdate()
	if w := s.wildcard; w != nil && w.wanted {
		switch {
		case w.answered && w.started:
			u.Sets = append(u.Sets, w.set.restate())
		case w.failure != nil:
			s.fail(w, w.failure, &u)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.globs)) {
		switch sub := s.globs[name]; {
		case s.filters():
			s.restateGlob(sub, nil, &u)
		case sub.answered:
			u.Sets = append(u.Sets, sub.set.restate())
		case sub.failure != nil:
			s.fail(sub, sub.failure, &u)
		}
	}
	for _, name := range s.sorted() {
		switch sub := s.names[name]; {
		case sub.answered:
			u.Changes = append(u.Changes, sub.answer)
		case sub.failure != nil:
			s.fail(sub, sub.failure, &u)
		}
	}
	return u
}
