package session

import (
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// The sides of a rollout. A client that gets what is not accepted yet watches other topics (the scope's New). Its
// subscriptions move there and back, as for a redirect, and the client is sent the difference.

// ShowNew moves subscriptions in an accepted scope to the new side: those of the given names, which differ, or all. All
// other topics are the same on both sides. The cache must not be held.
func (s *subscriptions) ShowNew(scope cache.Scope, names []string, all bool) {
	if m := s.named.shared; m != nil && on(m.first().Key(), scope, false) {
		e, owed := m.group.ShowNew(&m.Member, m.sentUpTo.Seq, names, all)
		if s.owed.AddAll(owed); e != nil {
			s.excludeNew()
			s.sides = &includedSides{newSide: e}
			s.Topics.Include(e)
		}
	}
	// A derived topic may differ if any other does.
	differs := func(k cache.Key) bool {
		return on(k, scope, false) && (all || k.Scope.Derived != "" || slices.Contains(names, k.Name))
	}
	for sub := range s.named.own() {
		if e := sub.entry(); e != nil && differs(e.Key()) {
			sub.show(true)
		}
	}
	for set := range s.sets() {
		if set.set != nil && differs(set.set.Key()) {
			set.show(true)
		}
	}
}

// ShowAccepted moves the subscriptions in an accepted scope back to the accepted side. The cache must not be held.
func (s *subscriptions) ShowAccepted(scope cache.Scope) {
	if m := s.named.shared; m != nil && m.OnNew && on(m.first().Key(), scope, false) {
		s.owed.AddAll(m.group.ShowAccepted(&m.Member, m.sentUpTo.Seq))
	}
	if s.sides != nil && on(s.sides.newSide.Key(), scope, true) {
		s.excludeNew()
	}
	for sub := range s.named.own() {
		if e := sub.entry(); e != nil && on(e.Key(), scope, true) {
			sub.show(false)
		}
	}
	for set := range s.sets() {
		if set.set != nil && on(set.set.Key(), scope, true) {
			set.show(false)
		}
	}
}

// ShowNew is subscriptions.ShowNew for SotW.
func (s *SotW) ShowNew(scope cache.Scope, names []string, all bool) {
	s.subscriptions.ShowNew(scope, names, all)
	s.version.origin = nil // to be recomputed
}

// ShowAccepted is subscriptions.ShowAccepted for SotW.
func (s *SotW) ShowAccepted(scope cache.Scope) {
	s.subscriptions.ShowAccepted(scope)
	s.version.origin = nil // to be recomputed
}

// on reports whether a topic is fed from an accepted scope, and is on that side.
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
