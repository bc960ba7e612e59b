package cache

import "slices"

// Topics whose source is replaced. What they have is of the source before: their watchers already have it, and
// keeps it. A client whose subscription moves to such a topic, from another, keeps what it has: as with a topic that
// has no answer.

// Outdate notes that all topics of a scope have what an earlier source has said. That is over for a topic once an
// answer comes for it, and for all of them with Renew.
func (c *Cache) Outdate(scope Scope) {
	of := c.topics(scope)
	if of == nil {
		return
	}
	of.outdated.Store(true)
	of.each(func(_ Key, e *Entry, s *Set) {
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

// Renew notes that what the topics of a scope have is to be taken as it is, whether the source has said so or not.
func (c *Cache) Renew(scope Scope) {
	of := c.topics(scope)
	if of == nil || !of.outdated.Swap(false) {
		return
	}
	var still []*topic
	of.each(func(_ Key, e *Entry, s *Set) {
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
		of.renew(some)
	}
}

func (of *scopeTopics) renew(topics []*topic) {
	var wakers []Waker
	of.gate.storing.Lock()
	of.gate.close()
	for _, t := range topics {
		t.mu.Lock()
		if t.outdated {
			t.outdated = false
			wakers = t.notify(wakers, false)
		}
		t.mu.Unlock()
	}
	of.gate.open()
	of.gate.storing.Unlock()
	for _, w := range wakers {
		w.Wake()
	}
}

// Outdated reports whether a scope has topics that may be outdated.
func (c *Cache) Outdated(scope Scope) bool {
	of := c.topics(scope)
	return of != nil && of.outdated.Load()
}

// Outdated reports whether the topic has what an earlier source has said.
func (t *topic) Outdated() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outdated
}
