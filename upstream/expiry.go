package upstream

import (
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// xDS: "TTL". What is not renewed in time is gone, whether or not there is a
// stream: that is what a TTL is for.

// nextDue returns when expire will have something to tell, or a first answer is complete.
func (s *subscriptions) nextDue() (time.Time, bool) {
	at, ok := s.expiries.Next()
	if settled, settling := s.settling.Next(); settling && (!ok || settled.Before(at)) {
		at, ok = settled, true
	}
	if complete, waiting := s.graces.Next(); waiting && (!ok || complete.Before(at)) {
		at, ok = complete, true
	}
	for _, other := range [...]time.Time{s.forgetAt, s.reviewAt} {
		if !other.IsZero() && (!ok || other.Before(at)) {
			at, ok = other, true
		}
	}
	return at, ok
}

// expire tells what has come about by time alone: what is gone because nobody has
// renewed it, and that a set has settled.
func (s *subscriptions) expire(now time.Time) cache.Update {
	if !s.forgetAt.IsZero() && !now.Before(s.forgetAt) {
		s.forgetAt = time.Time{}
	}
	u := s.newUpdate()
	r := s.newLapse(&u)
	for _, key := range s.expiries.Due(now) {
		v := s.lapse(key)
		in := r.sets(&v)
		if c, tell := s.take(&v, in); tell {
			if sub := s.names[key]; sub != nil {
				sub.expired = v.gone
			}
			if r.whole != nil || s.wants(key) {
				u.Changes = append(u.Changes, c)
			}
			c.Name = key
			in.lapsed(c)
		}
		u.Changes = s.takeAliases([]verdict{v}, u.Changes)
		s.shown = "" // on a new stream it is to be sent again
	}
	for _, c := range s.settling.Due(now) {
		c.first.goesOn(now, 0, true, s.habits)
		s.settle(c, nil, &u)
		r.forget(c)
	}
	r.tell()
	return u
}

// lapse drops what is held under a key and was not renewed, and returns what is to
// be said of it: that it is gone, or a variant that has no TTL.
func (s *subscriptions) lapse(key string) verdict {
	for c := range s.sets(key) {
		if c.members.Get(key) != nil {
			if c.lapsed == nil {
				c.lapsed = map[string]struct{}{}
			}
			c.lapsed[key] = struct{}{}
		}
	}
	held := slices.DeleteFunc(s.variants[key], func(o variant) bool { return o.resource.TTL() > 0 })
	if len(held) == 0 {
		delete(s.variants, key)
		return verdict{key: key, gone: true}
	}
	s.variants[key] = held
	v, _ := s.choose(key, nil, false)
	return v
}
