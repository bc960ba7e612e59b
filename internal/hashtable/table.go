// Package hashtable is a hash table for values that contain their own keys.
//
// A map would store each key a second time. For a set with very many members, or the
// subscriptions of very many clients, the keys take most of the memory.
package hashtable

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"runtime"
)

// Table is a hash table with open addressing: a value is in the first free slot at or after the
// slot to which its key's hash points. T is a pointer or a position. The zero value is empty and
// ready. A table is not safe for concurrent use. In all methods, keyOf returns a value's key.
type Table[T comparable] struct {
	slots []T
	tags  []uint8 // a part of each key's hash, which rules out most mismatches; 0 if the slot is free
	used  int
}

// The table grows if more than maxLoad/loadParts of the slots are used, and shrinks if less than
// minLoad/loadParts are. In a nearly full table, a search only reads some more tags.
const (
	loadParts = 16
	maxLoad   = 15
	minLoad   = 5
)

// capacityFor returns the number of values for which to make a table that has to hold n.
func capacityFor(n int) int {
	const few = 256
	return n + max(min(n, few)/2, n/8)
}

var seed = maphash.MakeSeed()

// slotOf returns where a key's search begins, and its tag.
func (x *Table[T]) slotOf(key string) (slot int, tag uint8) {
	h := maphash.String(seed, key)
	hi, _ := bits.Mul64(h, uint64(len(x.slots)))
	return int(hi), uint8(h) | 1
}

func (x *Table[T]) next(slot int) int {
	if slot++; slot < len(x.slots) {
		return slot
	}
	return 0
}

// find returns the slot of the value with a key, or else the slot in which to put it. The table
// must have a free slot.
func (x *Table[T]) find(key string, keyOf func(T) string) (slot int, found bool) {
	slot, tag := x.slotOf(key)
	for ; x.tags[slot] != 0; slot = x.next(slot) {
		if x.tags[slot] == tag && keyOf(x.slots[slot]) == key {
			return slot, true
		}
	}
	return slot, false
}

// Len returns the number of values.
func (x *Table[T]) Len() int { return x.used }

// Get returns the value with a key.
func (x *Table[T]) Get(key string, keyOf func(T) string) (t T, found bool) {
	if x.used == 0 {
		return t, false
	}
	slot, found := x.find(key, keyOf)
	return x.slots[slot], found
}

// Replace replaces old with t. old must be in the table, and both must have the given key.
func (x *Table[T]) Replace(key string, old, t T) {
	slot, _ := x.slotOf(key)
	for x.slots[slot] != old || x.tags[slot] == 0 {
		slot = x.next(slot)
	}
	x.slots[slot] = t
}

// Put adds the value t, which has the given key. It replaces the value that had the key before.
func (x *Table[T]) Put(key string, t T, keyOf func(T) string) {
	if (x.used+1)*loadParts > len(x.slots)*maxLoad {
		x.resize(capacityFor(x.used+1), keyOf)
	}
	slot, found := x.find(key, keyOf)
	if !found {
		_, x.tags[slot] = x.slotOf(key)
		x.used++
	}
	x.slots[slot] = t
}

// Remove removes the value with a key, if there is one.
func (x *Table[T]) Remove(key string, keyOf func(T) string) {
	if x.used == 0 {
		return
	}
	gap, found := x.find(key, keyOf)
	if !found {
		return
	}
	x.used--
	// Move later values into the gap if a search for them passes it.
	for slot := x.next(gap); x.tags[slot] != 0; slot = x.next(slot) {
		begin, _ := x.slotOf(keyOf(x.slots[slot]))
		if x.distance(begin, slot) >= x.distance(gap, slot) {
			x.slots[gap], x.tags[gap] = x.slots[slot], x.tags[slot]
			gap = slot
		}
	}
	var none T
	x.slots[gap], x.tags[gap] = none, 0
	if x.used*loadParts < len(x.slots)*minLoad {
		x.resize(capacityFor(x.used), keyOf)
	}
}

// distance is the number of slots that a search moves between two slots.
func (x *Table[T]) distance(from, to int) int {
	if to -= from; to < 0 {
		return to + len(x.slots)
	}
	return to
}

// Reserve makes room for n values, if there is not enough.
func (x *Table[T]) Reserve(n int, keyOf func(T) string) {
	if n*loadParts > len(x.slots)*maxLoad {
		x.resize(n, keyOf)
	}
}

// Grow makes room for n more values, if there is not enough, and at least for twice as many as there are. It is
// for tables to which very many values are added one by one: Put makes so little room that it rebuilds a table
// eight times while the table doubles. Fit frees the unused room.
func (x *Table[T]) Grow(n int, keyOf func(T) string) {
	if (x.used+n)*loadParts > len(x.slots)*maxLoad {
		x.resize(max(capacityFor(x.used+n), 2*x.used), keyOf)
	}
}

// Fit frees the room that Put would not have made for the values in the table.
func (x *Table[T]) Fit(keyOf func(T) string) {
	if n := capacityFor(x.used); slotsFor(n) < len(x.slots) {
		x.resize(n, keyOf)
	}
}

// slotsFor returns the number of slots of a table with room for exactly n values.
func slotsFor(n int) int { return (n*loadParts+maxLoad-1)/maxLoad + 1 }

// pauseEvery is the number of values after which resize lets other goroutines run: rebuilding a table of a million
// values takes a tenth of a second, because each key has to be read.
const pauseEvery = 1 << 12

// resize makes room for exactly n values.
func (x *Table[T]) resize(n int, keyOf func(T) string) {
	old, tags := x.slots, x.tags
	size := slotsFor(max(n, x.used))
	x.slots, x.tags = make([]T, size), make([]uint8, size)
	for i, t := range old {
		if i%pauseEvery == pauseEvery-1 {
			runtime.Gosched()
		}
		if tags[i] != 0 {
			slot, tag := x.slotOf(keyOf(t))
			for x.tags[slot] != 0 {
				slot = x.next(slot)
			}
			x.slots[slot], x.tags[slot] = t, tag
		}
	}
}

// All iterates over all values, in no order. The table must not change during the iteration.
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
