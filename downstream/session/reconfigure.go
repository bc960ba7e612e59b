package session

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// A new configuration may change a client's subscriptions: a subscription may mean another topic, or be refused or
// denied now, or be allowed again. Other subscriptions are not touched.
//
//   - A subscription that means another topic moves there, as for a redirect: the client keeps what it has until the
//     other topic has an answer.
//   - A subscription that means nothing any more is refused: the client keeps what it has, unless that is gone, or a set
//     of the client has a resource of the name.
//   - A subscription that the client may not have any more is denied. The client may drop what it has because of that,
//     so it counts as having nothing.
//   - A subscription that is no longer refused begins.
//
// reconfigure_names.go does this for names, reconfigure_sets.go for the wildcard and globs.

// reconfigure looks up all subscriptions again. The cache must not be held.
func (s *subscriptions) reconfigure(rights Rights, generation uint32, restricted bool) (r reconfigured) {
	s.Rights, s.Generation = rights, generation
	if m := s.named.shared; m != nil && !m.stays() && !s.moveGroup() {
		s.leaveGroup()
	}
	changed := s.lookUpNames(&r, restricted)
	s.reconfigureSets(&r)
	for _, of := range changed {
		sub := of.sub
		switch entry := sub.entry(); {
		case of.err != nil && entry == nil:
			s.refuseAgain(&r, sub, asError(of.err))
		case of.err != nil:
			s.refuseName(&r, of)
		case of.key.IsSet():
			if key := sub.key(); s.beginRefusedGlob(sub) {
				r.globs = append(r.globs, key)
			}
		case entry == nil:
			s.beginRefused(&r, sub, of.key)
		default:
			sub.moveTo(of.key)
			r.moved = append(r.moved, sub)
		}
	}
	s.moves += len(changed)
	if len(r.moved) > 0 {
		s.troubled().moved = append(s.troubled().moved, r.moved...)
	}
	return r
}

// Moving reports that a subscription has moved to another topic because of a new configuration, and has no answer
// there.
func (s *subscriptions) Moving() bool {
	if t := s.trouble; t != nil && len(t.moved) > 0 {
		t.moved = slices.DeleteFunc(t.moved, func(sub *nameSub) bool {
			return sub.is(hasEnded) || sub.entry() == nil || !sub.waitsForSource() && sub.entry().State().Status != cache.Requested
		})
		if len(t.moved) > 0 {
			return true
		}
	}
	if s.named.shared != nil && s.named.shared.before != nil {
		return true
	}
	for set := range s.sets() {
		if status, _ := set.status(); set.moved && status == cache.Requested {
			return true
		}
	}
	return false
}

// stays reports that the group's list means the same to the client as before, and that the client may have all of it.
func (m *membership) stays() bool {
	list, was := m.group.List(), m.first().Key()
	first, err := m.subs.lookUp(refByName(list.All()[0]))
	return err == nil && first == was && list.Means(first, m.subs)
}

// Reconfigure looks up all subscriptions again, for a client with these rights. The cache must not be held.
func (d *Delta) Reconfigure(rights Rights, generation uint32, restricted bool) {
	r := d.reconfigure(rights, generation, restricted)
	for _, set := range r.noViews {
		d.noLongerView(set)
	}
	for _, sub := range slices.Concat(r.moved, r.begun) {
		d.cancelRemoval(sub)
		if _, held := d.initial[sub.name()]; held {
			d.initial[sub.name()] = "" // the version is that of another origin
		}
	}
	for _, sub := range r.denied {
		d.cancelRemoval(sub)
		if !d.Relay {
			sub.setSent(sentNothing)
			sub.set(mayHold, false)
			if _, held := d.initial[sub.name()]; held {
				d.initial[sub.name()] = "" // the client may have dropped it
			}
		}
	}
	for _, sub := range r.refusedGlobs {
		put(&d.refusedGlobs, sub.key(), struct{}{})
	}
	for _, key := range r.globs {
		delete(d.refusedGlobs, key)
	}
	for _, set := range r.ended {
		d.deferred.forget("", set, false)
		d.reassign(set, nil)
	}
	if len(r.ended) > 0 {
		d.reviewBorrowed()
	}
}

// cancelRemoval lets the client keep what was about to be removed, because the name means something else now.
func (d *Delta) cancelRemoval(sub *nameSub) {
	if g, found := d.removals[sub.key()]; found && g.by == nil {
		delete(d.removals, sub.key())
	}
}

// Reconfigure looks up all subscriptions again, for a client with these rights. The cache must not be held.
func (s *SotW) Reconfigure(rights Rights, generation uint32, restricted bool) {
	r := s.reconfigure(rights, generation, restricted)
	for _, sub := range r.denied {
		if !s.Relay && !s.full() {
			s.knows(sub, sentNothing, 0)
			sub.set(mayHold, false)
		}
	}
	for _, sub := range r.notDenied {
		// Perhaps no state has told the client yet that the name was denied. The relay no longer knows what the client
		// has under the name, so no state has to contain the name, and no state waits for it.
		if !s.Relay && sub.sent() == sentResource {
			s.knows(sub, sentNothing, 0)
		}
		if !s.Relay {
			sub.set(mayHold, false)
		}
	}
	s.version.origin = nil // to be recomputed
}
