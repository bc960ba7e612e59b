// Package hashtable finds things by a key that they have in them.
//
// A map would hold each key once more. Of a set with very many members, or of the
// subscriptions of very many clients, that is most of what they cost.
package hashtable

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"runtime"
)

// Table is a hash table with open addressing: a thing is in the first free slot from where
// its key's hash points to. T is a pointer or a position. The zero value is empty and ready.
// A table is not safe for concurrent use. keyOf, in all methods, returns a thing's key.
type Table[T comparable] struct {
	slots []T
	tags  []uint8 // a part of the hash each, to see most of what does not match; 0 if free
	used  int
}

// The table grows above maxLoad/loadParts, and shrinks below minLoad/loadParts. A nearly full
// table costs a look at some more tags.
const (
	loadParts = 16
	maxLoad   = 15
	minLoad   = 5
)

// capacityFor returns for how many things a table is made that has to hold n.
func capacityFor(n int) int {
	const few = 256
	return n + max(min(n, few)/2, n/8)
}

var seed = maphash.MakeSeed()

// slotOf returns where a key's search begins, and its tag.
func (x *Table[T]) slotOf(key string) (at int, tag uint8) {
	h := maphash.String(seed, key)
	hi, _ := bits.Mul64(h, uint64(len(x.slots)))
	return int(hi), uint8(h) | 1
}

func (x *Table[T]) next(at int) int {
	if at++; at < len(x.slots) {
		return at
	}
	return 0
}

// find returns the slot of what has that key, or else the one for it. There must be a
// free one.
func (x *Table[T]) find(key string, keyOf func(T) string) (at int, found bool) {
	at, tag := x.slotOf(key)
	for ; x.tags[at] != 0; at = x.next(at) {
		if x.tags[at] == tag && keyOf(x.slots[at]) == key {
			return at, true
		}
	}
	return at, false
}

// Len returns the number of things.
func (x *Table[T]) Len() int { return x.used }

// Get returns the thing with a key.
func (x *Table[T]) Get(key string, keyOf func(T) string) (t T, found bool) {
	if x.used == 0 {
		return t, false
	}
	at, found := x.find(key, keyOf)
	return x.slots[at], found
}

// Replace puts t in the place of old, which is in the table and has the same key.
func (x *Table[T]) Replace(key string, old, t T) {
	at, _ := x.slotOf(key)
	for x.slots[at] != old || x.tags[at] == 0 {
		at = x.next(at)
	}
	x.slots[at] = t
}

// Put adds a thing with a key, in the place of the one that had it.
func (x *Table[T]) Put(key string, t T, keyOf func(T) string) {
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

// Remove removes the thing with a key, if there is one.
func (x *Table[T]) Remove(key string, keyOf func(T) string) {
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
func (x *Table[T]) distance(from, to int) int {
	if to -= from; to < 0 {
		return to + len(x.slots)
	}
	return to
}

// Reserve makes room for n things, if there is not.
func (x *Table[T]) Reserve(n int, keyOf func(T) string) {
	if n*loadParts > len(x.slots)*maxLoad {
		x.resize(n, keyOf)
	}
}

// Grow makes room for n more things, if there is not, and then for twice as many as there are. It is for
// tables to which very much is added bit by bit: Put makes so little room that it looks at everything
// in a table eight times while the table doubles. Fit returns the rest.
func (x *Table[T]) Grow(n int, keyOf func(T) string) {
	if (x.used+n)*loadParts > len(x.slots)*maxLoad {
		x.resize(max(capacityFor(x.used+n), 2*x.used), keyOf)
	}
}

// Fit returns room that Put would not have made for what is in the table.
func (x *Table[T]) Fit(keyOf func(T) string) {
	if n := capacityFor(x.used); slotsFor(n) < len(x.slots) {
		x.resize(n, keyOf)
	}
}

// slotsFor returns how many slots a table with room for just n things has.
func slotsFor(n int) int { return (n*loadParts+maxLoad-1)/maxLoad + 1 }

// pauseEvery is after how many things others may run while a table is built anew: with a million things that
// takes a tenth of a second, as each key has to be read.
const pauseEvery = 1 << 12

// resize makes room for just n things.
func (x *Table[T]) resize(n int, keyOf func(T) string) {
	old, tags := x.slots, x.tags
	size := slotsFor(max(n, x.used))
	x.slots, x.tags = make([]T, size), make([]uint8, size)
	for i, t := range old {
		if i%pauseEvery == pauseEvery-1 {
			runtime.Gosched()
		}
		if tags[i] != 0 {
			at, tag := x.slotOf(keyOf(t))
			for x.tags[at] != 0 {
				at = x.next(at)
			}
			x.slots[at], x.tags[at] = t, tag
		}
	}
}

// All yields everything, in no order. The table must not change meanwhile.
func (x *Table[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		tags := x.tags
		for i, t := range x.slots {
			if tags[i] != 0 && !yield(t) {
				return
			}
		}
	}
}
