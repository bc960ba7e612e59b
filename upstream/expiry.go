package upstream

import (
	"container/heap"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// xDS: "TTL". What is not renewed in time is gone, whether or not there is a
// stream: that is what a TTL is for.

// expiries are the times at which what is held under a key is gone.
type expiries struct {
	at map[string]time.Time
	// queue has the times in order, and some that do not hold any more.
	queue expiryQueue
}

type expiry struct {
	key string
	at  time.Time
}

// set begins the time of a key anew.
func (e *expiries) set(key string, at time.Time) {
	if e.at == nil {
		e.at = map[string]time.Time{}
	}
	e.at[key] = at
	heap.Push(&e.queue, expiry{key, at})
	const slack = 64
	if len(e.queue) > 2*len(e.at)+slack {
		e.queue = slices.DeleteFunc(e.queue, func(x expiry) bool { return !e.at[x.key].Equal(x.at) })
		heap.Init(&e.queue)
	}
}

// end says that a key has no such time any more.
func (e *expiries) end(key string) { delete(e.at, key) }

// next returns the first time.
func (e *expiries) next() (time.Time, bool) {
	for len(e.queue) > 0 {
		if x := e.queue[0]; e.at[x.key].Equal(x.at) {
			return x.at, true
		}
		heap.Pop(&e.queue)
	}
	return time.Time{}, false
}

// due returns the keys whose time has passed, and forgets them.
func (e *expiries) due(now time.Time) (keys []string) {
	for {
		at, ok := e.next()
		if !ok || at.After(now) {
			return keys
		}
		key := e.queue[0].key
		keys = append(keys, key)
		e.end(key)
	}
}

// expiryQueue is a heap.
type expiryQueue []expiry

func (q expiryQueue) Len() int           { return len(q) }
func (q expiryQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q expiryQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *expiryQueue) Push(x any) { *q = append(*q, x.(expiry)) }

// Pop implements heap.Interface.
func (q *expiryQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// nextDue returns when expire will have something to tell.
func (s *subscriptions) nextDue() (time.Time, bool) {
	at, ok := s.expiries.next()
	for _, c := range s.settling {
		if !ok || c.settled.Before(at) {
			at, ok = c.settled, true
		}
	}
	return at, ok
}

// expire tells what has come about by time alone: what is gone because nobody has
// renewed it, and that a set has settled.
func (s *subscriptions) expire(now time.Time) cache.Update {
	u := s.newUpdate()
	r := s.newLapse(&u)
	for _, key := range s.expiries.due(now) {
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
		u.Changes = s.takeAliases(&v, u.Changes)
		s.version = "" // on a new stream it is to be sent again
	}
	for _, c := range slices.Clone(s.settling) {
		if !now.Before(c.settled) {
			s.settle(c, nil, &u)
			r.forget(c)
		}
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
