package cache

import (
	"container/list"
	"strings"
	"time"
)

// What a set remembers of members that are gone: as long as a watcher needs to be
// told, all of them (graves); and for clients that were away when it happened,
// their names, bounded in number and time (tombstones). TP1: Envoy carries no
// versions of a glob's members across reconnects, so nobody else can tell it.

// Tombstones are the bounds of what each glob collection remembers of members that
// are gone. The zero value remembers none.
type Tombstones struct {
	// TTL is how long a removal is remembered.
	TTL time.Duration
	// Limit is how many are; the oldest are forgotten first.
	Limit int
}

// grave is a member's removal; that of one that came back since has another seq.
type removal struct {
	key        string
	added, seq uint64 // as in member
	at         time.Time
}

func (s *Set) valid(g removal) bool {
	m := s.members.get(g.key)
	return m.removed && m.seq == g.seq
}

// tombstones are the names of members that are gone, the oldest removal first.
type tombstones struct {
	bounds Tombstones
	byKey  map[string]*list.Element
	order  list.List // of tombstone
	// last is the one that was added last, nil if that is gone: what is added next is
	// mostly near it.
	last *list.Element
}

type tombstone struct {
	key, name   string
	constraints string // as in Resource
	at          time.Time
}

func (t *tombstones) add(s tombstone) {
	if t.bounds.Limit == 0 {
		return
	}
	t.remove(s.key)
	if t.byKey == nil {
		t.byKey = map[string]*list.Element{}
	}
	// What a watcher needed for long is no newer for that.
	after := t.last
	if after == nil {
		after = t.order.Back()
	}
	for after != nil && after.Value.(tombstone).at.After(s.at) {
		after = after.Prev()
	}
	for after != nil && after.Next() != nil && !after.Next().Value.(tombstone).at.After(s.at) {
		after = after.Next()
	}
	if after == nil {
		t.last = t.order.PushFront(s)
	} else {
		t.last = t.order.InsertAfter(s, after)
	}
	t.byKey[s.key] = t.last
	for t.order.Len() > t.bounds.Limit {
		t.removeOldest()
	}
}

func (t *tombstones) remove(key string) {
	if e := t.byKey[key]; e != nil {
		t.drop(e)
		delete(t.byKey, key)
	}
}

func (t *tombstones) removeOldest() {
	e := t.order.Front()
	t.drop(e)
	delete(t.byKey, e.Value.(tombstone).key)
}

func (t *tombstones) drop(e *list.Element) {
	if t.last == e {
		if t.last = e.Prev(); t.last == nil {
			t.last = e.Next()
		}
	}
	t.order.Remove(e)
}

// expire forgets those whose time has passed.
func (t *tombstones) expire(now time.Time) {
	for e := t.order.Front(); e != nil && t.expired(e.Value.(tombstone).at, now); e = t.order.Front() {
		t.removeOldest()
	}
}

func (t *tombstones) expired(at, now time.Time) bool { return now.Sub(at) >= t.bounds.TTL }

// bury remembers a member as removed.
func (s *Set) addRemoval(key string, m member) {
	// The key may be a part of the resource, which may come back as another.
	s.removals = append(s.removals, removal{key: strings.Clone(key), added: m.added, seq: m.seq, at: time.Now()})
}

// forget drops what no watcher needs of a member that is gone, which leaves its
// tombstone.
func (s *Set) forget(g removal) {
	m := s.members.get(g.key)
	name := g.key
	if m.resource.Name() != name {
		name = strings.Clone(m.resource.Name())
	}
	s.tombs.add(tombstone{key: g.key, name: name, constraints: m.resource.constraints, at: g.at})
	s.members.remove(m)
}

// RecentlyRemoved calls yield for each member that was removed recently, with its name and
// constraints (Resource.Constraints): a client that was away may still have it. yield is as in
// Since.
func (s *Set) RecentlyRemoved(yield func(name, constraints string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tombs.bounds.Limit == 0 {
		return
	}
	now := time.Now()
	s.tombs.expire(now)
	for e := s.tombs.order.Front(); e != nil; e = e.Next() {
		t, _ := e.Value.(tombstone)
		yield(t.name, t.constraints)
	}
	for _, g := range s.removals {
		if s.valid(g) && !s.tombs.expired(g.at, now) {
			m := s.members.get(g.key)
			yield(m.resource.Name(), m.resource.constraints)
		}
	}
}
