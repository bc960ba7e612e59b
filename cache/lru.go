package cache

import (
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// lru has keys in the order in which they were last added. It has no limit: its owner removes
// the oldest.
type lru[K comparable, V any] struct {
	entries *simplelru.LRU[K, V]
	room    Room
}

func newLRU[K comparable, V any]() lru[K, V] {
	l, err := simplelru.NewLRU[K, V](math.MaxInt, nil)
	if err != nil {
		panic(err) // only of a size below 1
	}
	return lru[K, V]{entries: l}
}

func (l *lru[K, V]) add(k K, v V) { l.entries.Add(k, v) }

func (l *lru[K, V]) len() int { return l.entries.Len() }

func (l *lru[K, V]) peek(k K) (V, bool) { return l.entries.Peek(k) }

func (l *lru[K, V]) oldest() (K, V, bool) { return l.entries.GetOldest() }

// keys returns all keys, the oldest first.
func (l *lru[K, V]) keys() []K { return l.entries.Keys() }

func (l *lru[K, V]) removeOldest() (k K, v V, ok bool) {
	if k, v, ok = l.oldest(); ok {
		l.remove(k)
	}
	return k, v, ok
}

func (l *lru[K, V]) remove(k K) {
	l.room = max(l.room, Room(l.len()))
	l.entries.Remove(k)
	if !l.room.sparse(l.len()) {
		return
	}
	small := newLRU[K, V]()
	for _, k := range l.keys() {
		v, _ := l.peek(k)
		small.add(k, v)
	}
	small.room = Room(l.len())
	*l = small
}
