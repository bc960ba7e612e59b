package session

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// changedLookup is a subscription to a name whose lookup has changed: the name means something else now, or is refused for
// another reason.
type changedLookup struct {
	sub *nameSub
	key cache.Key
	err error
	// gone: it is refused now, and was gone as far as the sets of before know. was is what it had until now, if it is
	// refused.
	gone bool
	was  *cache.Resource
}

// reconfigured is what a new configuration has changed in the subscriptions.
type reconfigured struct {
	moved, denied []*nameSub
	begun         []*nameSub // were refused until now
	// noViews were views until now.
	noViews []*setSub
	// notDenied were denied, and are now refused for another reason.
	notDenied []*nameSub
	// refusedGlobs were globs until now, and have an error instead. globs are the keys of globs that were refused until
	// now.
	refusedGlobs []*nameSub
	globs        []string
	ended        []*setSub // those without a spelling
}

// leadsTo reports that watched is the topic that a name with that key watches: the name may have followed a redirect,
// and may get what is not accepted yet.
func leadsTo(key, watched cache.Key) bool {
	watched.Scope.New = false
	if key.Scope.Derived == "" && watched.Scope.Derived == cache.Resolved {
		key.Scope.Derived = cache.Resolved
	}
	return key == watched
}

// lookUpNames looks up the names that are not shared, and returns those whose lookup has changed. restricted: there may
// be names that the client may not have because of what they stand for.
func (s *subscriptions) lookUpNames(r *reconfigured, restricted bool) (changed []changedLookup) {
	for sub := range s.named.own() {
		key, err := s.lookUpName(sub.ref())
		entry := sub.entry()
		switch {
		case err == nil && entry != nil && leadsTo(key, entry.Key()):
			if restricted && entry.AliasOf() != "" {
				s.lookUpAlias(r, sub)
			}
		case err != nil && entry == nil && *asError(err) == *sub.rare().err:
		default:
			of := changedLookup{sub: sub, key: key, err: err}
			if err != nil && entry != nil {
				of.gone, of.was = s.isGone(sub), s.lastResource(sub)
			}
			changed = append(changed, of)
		}
	}
	return changed
}

// lookUpAlias decides again whether the client may have what a name is an alias of.
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

// refuseName refuses a name that meant something until now.
func (s *subscriptions) refuseName(r *reconfigured, of changedLookup) {
	sub, err, was := of.sub, of.err, of.was
	rare := sub.makeRare()
	if rare.gone = of.gone && s.isGone(sub); rare.gone {
		was = sub.entry().State().Previous
	}
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
	if sub.sent() == sentResource && was != nil && rare.beforeRedirect == nil {
		sub.keepBeforeRedirect(was) // if it is gone, until the removal may be sent
	}
	if rare.gone {
		s.setAlias(sub, rare, "")
	}
	sub.MoveToPending()
}

// lastResource returns the resource of a name that the client has, or else would be sent next; nil if there is none. It
// may come from a set.
func (s *subscriptions) lastResource(sub *nameSub) *cache.Resource {
	if st := sub.state(); st.Status == cache.Present {
		return st.Resource
	}
	if was := sub.current(); was != nil && sub.Note == s.mark(was) {
		return was
	}
	res, _, _ := first(sub.memberKey(), s.substitutes(sub)...)
	return res
}

// takeFromSet records that the client has the resource of a name from a set. If the name is refused, the client no longer
// has what it kept.
func (s *nameSub) takeFromSet() {
	if s.entry() == nil {
		rare := s.rare()
		rare.gone = false
		rare.setBefore(nil)
	}
}

// replacement returns the resource that a set of the client has in place of what the client keeps of a refused name, and
// the set; nil if there is none.
func (s *subscriptions) replacement(sub *nameSub) (*cache.Resource, *setSub) {
	if sub.entry() != nil || isDenial(sub.rare().err) || !s.hasSets() {
		return nil, nil
	}
	res, by, _ := first(sub.memberKey(), s.substitutes(sub)...)
	return res, by
}

// substitutes are the sets whose members may replace the resource of a name: see ownsName.
func (s *subscriptions) substitutes(sub *nameSub) []*setSub {
	return slices.DeleteFunc(s.covering(sub.ref()), func(set *setSub) bool {
		return set == s.wild && urn.IsXdstp(sub.name())
	})
}

// isGone reports that the resource of a name is known not to exist, and that no set of the client has it, or may get it.
func (s *subscriptions) isGone(sub *nameSub) bool {
	if sub.waitsForSource() || sub.entry().State().Status != cache.Absent {
		return false
	}
	res, _, waits := first(sub.memberKey(), s.substitutes(sub)...)
	return res == nil && waits == nil
}

// denyName records that a client may no longer have a name.
func (s *subscriptions) denyName(r *reconfigured, sub *nameSub) {
	rare := sub.rare()
	rare.gone = false
	rare.setBefore(nil)
	s.setAlias(sub, rare, "")
	r.denied = append(r.denied, sub)
	sub.MoveToPending()
}

// refuseAgain gives a refused name another reason. If only the denying rule has changed, the client is not sent that.
func (s *subscriptions) refuseAgain(r *reconfigured, sub *nameSub, err *cache.Error) {
	rare := sub.rare()
	if sub.sent() == sentAbsent {
		rare.gone = false
	}
	was, reason := rare.err, sub.refusedState(rare.err).Err
	rare.err = err
	switch {
	case isDenial(err) && !isDenial(was):
		s.denyName(r, sub)
	case isDenial(err) && rare.sentErr == markError(reason):
		rare.sentErr = markError(sub.refusedState(err).Err)
	default:
		if isDenial(was) && !isDenial(err) {
			r.notDenied = append(r.notDenied, sub)
		}
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
	rare.err, rare.gone = nil, false
	s.trouble.refused--
	_, rare.withheld = s.Topics.WatchInGroup(s.Host.Side(key), sub.watch())
	sub.MoveToPending()
	r.begun = append(r.begun, sub)
}

// current returns what the previous topic of the name has, which the client may hold.
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
		s.makeRare() // to store the client's spelling
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
