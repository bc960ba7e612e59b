package session

import (
	"github.com/xds-relay/xds-relay/cache"
)

// Redirects. TP1: "Server redirects". As long as a name is no redirect, the subscription watches the authority's own
// entry. When it is one, the subscription moves to what the relay derives for the same key (cache.Resolved), and stays
// there. Until that has an answer nothing is sent, and the client keeps what it has.

// keeper and setKeeper watch the old topic until the new one is watched, so that the cache does not release it in
// between.
type keeper struct{ cache.Watch }

// Changed implements cache.Watcher.
func (*keeper) Changed() cache.Waker { return nil }

type setKeeper struct{ cache.SetWatch }

// Changed implements cache.Watcher.
func (*setKeeper) Changed() cache.Waker { return nil }

// move implements follower.
func (s *nameSub) move() {
	if s.is(hasEnded) || !s.redirected() {
		return
	}
	key, was := s.entry().Key(), s.entry().State().Previous
	key.Scope.Derived = cache.Resolved
	s.watchInstead(key)
	s.keepBeforeMove(was)
	s.MoveToPending()
}

// watchInstead has the subscription watch another topic.
func (s *nameSub) watchInstead(key cache.Key) {
	topics := s.of().Topics
	var k keeper
	topics.Watch(s.entry().Key(), &k)
	topics.Unwatch(s.watch())
	_, withheld := topics.WatchInGroup(key, s.watch())
	topics.Unwatch(&k)
	if withheld != nil || s.rare() != nil {
		s.makeRare().withheld = withheld
	}
}

// keepBeforeMove lets the client keep what the previous topic had, if the client holds that, until the new topic has an
// answer.
func (s *nameSub) keepBeforeMove(was *cache.Resource) {
	if was != nil && s.sent() == sentResource && s.Note == s.of().mark(was) {
		s.keepBeforeRedirect(was)
	}
}

// meansSomething reports that a name has a topic, or that the client keeps a resource from before the name became a
// redirect.
func (s *nameSub) meansSomething() bool { return s.entry() != nil || s.rare().beforeRedirect != nil }

// move implements follower.
func (s *setSub) move() {
	if s.ended || !s.redirected() {
		return
	}
	key := s.set.Key()
	key.Scope.Derived = cache.Resolved
	s.moveTo(key)
}

// moveTo has the subscription watch another set instead. The client keeps what it has until the other set has an
// answer, and is then sent the difference.
func (s *setSub) moveTo(key cache.Key) {
	var k setKeeper
	s.subs.Topics.WatchSet(s.set.Key(), &k)
	s.subs.form.beforeMove(s)
	s.subs.Topics.Unwatch(s)
	s.SetWatch, s.spans = cache.SetWatch{}, nil
	s.subs.nacks.drop(func(p *rejectedSpan) bool { return p.set == s })
	s.set = s.membersOf(s.subs.Topics.WatchSet(key, s))
	s.subs.Topics.Unwatch(&k)
	s.moved, s.errSent = true, false
	s.MoveToPending()
}

// Follow moves the subscriptions that have met redirects. The cache must not be held.
func (s *subscriptions) Follow() {
	moving := s.moving
	s.moving = nil
	s.moves += len(moving)
	for _, f := range moving {
		f.move()
	}
}

// Following reports that there are subscriptions to move.
func (s *subscriptions) Following() bool { return len(s.moving) > 0 }
