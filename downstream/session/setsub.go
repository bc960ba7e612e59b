package session

import (
	"github.com/xds-relay/xds-relay/cache"
)

// One client's subscriptions to sets: to the wildcard, and to glob collections.

// Changed implements cache.Watcher.
func (s *setSub) Changed() cache.Waker {
	s.subs.owed.Add(s.Change())
	return s.subs.Host.Mark(s)
}

func (s *setSub) Enter() bool {
	was := s.inInbox
	s.inInbox = true
	return !was
}

func (s *setSub) Leave() { s.inInbox = false }

func (s *setSub) MoveToPending() {
	if s.ended {
		return
	}
	if s.redirected() {
		s.subs.moving = append(s.subs.moving, s)
	}
	if !s.queued {
		s.queued = true
		s.subs.pendingSets = append(s.subs.pendingSets, s)
	}
	s.subs.countSetIfLost(s)
}

func (s *setSub) status() (cache.Status, *cache.Error) {
	if s.set == nil {
		return cache.Failed, s.err
	}
	if s.waits {
		if s.set.Outdated() {
			return cache.Requested, nil
		}
		s.waits = false
	}
	return s.set.Status()
}

// form is the form in which the client is sent the members.
func (s *setSub) form() cache.Form {
	if s.ref.locator {
		return s.subs.Form | cache.ByLocator
	}
	return s.subs.Form
}

// names are the client's names for the set.
func (s *setSub) names() []string {
	if s.glob() {
		return s.spelled.all()
	}
	return []string{cache.Wildcard}
}

// setFresh sets whether the set has not been answered yet.
func (s *setSub) setFresh(fresh bool) {
	switch {
	case fresh && !s.fresh:
		s.subs.freshSets++
	case !fresh && s.fresh:
		s.subs.freshSets--
	}
	s.fresh, s.begun = fresh, s.begun || fresh
}

// restart has the whole set sent again.
func (s *setSub) restart() {
	if s.set != nil {
		s.set.Rewind(&s.SetWatch)
	}
	s.setFresh(true)
	s.errSent, s.sentByName = false, nil
	s.MoveToPending()
}

// namedIn returns the subscription to a name, requested in the same way, that a set also gives.
func (s *subscriptions) namedIn(set *setSub, name string) *nameSub {
	return s.named.get(set.ref.of(name).key())
}

// redirected reports that there are members that are redirects to follow.
func (s *setSub) redirected() bool {
	return s.set != nil && !s.subs.Passes && s.set.Key().Scope.Derived == "" && s.set.Redirects()
}

// countSetIfLost is countIfLost for a wildcard or a glob.
func (s *subscriptions) countSetIfLost(set *setSub) {
	if !s.CountsLostSets || set.set == nil {
		return
	}
	is, err := set.status()
	s.countLostSet(set, is == cache.Failed && err.Unreachable())
	if set.lost {
		s.trouble.lostFor = err
	}
}
