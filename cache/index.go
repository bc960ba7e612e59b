package cache

import (
	"hash/maphash"
	"iter"
	"math/bits"
)

// index finds things by a key that they know themselves. A map would hold each key
// once more: of a set with very many members, that is most of what it costs.
//
// It is a hash table with open addressing: a thing is in the first free slot from where
// its hash points to. T is a pointer or a place.
type index[T comparable] struct {
	slots []T
	tags  []uint8 // a part of the hash each, to see most of what does not match; 0 if free
	used  int
}

// The table is grown when it is fuller than most/of, and made smaller when it is not
// even as full as least/of. That it is nearly full costs a look at some more tags.
const (
	loadParts = 16
	maxLoad   = 15
	minLoad   = 5
)

// room is for how many it is made at a time.
func capacityFor(n int) int {
	const few = 256
	return n + max(min(n, few)/2, n/8)
}

var seed = maphash.MakeSeed()

// place returns where a key's search begins, and its tag.
func (x *index[T]) slotOf(key string) (at int, tag uint8) {
	h := maphash.String(seed, key)
	hi, _ := bits.Mul64(h, uint64(len(x.slots)))
	return int(hi), uint8(h) | 1
}

func (x *index[T]) next(at int) int {
	if at++; at < len(x.slots) {
		return at
	}
	return 0
}

// find returns the slot of what has that key, or else the one for it. There must be a
// free one.
func (x *index[T]) find(key string, keyOf func(T) string) (at int, found bool) {
	at, tag := x.slotOf(key)
	for ; x.tags[at] != 0; at = x.next(at) {
		if x.tags[at] == tag && keyOf(x.slots[at]) == key {
			return at, true
		}
	}
	return at, false
}

// get returns what has that key.
func (x *index[T]) get(key string, keyOf func(T) string) (t T, found bool) {
	if x.used == 0 {
		return t, false
	}
	at, found := x.find(key, keyOf)
	return x.slots[at], found
}

// replace puts another thing with the same key in the place of one.
func (x *index[T]) replace(key string, old, t T) {
	at, _ := x.slotOf(key)
	for x.slots[at] != old || x.tags[at] == 0 {
		at = x.next(at)
	}
	x.slots[at] = t
}

// put adds what has that key, in the place of what had it.
func (x *index[T]) put(key string, t T, keyOf func(T) string) {
	if (x.used+1)*loadParts > len(x.slots)*maxLoad {
		x.resize(capacityFor(x.used+1), keyOf)
	}
	at, found := x.find(key, keyOf)
	if !found {
		_, x.tags[at] = x.slotOf(key)
		x.used++
	}
	x.slots[at] = t
}

// remove removes what has that key.
func (x *index[T]) remove(key string, keyOf func(T) string) {
	if x.used == 0 {
		return
	}
	gap, found := x.find(key, keyOf)
	if !found {
		return
	}
	x.used--
	// What comes after the gap and could be there moves into it.
	for at := x.next(gap); x.tags[at] != 0; at = x.next(at) {
		begin, _ := x.slotOf(keyOf(x.slots[at]))
		if x.distance(begin, at) >= x.distance(gap, at) {
			x.slots[gap], x.tags[gap] = x.slots[at], x.tags[at]
			gap = at
		}
	}
	var none T
	x.slots[gap], x.tags[gap] = none, 0
	if x.used*loadParts < len(x.slots)*minLoad {
		x.resize(capacityFor(x.used), keyOf)
	}
}

// distance is how many slots a search goes from one to another.
func (x *index[T]) distance(from, to int) int {
	if to -= from; to < 0 {
		return to + len(x.slots)
	}
	return to
}

// reserve makes room for n things, if there is not.
func (x *index[T]) reserve(n int, keyOf func(T) string) {
	if n*loadParts > len(x.slots)*maxLoad {
		x.resize(n, keyOf)
	}
}

// resize makes room for just n things.
func (x *index[T]) resize(n int, keyOf func(T) string) {
	old, tags := x.slots, x.tags
	size := (max(n, x.used)*loadParts+maxLoad-1)/maxLoad + 1
	x.slots, x.tags = make([]T, size), make([]uint8, size)
	for i, t := range old {
		if tags[i] != 0 {
			at, tag := x.slotOf(keyOf(t))
			for x.tags[at] != 0 {
				at = x.next(at)
			}
			x.slots[at], x.tags[at] = t, tag
		}
	}
}

// all yields everything, in no order. The index must not change meanwhile.
func (x *index[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i, t := range x.slots {
			if x.tags[i] != 0 && !yield(t) {
				return
			}
		}
	}
}
