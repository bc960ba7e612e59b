package cache

import "slices"

// Topics whose source is replaced. Their state is that of the previous source: their watchers already have it, and
// keep it. A client whose subscription moves from another topic to such a topic keeps the resources that it has, as it
// would if the topic had no answer.

// Outdate marks all topics of a scope as outdated: their state is from a previous source. The mark ends for a topic
// when an answer comes for it, and for all of them with Renew.
func (c *Cache) Outdate(scope Scope) {
	topics := c.topics(scope)
	if topics == nil {
		return
	}
	topics.outdated.Store(true)
	topics.each(func(_ Key, e *Entry, s *Set) {
		if e != nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.outdated = e.state.Load().Status != Requested
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outdated = s.status != Requested
	})
}

// Renew ends the mark of Outdate for all topics of a scope, also for those that the new source has not answered.
func (c *Cache) Renew(scope Scope) {
	topics := c.topics(scope)
	if topics == nil || !topics.outdated.Swap(false) {
		return
	}
	var still []*topic
	topics.each(func(_ Key, e *Entry, s *Set) {
		var t *topic
		if e != nil {
			t = &e.topic
		} else {
			t = &s.topic
		}
		if t.Outdated() {
			still = append(still, t)
		}
	})
	for some := range slices.Chunk(still, atOnce) {
		topics.renew(some)
	}
}

func (ts *scopeTopics) renew(topics []*topic) {
	var wakers []Waker
	ts.gate.storing.Lock()
	ts.gate.close()
	for _, t := range topics {
		t.mu.Lock()
		if t.outdated {
			t.outdated = false
			wakers = t.notify(wakers, false)
		}
		t.mu.Unlock()
	}
	ts.gate.open()
	ts.gate.storing.Unlock()
	for _, w := range wakers {
		w.Wake()
	}
}

// Outdated reports whether a scope has topics that may be outdated.
func (c *Cache) Outdated(scope Scope) bool {
	topics := c.topics(scope)
	return topics != nil && topics.outdated.Load()
}

// Outdated reports whether the topic's state is from a previous source: see Cache.Outdate.
func (t *topic) Outdated() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outdated
}
