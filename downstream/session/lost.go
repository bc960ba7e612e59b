package session

import "github.com/xds-relay/xds-relay/cache"

// Servable reports whether the relay has the state of some subscription or may still get it, and if not, why. The
// reason is nil if there are no subscriptions apart from refused ones.
func (s *subscriptions) Servable() (bool, *cache.Error) {
	t := s.trouble
	if t == nil {
		return s.named.len() > 0 || s.hasSets(), nil
	}
	refused := t.refused
	if s.wild != nil && s.wild.set == nil {
		refused++
	}
	all := s.named.len() + len(s.byGlob)
	if s.wild != nil {
		all++
	}
	switch {
	case t.lost+refused < all:
		return true, nil
	case t.lost == 0:
		return false, nil
	}
	return false, t.lostFor
}

// Unreachable reports that the relay has no state of some subscription, and cannot reach its control plane.
func (s *subscriptions) Unreachable() bool { return s.trouble != nil && s.trouble.lost > 0 }

// Decided reports that the stream does not end: something is known of a subscription, or it is a set for which streams
// do not end.
func (s *subscriptions) Decided() bool {
	for set := range s.sets() {
		if set.set == nil || set.lost {
			continue // refused, or lost
		}
		if is, _ := set.status(); is != cache.Requested || !s.CountsLostSets {
			return true
		}
	}
	for sub := range s.named.all() {
		if sub.isLost() || sub.entry() == nil {
			continue
		}
		if sub.authorityState().Status != cache.Requested || sub.is(isRare) && sub.rare().beforeRedirect != nil {
			return true
		}
	}
	return false
}
