package session

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// A new configuration: what a client has subscribed to may mean other topics now, or nothing, or the
// client may not have it any more; or may, what it was refused. A subscription is touched only if so.
//
//   - One that means another topic moves there, as for a redirect: the client keeps what it has until the other
//     topic has an answer.
//   - One that means nothing any more is refused: the client keeps what it has.
//   - One that the client may not have any more is denied. The client may drop what it has for that, so
//     it counts as having nothing.
//   - One that was refused, and is not any more, begins.
//
// reconfigure_sets.go does the same for the wildcard and globs.

// relooked is a subscription to a name of which there is something new: what the name means now, or
// why it means nothing.
type relooked struct {
	sub *nameSub
	key cache.Key
	err error
}

// reconfigured is what became of subscriptions.
type reconfigured struct {
	moved, denied []*nameSub
	// refusedGlobs were globs until now, and have an error instead. globs are the keys of those that were refused
	// until now.
	refusedGlobs []*nameSub
	globs        []string
	ended        []*setSub // no spelling of them is left
}

// reconfigure looks up anew what is subscribed to. The cache must not be held.
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
			s.refuseName(&r, sub, of.err)
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

// Moving says that something has moved to another topic by a new configuration, and has no answer there.
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

// lookUpNames looks up the names that are not shared, and returns those of which there is something new.
// restricted says that there may be some that the client may not have for what they stand for.
func (s *subscriptions) lookUpNames(r *reconfigured, restricted bool) (changed []relooked) {
	for sub := range s.named.own() {
		key, err := s.lookUp(sub.ref())
		entry := sub.entry()
		switch {
		case err == nil && entry != nil && leadsTo(key, entry.Key()):
			if restricted && entry.AliasOf() != "" {
				s.lookUpAlias(r, sub)
			}
		case err != nil && entry == nil && *asError(err) == *sub.rare().err:
		default:
			changed = append(changed, relooked{sub, key, err})
		}
	}
	return changed
}

// lookUpAlias decides anew whether the client may have what a name is an alias of.
func (s *subscriptions) lookUpAlias(r *reconfigured, sub *nameSub) {
	rare := sub.rare()
	was := rare != nil && rare.deniedFor != 0
	sub.MoveToPending()
	switch {
	case s.Rights == nil && was:
		rare.deniedFor = 0
		s.trouble.deniedOwn--
	case s.Rights != nil && !was && sub.denial() != nil:
		r.denied = append(r.denied, sub)
	}
}

// leadsTo says that a name that means one topic watches another for that: it may have followed a redirect,
// and get what is not accepted yet.
func leadsTo(key, watched cache.Key) bool {
	watched.Scope.New = false
	if key.Scope.Derived == "" && watched.Scope.Derived == cache.Resolved {
		key.Scope.Derived = cache.Resolved
	}
	return key == watched
}

// stays says that the list of a group means the same as before to the client, and that it may have all of it.
func (m *membership) stays() bool {
	list, was := m.group.List(), m.first().Key()
	first, err := m.subs.lookUp(refByName(list.All()[0]))
	return err == nil && first == was && list.Means(first, m.subs)
}

// current is what the topic has that the name has meant until now, which the client may hold.
func (s *nameSub) current() *cache.Resource {
	st := s.entry().State()
	if s.redirected() {
		return st.Previous
	}
	return st.Resource
}

// moveTo has the subscription watch another topic, which the name means now.
func (s *nameSub) moveTo(key cache.Key) {
	was := s.current()
	if key.Name != s.entry().Name() {
		s.makeRare() // which has the client's spelling
	}
	host := s.of().Host
	host.Move(s.entry().Key(), key)
	s.watchInstead(host.Side(key))
	if waits := s.entry().Outdated(); waits || s.rare() != nil {
		s.makeRare().waits = waits
	}
	s.keepBeforeMove(was)
	s.MoveToPending()
}

// refuseName refuses a name that meant something until now.
func (s *subscriptions) refuseName(r *reconfigured, sub *nameSub, err error) {
	was, rare := sub.current(), sub.makeRare()
	s.Host.Leave(sub.entry().Key())
	s.Topics.Unwatch(sub.watch())
	rare.err, rare.withheld = asError(err), nil
	s.troubled().refused++
	s.Host.Refused(s.typeURL, sub.name(), err)
	if rare.deniedFor != 0 {
		rare.deniedFor = 0
		s.trouble.deniedOwn--
	}
	s.countLost(sub, false)
	if isDenial(rare.err) {
		s.denyName(r, sub)
		return
	}
	sub.set(mayHold, sub.is(mayHold) || sub.sent() == sentResource)
	sub.keepBeforeMove(was)
	sub.MoveToPending()
}

// denyName notes that a client may not have a name any more.
func (s *subscriptions) denyName(r *reconfigured, sub *nameSub) {
	rare := sub.rare()
	rare.setBefore(nil)
	s.setAlias(sub, rare, "")
	r.denied = append(r.denied, sub)
	sub.MoveToPending()
}

// refuseAgain gives a refused name another reason. That another rule denies it is nothing new to the client.
func (s *subscriptions) refuseAgain(r *reconfigured, sub *nameSub, err *cache.Error) {
	rare := sub.rare()
	was, reason := rare.err, sub.refusedState(rare.err).Err
	rare.err = err
	switch {
	case isDenial(err) && !isDenial(was):
		s.denyName(r, sub)
	case isDenial(err) && rare.sentErr == markError(reason):
		rare.sentErr = markError(sub.refusedState(err).Err)
	default:
		sub.MoveToPending()
	}
}

// beginRefused begins a subscription to a name that was refused until now.
func (s *subscriptions) beginRefused(r *reconfigured, sub *nameSub, key cache.Key) {
	err := s.Host.Admits(key)
	if err == nil {
		err = s.Host.Enter(key)
	}
	if err != nil {
		s.refuseAgain(r, sub, asError(err))
		return
	}
	rare := sub.rare()
	rare.err = nil
	s.trouble.refused--
	_, rare.withheld = s.Topics.WatchInGroup(s.Host.Side(key), sub.watch())
	sub.MoveToPending()
}

// Reconfigure looks up anew what is subscribed to, of a client with these rights. The cache must not be
// held.
func (d *Delta) Reconfigure(rights Rights, generation uint32, restricted bool) {
	r := d.reconfigure(rights, generation, restricted)
	for _, sub := range r.moved {
		d.keepsGone(sub)
		if _, held := d.initial[sub.name()]; held {
			d.initial[sub.name()] = "" // another origin's
		}
	}
	for _, sub := range r.denied {
		d.keepsGone(sub)
		if !d.Relay {
			sub.setSent(sentNothing)
			sub.set(mayHold, false)
			if _, held := d.initial[sub.name()]; held {
				d.initial[sub.name()] = "" // it may have dropped it
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
}

// keepsGone has the client keep what is to be sent as removed, of a name that means something else now.
func (d *Delta) keepsGone(sub *nameSub) {
	if g, gone := d.gone[sub.key()]; gone && g.by == nil {
		delete(d.gone, sub.key())
	}
}

// Reconfigure looks up anew what is subscribed to, of a client with these rights. The cache must not be
// held.
func (s *SotW) Reconfigure(rights Rights, generation uint32, restricted bool) {
	r := s.reconfigure(rights, generation, restricted)
	for _, sub := range r.denied {
		if !s.Relay && !s.full() {
			s.knows(sub, sentNothing, 0)
			sub.set(mayHold, false)
		}
	}
	s.version.origin = nil // it is to be found out
}
