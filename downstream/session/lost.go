package session

import "github.com/xds-relay/xds-relay/cache"

// trouble is what most clients do not have: names of one type that mean nothing, and
// names and sets of which nothing is held and whose control planes cannot be reached.
type trouble struct {
	refused, lost int // how many of each are subscribed to
	lostFor       *cache.Error
}

func (s *subscriptions) troubled() *trouble {
	if s.trouble == nil {
		s.trouble = new(trouble)
	}
	return s.trouble
}

// reckon counts a name whose control plane cannot be reached and of which nothing is
// held.
func (s *subscriptions) reckon(sub *nameSub) {
	var st cache.State
	switch {
	case !s.CountsLostNames || sub.entry() == nil:
		return
	case sub.is(isRare):
		if st = sub.stated(); sub.rare().kept != nil {
			st.Status = cache.Present
		}
	default:
		st = sub.entry().State()
	}
	s.countLost(sub, st.Unreachable())
	if sub.isLost() {
		s.trouble.lostFor = st.Err
	}
}

func (s *subscriptions) countLost(sub *nameSub, lost bool) {
	switch {
	case lost == sub.isLost():
		return
	case lost:
		s.troubled().lost++
	default:
		s.trouble.lost--
	}
	sub.setLost(lost)
}

// reckonSet is reckon for a wildcard or a glob.
func (s *subscriptions) reckonSet(set *setSub) {
	if !s.CountsLostSets || set.set == nil {
		return
	}
	is, err := set.status()
	s.countLostSet(set, is == cache.Failed && err.Unreachable())
	if set.lost {
		s.trouble.lostFor = err
	}
}

func (s *subscriptions) countLostSet(set *setSub, lost bool) {
	switch {
	case lost == set.lost:
		return
	case lost:
		s.troubled().lost++
	default:
		s.trouble.lost--
	}
	set.lost = lost
}

// Servable says whether something that is subscribed to is held or may come, and if not,
// why: nil if nothing is subscribed to but what was refused.
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

// Unreachable says that some of what is subscribed to cannot be reached, and is not held.
func (s *subscriptions) Unreachable() bool { return s.trouble != nil && s.trouble.lost > 0 }

// Decided says that the stream is kept: something is known of what is subscribed to, or it is
// a set for which streams do not end.
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
		if sub.stated().Status != cache.Requested || sub.is(isRare) && sub.rare().kept != nil {
			return true
		}
	}
	return false
}
