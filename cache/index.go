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
// its hash points to.
type index[T any] struct {
	slots []*T
	tags  []uint8 // a part of the hash each, to see most of what does not match; 0 if free
	used  int
}

// The table is grown when it is fuller than most/of, by a half, and made smaller when
// it is not even half of least/of.
const (
	of    = 16
	most  = 13
	least = 6
)

var seed = maphash.MakeSeed()

// place returns where a key's search begins, and its tag.
func (x *index[T]) place(key string) (at int, tag uint8) {
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
func (x *index[T]) find(key string, keyOf func(*T) string) (at int, found bool) {
	at, tag := x.place(key)
	for ; x.tags[at] != 0; at = x.next(at) {
		if x.tags[at] == tag && keyOf(x.slots[at]) == key {
			return at, true
		}
	}
	return at, false
}

// get returns what has that key, nil if there is nothing.
func (x *index[T]) get(key string, keyOf func(*T) string) *T {
	if x.used == 0 {
		return nil
	}
	if at, found := x.find(key, keyOf); found {
		return x.slots[at]
	}
	return nil
}

// put adds what has that key, in the place of what had it.
func (x *index[T]) put(key string, t *T, keyOf func(*T) string) {
	if (x.used+1)*of > len(x.slots)*most {
		x.resize(x.used+x.used/2+1, keyOf)
	}
	at, found := x.find(key, keyOf)
	if !found {
		_, x.tags[at] = x.place(key)
		x.used++
	}
	x.slots[at] = t
}

// remove removes what has that key.
func (x *index[T]) remove(key string, keyOf func(*T) string) {
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
		begin, _ := x.place(keyOf(x.slots[at]))
		if x.distance(begin, at) >= x.distance(gap, at) {
			x.slots[gap], x.tags[gap] = x.slots[at], x.tags[at]
			gap = at
		}
	}
	x.slots[gap], x.tags[gap] = nil, 0
	if 2*x.used*of < len(x.slots)*least {
		x.resize(x.used, keyOf)
	}
}

// distance is how many slots a search goes from one to another.
func (x *index[T]) distance(from, to int) int {
	if to -= from; to < 0 {
		return to + len(x.slots)
	}
	return to
}

// resize makes room for n things.
func (x *index[T]) resize(n int, keyOf func(*T) string) {
	old := x.slots
	size := max(n, x.used+1)*of/most + 1
	x.slots, x.tags = make([]*T, size), make([]uint8, size)
	for _, t := range old {
		if t != nil {
			key := keyOf(t)
			at, _ := x.find(key, keyOf)
			x.slots[at] = t
			_, x.tags[at] = x.place(key)
		}
	}
}

// all yields everything, in no order. The index must not change meanwhile.
func (x *index[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, t := range x.slots {
			if t != nil && !yield(t) {
				return
			}
		}
	}
}
