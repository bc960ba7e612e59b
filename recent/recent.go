// Package recent keeps values that many clients share for a short time, such as an encoded response: it is made for the
// first of them, and is of no use soon after the last one has it.
//
// Weak pointers alone would do that with less code. But near the end of a garbage collection, Go stops each goroutine
// that follows a weak pointer until the collection has ended, together with whatever waits for the goroutine's locks.
// In a large heap on a busy machine that takes up to 100 ms.
package recent

import (
	"sync"
	"time"
	"weak"
)

// A value is kept for keptFor after its last use, and up to twice as long.
const keptFor = 5 * time.Second

// mostKept bounds the bytes of the values that a Keeper keeps, about. Further values last until the next garbage
// collection.
const mostKept = 64 << 20

// Owner has Values.
type Owner interface {
	// DropUnused calls DropUnused for all Values of the owner, and returns the sum.
	DropUnused() (left int)
}

// Keeper keeps the Values of its Owners alive while they are in use. The zero value is ready. It may be used concurrently,
// also by an Owner that holds a lock which its DropUnused needs.
type Keeper struct {
	mu     sync.Mutex
	owners map[Owner]*account
	bytes  int  // of all owners
	ticks  bool // sweep will be called
}

// account is what a Keeper knows of an Owner.
type account struct {
	bytes   int
	changed bool // a Value was set since sweep looked
}

// keep counts more bytes for an owner, and reports whether there is room for them.
func (k *Keeper) keep(o Owner, bytes int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if bytes > 0 && k.bytes+bytes > mostKept {
		return false
	}
	of := k.owners[o]
	if of == nil {
		if k.owners == nil {
			k.owners = map[Owner]*account{}
		}
		of = &account{}
		k.owners[o] = of
	}
	of.bytes, of.changed = of.bytes+bytes, true
	k.bytes += bytes
	if !k.ticks {
		k.ticks = true
		time.AfterFunc(keptFor, k.sweep)
	}
	return true
}

// sweep drops the values that were not used lately.
func (k *Keeper) sweep() {
	k.mu.Lock()
	owners := make([]Owner, 0, len(k.owners))
	for o, of := range k.owners {
		owners = append(owners, o)
		of.changed = false
	}
	k.mu.Unlock()
	for _, o := range owners {
		k.dropUnused(o)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ticks = len(k.owners) > 0; k.ticks {
		time.AfterFunc(keptFor, k.sweep)
	}
}

func (k *Keeper) dropUnused(o Owner) {
	left := o.DropUnused()
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.owners[o]
	if of == nil || of.changed {
		return // the next sweep counts it
	}
	k.bytes += left - of.bytes
	if of.bytes = left; left == 0 {
		delete(k.owners, o)
	}
}

// Value is a value that is kept for a short time. The zero value has none. Its Owner guards it with a lock.
type Value[T any] struct {
	kept  *T
	bytes int // as counted for kept
	used  bool
	weak  weak.Pointer[T] // if there was no room to keep it
}

// Get returns the value, nil if there is none any more.
func (v *Value[T]) Get() *T {
	if v.kept != nil {
		v.used = true
		return v.kept
	}
	return v.weak.Value() // without waiting if there is none
}

// Set replaces the value. bytes is about the memory that only the value keeps alive.
func (v *Value[T]) Set(k *Keeper, o Owner, is *T, bytes int) {
	bytes = max(bytes, 1)
	if k.keep(o, bytes-v.bytes) {
		*v = Value[T]{kept: is, bytes: bytes, used: true}
		return
	}
	*v = Value[T]{bytes: v.bytes, weak: weak.Make(is)}
}

// Clear removes the value.
func (v *Value[T]) Clear() { *v = Value[T]{bytes: v.bytes} }

// DropUnused removes the value if Get has not returned it since the last call. It returns the bytes of what is left.
func (v *Value[T]) DropUnused() (left int) {
	if !v.used {
		v.kept = nil
	}
	v.used = false
	if v.kept == nil {
		v.bytes = 0
	}
	return v.bytes
}
