package session

import (
	"hash/maphash"
	"iter"
	"math/bits"
)

// nameTable has one client's subscriptions to names by their keys. The keys are in
// the subscriptions, mostly the very strings of the cache, so that the table is a
// pointer for each: a hash table with linear probing.
type nameTable struct {
	slots []*nameSub
	n     int
	// shared, if not nil, has those names that the client shares with others that ask for
	// the same: they are not in the table until somebody looks.
	shared *membership
}

// tableSeed is one for all: a table of many names is searched under a lock of its
// client alone.
var tableSeed = maphash.MakeSeed()

// A table is at most nine tenths full, and a new one has room for a quarter more
// than is asked for.
const (
	minSlots = 4
	tenths   = 9
)

func slotsFor(n int) int { return max(minSlots, n+n/4) }

// home is where the search for a key begins.
func (t *nameTable) home(key string) int {
	h, _ := bits.Mul64(maphash.String(tableSeed, key), uint64(len(t.slots)))
	return int(h)
}

func (t *nameTable) next(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

func (t *nameTable) len() int { return t.n + t.shared.len() }

// get returns the subscription under a key, nil if there is none.
func (t *nameTable) get(key string) *nameSub {
	if t.n > 0 {
		for i := t.home(key); t.slots[i] != nil; i = t.next(i) {
			if sub := t.slots[i]; sub.key() == key {
				return sub
			}
		}
	}
	if i, ok := t.shared.find(key); ok {
		return t.shared.take(i)
	}
	return nil
}

// add adds a subscription, under whose key there is none.
func (t *nameTable) add(sub *nameSub) {
	if 10*(t.n+1) > tenths*len(t.slots) {
		t.resize(slotsFor(2 * t.n))
	}
	t.put(sub)
	t.n++
}

func (t *nameTable) put(sub *nameSub) {
	i := t.home(sub.key())
	for t.slots[i] != nil {
		i = t.next(i)
	}
	t.slots[i] = sub
}

// expect makes room for so many more.
func (t *nameTable) expect(n int) {
	if 10*(t.n+n) > tenths*len(t.slots) {
		t.resize(slotsFor(t.n + n))
	}
}

func (t *nameTable) resize(slots int) {
	old := t.slots
	t.slots = make([]*nameSub, slots)
	for _, sub := range old {
		if sub != nil {
			t.put(sub)
		}
	}
}

// remove removes a subscription that is there.
func (t *nameTable) remove(sub *nameSub) {
	hole := t.home(sub.key())
	for t.slots[hole] != sub {
		hole = t.next(hole)
	}
	t.n--
	// What comes after it may be where it is only because this was in the way.
	for i := t.next(hole); t.slots[i] != nil; i = t.next(i) {
		home := t.home(t.slots[i].key())
		if stays := between(hole, home, i); !stays {
			t.slots[hole], hole = t.slots[i], i
		}
	}
	t.slots[hole] = nil
	if few := slotsFor(t.n); 4*few < len(t.slots) {
		t.resize(2 * few)
	}
}

// between says that, going round from just behind a, b comes no later than c.
func between(a, b, c int) bool {
	if a <= c {
		return a < b && b <= c
	}
	return a < b || b <= c
}

// all yields the subscriptions, in no order. None may be added or removed meanwhile.
func (t *nameTable) all() iter.Seq[*nameSub] {
	return func(yield func(*nameSub) bool) {
		for _, sub := range t.whole() {
			if sub != nil && !yield(sub) {
				return
			}
		}
	}
}

// whole are the slots, when none is shared any more.
func (t *nameTable) whole() []*nameSub {
	if t.shared == nil {
		return t.slots
	}
	return t.shared.takeAll().slots
}

// own yields the subscriptions that are not shared, as all does.
func (t *nameTable) own() iter.Seq[*nameSub] {
	return func(yield func(*nameSub) bool) {
		for _, sub := range t.slots {
			if sub != nil && !yield(sub) {
				return
			}
		}
	}
}
