package recent

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// list is an Owner with some values.
type list struct {
	mu     sync.Mutex
	keeper *Keeper
	values []Value[[]byte]
}

func newList(k *Keeper, n int) *list { return &list{keeper: k, values: make([]Value[[]byte], n)} }

func (l *list) set(i int, is *[]byte, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values[i].Set(l.keeper, l, is, bytes)
}

func (l *list) get(i int) *[]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.values[i].Get()
}

func (l *list) clear(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values[i].Clear()
}

// DropUnused implements Owner.
func (l *list) DropUnused() (left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.values {
		left += l.values[i].DropUnused()
	}
	return left
}

func (k *Keeper) kept() (owners, bytes int, ticks bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.owners), k.bytes, k.ticks
}

// A value stays through garbage collections for as long as somebody uses it, and goes soon after the last use.
func TestValuesAreKeptWhileTheyAreInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Keeper
		l := newList(&k, 2)
		l.set(0, new([]byte), 100)
		l.set(1, new([]byte), 10)
		used := l.get(0)
		for range 5 {
			time.Sleep(keptFor)
			synctest.Wait()
			runtime.GC()
			if l.get(0) != used {
				t.Fatal("a value that is in use has gone")
			}
		}
		if l.get(1) != nil {
			t.Error("a value that nobody has used is still there")
		}
		if _, bytes, _ := k.kept(); bytes != 100 {
			t.Errorf("%d bytes are kept, want 100", bytes)
		}
		time.Sleep(2 * keptFor)
		synctest.Wait()
		if l.get(0) != nil {
			t.Error("a value is still there long after its last use")
		}
		if owners, bytes, ticks := k.kept(); owners != 0 || bytes != 0 || ticks {
			t.Errorf("without values there are %d owners and %d bytes, ticks: %t", owners, bytes, ticks)
		}
		l.set(0, used, 1) // it begins again
		time.Sleep(3 * keptFor)
		synctest.Wait()
		if l.get(0) != nil {
			t.Error("a later value is still there long after its last use")
		}
	})
}

// What is kept is bounded. A value for which there is no room lasts until the next garbage collection.
func TestWhatIsKeptIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Keeper
		l := newList(&k, 3)
		l.set(0, new([]byte), mostKept-10)
		large := new([]byte)
		l.set(1, large, 11)
		if l.get(1) != large {
			t.Error("a value for which there is no room is not there before a collection")
		}
		runtime.KeepAlive(large)
		runtime.GC()
		if l.get(1) != nil {
			t.Error("a value for which there is no room is there after a collection")
		}
		l.set(2, new([]byte), 10)
		if _, bytes, _ := k.kept(); bytes != mostKept {
			t.Errorf("%d bytes are kept, want %d", bytes, mostKept)
		}
		l.set(0, new([]byte), 5) // it replaces one of more bytes
		l.set(1, new([]byte), 11)
		runtime.GC()
		if l.get(0) == nil || l.get(1) == nil || l.get(2) == nil {
			t.Error("a value for which there is room has gone")
		}
		if _, bytes, _ := k.kept(); bytes != 26 {
			t.Errorf("%d bytes are kept, want 26", bytes)
		}
		l.clear(1)
		if l.get(1) != nil {
			t.Error("a cleared value is still there")
		}
		time.Sleep(keptFor)
		synctest.Wait()
		if _, bytes, _ := k.kept(); bytes != 15 {
			t.Errorf("%d bytes are kept after one of 11 bytes was cleared, want 15", bytes)
		}
	})
}

// Owners use a Keeper while it drops what they have.
func TestKeepersAreUsedConcurrently(t *testing.T) {
	var k Keeper
	var wg sync.WaitGroup
	for range 4 {
		l := newList(&k, 8)
		wg.Go(func() {
			for i := range 500 {
				is := new([]byte)
				if l.set(i%8, is, i); i%100 == 0 {
					k.sweep()
				}
				if got := l.get(i % 8); got != nil && got != is {
					t.Error("another value was returned")
				}
			}
		})
	}
	wg.Wait()
	k.sweep()
	k.sweep()
	if owners, bytes, _ := k.kept(); owners != 0 || bytes != 0 {
		t.Errorf("without values there are %d owners and %d bytes", owners, bytes)
	}
}

// lateList sets a value just after the Keeper has looked.
type lateList struct {
	*list
	late func()
}

// DropUnused implements Owner.
func (l *lateList) DropUnused() (left int) {
	left = l.list.DropUnused()
	if l.late != nil {
		l.late()
		l.late = nil
	}
	return left
}

// A value that is set while the Keeper drops the others of its owner is dropped later.
func TestValuesThatAreSetDuringASweepAreDroppedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Keeper
		l := &lateList{list: newList(&k, 1)}
		set := func() { l.values[0].Set(&k, l, new([]byte), 7) }
		set()
		time.Sleep(keptFor)
		synctest.Wait()
		l.late = set
		time.Sleep(keptFor) // nothing is left, and then there is another
		synctest.Wait()
		if l.get(0) == nil {
			t.Fatal("the value that was set last is not there")
		}
		time.Sleep(3 * keptFor)
		synctest.Wait()
		if owners, bytes, _ := k.kept(); l.values[0].kept != nil || owners != 0 || bytes != 0 {
			t.Errorf("long after its last use the value is there: %t; there are %d owners and %d bytes", l.values[0].kept != nil, owners, bytes)
		}
	})
}
