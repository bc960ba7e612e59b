package cache

import (
	"container/heap"
	"slices"
	"time"
)

// Expiries has the times at which keys expire unless they are renewed. xDS: "TTL". The
// zero value is empty and ready. It is not safe for concurrent use.
type Expiries[K comparable] struct {
	times map[K]time.Time
	room  Room // of times
	// queue has the times in order, and outdated ones among them.
	queue expiryQueue[K]
}

type expiry[K comparable] struct {
	key  K
	time time.Time
}

// Set sets or renews the time of a key.
func (e *Expiries[K]) Set(key K, when time.Time) {
	if e.times == nil {
		e.times = map[K]time.Time{}
	}
	if old, there := e.times[key]; there && old.Equal(when) {
		return
	}
	e.times[key] = when
	heap.Push(&e.queue, expiry[K]{key, when})
	e.compact()
}

// compact removes outdated times from the queue if there are many.
func (e *Expiries[K]) compact() {
	const slack = 64
	if len(e.queue) <= 2*len(e.times)+slack {
		return
	}
	there := make(map[K]struct{}, len(e.times))
	e.queue = slices.DeleteFunc(e.queue, func(x expiry[K]) bool {
		if _, twice := there[x.key]; twice || !e.times[x.key].Equal(x.time) {
			return true
		}
		there[x.key] = struct{}{}
		return false
	})
	e.queue = fitted(e.queue)
	heap.Init(&e.queue)
}

// End removes a key.
func (e *Expiries[K]) End(key K) {
	if _, there := e.times[key]; there {
		e.times = Without(e.times, &e.room, key)
		e.compact()
	}
}

// At returns the time of a key, if it has one.
func (e *Expiries[K]) At(key K) (when time.Time, ok bool) {
	when, ok = e.times[key]
	return when, ok
}

// Len returns how many keys have a time.
func (e *Expiries[K]) Len() int { return len(e.times) }

// Next returns the earliest time. It returns false if no key has one.
func (e *Expiries[K]) Next() (time.Time, bool) {
	for len(e.queue) > 0 {
		if x := e.queue[0]; e.times[x.key].Equal(x.time) {
			return x.time, true
		}
		heap.Pop(&e.queue)
	}
	return time.Time{}, false
}

// First returns the key with the earliest time. It returns false if no key has one.
func (e *Expiries[K]) First() (key K, when time.Time, ok bool) {
	if when, ok = e.Next(); ok {
		key = e.queue[0].key
	}
	return key, when, ok
}

// Due returns the keys whose time has passed, and removes them.
func (e *Expiries[K]) Due(now time.Time) (keys []K) {
	for {
		when, ok := e.Next()
		if !ok || when.After(now) {
			return keys
		}
		key := e.queue[0].key
		keys = append(keys, key)
		e.End(key)
	}
}

// expiryQueue is a heap.
type expiryQueue[K comparable] []expiry[K]

func (q expiryQueue[K]) Len() int           { return len(q) }
func (q expiryQueue[K]) Less(i, j int) bool { return q[i].time.Before(q[j].time) }
func (q expiryQueue[K]) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *expiryQueue[K]) Push(x any) { *q = append(*q, x.(expiry[K])) }

// Pop implements heap.Interface.
func (q *expiryQueue[K]) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	(*q)[last] = expiry[K]{}
	*q = fitted((*q)[:last])
	return x
}
