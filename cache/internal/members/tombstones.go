package members

import (
	"container/list"
	"iter"
	"time"
)

// Bounds limit how many removals Tombstones remember, and how long. The zero value remembers nothing.
type Bounds struct {
	TTL   time.Duration
	Limit int // the oldest removals are forgotten first
}

// Tombstones are the names of removed members, the oldest removal first, for clients that were
// not connected at the time of the removal.
//
// TP1: Envoy sends no versions of a glob's members when it reconnects, so the set has to
// remember the removals.
type Tombstones struct {
	Bounds Bounds
	byKey  map[string]*list.Element
	order  list.List // of Tombstone
	// last was added last; a neighbour of it once it is removed. The next one is mostly added near
	// it.
	last *list.Element
}

// Tombstone is one removed member.
type Tombstone struct {
	Key, Name   string
	Constraints string // as in Resource
	At          time.Time
}

// Add adds a removal, in the order of the times. It replaces a removal with the same key.
func (t *Tombstones) Add(s Tombstone) {
	if t.Bounds.Limit == 0 {
		return
	}
	t.Remove(s.Key)
	if t.byKey == nil {
		t.byKey = map[string]*list.Element{}
	}
	// A removal that a watcher had to receive first is added late, among newer ones.
	after := t.last
	if after == nil {
		after = t.order.Back()
	}
	for after != nil && after.Value.(Tombstone).At.After(s.At) {
		after = after.Prev()
	}
	for after != nil && after.Next() != nil && !after.Next().Value.(Tombstone).At.After(s.At) {
		after = after.Next()
	}
	if after == nil {
		t.last = t.order.PushFront(s)
	} else {
		t.last = t.order.InsertAfter(s, after)
	}
	t.byKey[s.Key] = t.last
	for t.order.Len() > t.Bounds.Limit {
		t.removeOldest()
	}
}

// Remove forgets the removal under a key: the member is back.
func (t *Tombstones) Remove(key string) {
	if e := t.byKey[key]; e != nil {
		t.drop(e)
		delete(t.byKey, key)
	}
}

func (t *Tombstones) removeOldest() {
	e := t.order.Front()
	t.drop(e)
	delete(t.byKey, e.Value.(Tombstone).Key)
}

func (t *Tombstones) drop(e *list.Element) {
	if t.last == e {
		if t.last = e.Prev(); t.last == nil {
			t.last = e.Next()
		}
	}
	t.order.Remove(e)
}

// Expire forgets the removals that are older than the TTL.
func (t *Tombstones) Expire(now time.Time) {
	for e := t.order.Front(); e != nil && t.Expired(e.Value.(Tombstone).At, now); e = t.order.Front() {
		t.removeOldest()
	}
}

// Expired reports whether a removal at that time is older than the TTL.
func (t *Tombstones) Expired(removed, now time.Time) bool { return now.Sub(removed) >= t.Bounds.TTL }

// Len returns the number of removals.
func (t *Tombstones) Len() int { return t.order.Len() }

// All iterates over the removals, the oldest first. They must not change during the iteration.
func (t *Tombstones) All() iter.Seq[Tombstone] {
	return func(yield func(Tombstone) bool) {
		for e := t.order.Front(); e != nil; e = e.Next() {
			if !yield(e.Value.(Tombstone)) {
				return
			}
		}
	}
}
