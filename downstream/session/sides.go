package session

import "github.com/xds-relay/xds-relay/cache"

// The sides of a rollout. A client that gets what is not accepted yet watches other topics (the scope's
// New). Its subscriptions move there, as for a redirect, and back: it is sent what differs.

// Show has the subscriptions in an accepted scope watch what is new there, or what is accepted. The
// cache must not be held.
func (s *subscriptions) Show(scope cache.Scope, isNew bool) {
	if m := s.named.shared; m != nil && on(m.entry(0).Key(), scope, !isNew) {
		s.leaveGroup()
	}
	for sub := range s.named.own() {
		if e := sub.entry(); e != nil && on(e.Key(), scope, !isNew) {
			sub.show(isNew)
		}
	}
	for set := range s.sets() {
		if set.set != nil && on(set.set.Key(), scope, !isNew) {
			set.show(isNew)
		}
	}
}

// Show implements the stream's typeSession.
func (s *SotW) Show(scope cache.Scope, isNew bool) {
	s.subscriptions.Show(scope, isNew)
	s.version.origin = nil // it is to be found out
}

// on reports whether a topic is fed from an accepted scope, and of that side.
func on(k cache.Key, scope cache.Scope, isNew bool) bool {
	return k.Scope.New == isNew && k.Scope.Accepted() == scope
}

func (s *nameSub) show(isNew bool) {
	key := s.entry().Key()
	key.Scope.New = isNew
	s.watchInstead(key)
	s.MoveToPending()
}

func (s *setSub) show(isNew bool) {
	key := s.set.Key()
	key.Scope.New = isNew
	s.moveTo(key)
}
