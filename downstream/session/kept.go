package session

import (
	"github.com/xds-relay/xds-relay/cache"
)

// kept is what a client holds of a name from before it became a redirect. That is what
// there is to tell of it until there is an answer of where it leads; or, if it has a time
// to live, until that has passed. xDS: "TTL".
type kept struct {
	resource *cache.Resource
	sub      *nameSub
	stop     func() // nil without a time to live
	over     bool   // its time has passed
	marked   bool   // see subscription
}

// keep has the client keep what it was told. It was told that earlier, so that a time to
// live ends late rather than early.
func (s *nameSub) keep(was *cache.Resource) {
	k := &kept{resource: was, sub: s}
	if was.TTL() > 0 {
		k.stop = s.of().Host.Expire(was, k)
	}
	s.makeRare().keep(k)
}

// keep has k, which may be nil, in the place of what was kept.
func (r *rareSub) keep(k *kept) {
	if r.kept != nil && r.kept.stop != nil {
		r.kept.stop()
	}
	r.kept = k
}

// Enter implements Subscription.
func (k *kept) Enter() bool {
	was := k.marked
	k.marked = true
	return !was
}

// Leave implements Subscription.
func (k *kept) Leave() { k.marked = false }

// MoveToPending implements Subscription.
func (k *kept) MoveToPending() {
	k.over = true
	k.sub.MoveToPending()
}

// state is what there is to tell of the name.
func (s *nameSub) state() cache.State {
	st, r := s.stated(), s.rare()
	if r == nil || r.kept == nil {
		return st
	}
	told := s.told()
	switch answered := st.Status == cache.Present || st.Status == cache.Absent; {
	case !answered && !r.kept.over:
		return cache.State{Status: cache.Present, Resource: r.kept.resource, Err: st.Err, Beats: s.beats()}
	case !answered && told != toldAbsent && told != toldFailed:
		return cache.State{Status: cache.Absent, Was: r.kept.resource}
	}
	r.keep(nil)
	return st
}
