// Package recent keeps values that many clients share for a short time, such as an encoded response: it is made for the
// first of them, and is of no use soon after the last one has it.
//
// Weak pointers would do that with less code. But near the end of a garbage collection, Go stops each goroutine that
// follows a weak pointer until the collection has ended, together with whatever waits for the goroutine's locks. In a
// large heap on a busy machine that takes up to 200 ms.
package recent

import (
	"sync"
	"time"
)

// A value is kept for keptFor after its last use, and up to twice as long.
const keptFor = 5 * time.Second

// mostKept bounds the bytes of all values that a Keeper keeps. An Owner gets no more than is left for the others: a single
// one gets half.
const mostKept = 64 << 20

// Owner has Values, which it guards with a lock.
type Owner interface {
	// DropUnused calls DropUnused for all Values of the owner, and returns the sum.
	DropUnused() (left int)
}

// Keeper keeps the Values of its Owners for as long as they are in use. The zero value is ready. A Keeper may be used
// concurrently, also by an Owner that holds its lock.
type Keeper struct {
	mu     sync.Mutex
	owners map[Owner]*account
	bytes  int  // of all owners
	ticks  bool // tick will be called
}

// account is what a Keeper knows of an Owner.
type account struct {
	bytes   int
	changed bool // a Value was set since sweep looked
}

// count changes the bytes of an owner, unless there is no room for them.
func (k *Keeper) count(o Owner, change int) (ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.owners[o]
	if a == nil {
		a = &account{}
	}
	if change > 0 && a.bytes+change > mostKept-k.bytes-change {
		return false
	}
	if k.owners == nil {
		k.owners = map[Owner]*account{}
	}
	k.owners[o] = a
	a.bytes, a.changed = a.bytes+change, true
	k.bytes += change
	if !k.ticks {
		k.ticks = true
		time.AfterFunc(keptFor, k.tick)
	}
	return true
}

// tick drops the values that were not used lately, as long as there are any.
func (k *Keeper) tick() {
	k.sweep()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ticks = len(k.owners) > 0; k.ticks {
		time.AfterFunc(keptFor, k.tick)
	}
}

// sweep drops the values that were not used since the last sweep. Only one runs at a time.
func (k *Keeper) sweep() {
	k.mu.Lock()
	owners := make([]Owner, 0, len(k.owners))
	for o, account := range k.owners {
		owners = append(owners, o)
		account.changed = false
	}
	k.mu.Unlock()
	for _, o := range owners {
		k.dropUnused(o)
	}
}

func (k *Keeper) dropUnused(o Owner) {
	left := o.DropUnused()
	k.mu.Lock()
	defer k.mu.Unlock()
	account := k.owners[o]
	if account == nil || account.changed {
		return // the next sweep counts it
	}
	k.bytes += left - account.bytes
	if account.bytes = left; left == 0 {
		delete(k.owners, o)
	}
}

// Forget ends the account of an owner that sets no more Values.
func (k *Keeper) Forget(o Owner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if account := k.owners[o]; account != nil {
		k.bytes -= account.bytes
		delete(k.owners, o)
	}
}

// Value is a value that is kept for a short time. The zero value has none.
type Value[T any] struct {
	value *T
	bytes int // as the Keeper counts them
	used  bool
}

// Get returns the value, nil if there is none any more.
func (v *Value[T]) Get() *T {
	v.used = true
	return v.value
}

// Set replaces the value, and reports whether there was room for it; otherwise there is none now. bytes is about the
// memory that only the value keeps alive.
func (v *Value[T]) Set(k *Keeper, o Owner, value *T, bytes int) (ok bool) {
	bytes = max(bytes, 1)
	if !k.count(o, bytes-v.bytes) {
		v.Clear()
		return false
	}
	*v = Value[T]{value: value, bytes: bytes, used: true}
	return true
}

// Clear removes the value.
func (v *Value[T]) Clear() { v.value = nil }

// DropUnused removes the value if it was neither set nor returned since the last call. It returns the bytes of what is
// left.
func (v *Value[T]) DropUnused() (left int) {
	if !v.used {
		v.value = nil
	}
	if v.used = false; v.value == nil {
		v.bytes = 0
	}
	return v.bytes
}
