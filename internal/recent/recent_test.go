package recent

import (
	"runtime"
	"sync"
	"sync/atomic"
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

// What is kept is bounded, and no owner gets everything.
func TestWhatIsKeptIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Keeper
		a, b := newList(&k, 3), newList(&k, 2)
		steps := []struct {
			name  string
			of    *list
			place int
			bytes int
			ok    bool
			kept  int // afterwards
		}{
			{"more than half of everything", a, 0, mostKept/2 + 1, false, 0},
			{"half of everything", a, 0, mostKept / 2, true, mostKept / 2},
			{"one byte more", a, 1, 1, false, mostKept / 2},
			{"half of what is left for another owner", b, 0, mostKept / 4, true, mostKept * 3 / 4},
			{"in place of more", a, 0, 5, true, mostKept/4 + 5},
			{"what has become free", a, 1, 6, true, mostKept/4 + 11},
			{"too much in place of less", a, 1, mostKept, false, mostKept/4 + 11},
		}
		for _, step := range steps {
			step.of.mu.Lock()
			ok := step.of.values[step.place].Set(&k, step.of, new([]byte), step.bytes)
			step.of.mu.Unlock()
			if is := step.of.get(step.place) != nil; ok != step.ok || is != step.ok {
				t.Errorf("%s: there was room: %t, want %t; and the value is there: %t", step.name, ok, step.ok, is)
			}
			if _, bytes, _ := k.kept(); bytes != step.kept {
				t.Errorf("%s: %d bytes are kept, want %d", step.name, bytes, step.kept)
			}
		}
		a.clear(0)
		if a.get(0) != nil {
			t.Error("a cleared value is still there")
		}
		time.Sleep(keptFor)
		synctest.Wait()
		if _, bytes, _ := k.kept(); bytes != mostKept/4 {
			t.Errorf("%d bytes are kept when one owner has nothing left, want %d", bytes, mostKept/4)
		}
		k.Forget(b)
		if owners, bytes, _ := k.kept(); owners != 0 || bytes != 0 {
			t.Errorf("there are %d owners and %d bytes, when none is left", owners, bytes)
		}
	})
}

// Owners use a Keeper while it drops what they have.
func TestKeepersAreUsedConcurrently(t *testing.T) {
	var k Keeper
	k.ticks = true // the test sweeps, and no timer
	var owners, sweeper sync.WaitGroup
	var lists []*list
	var over atomic.Bool
	sweeper.Go(func() {
		for !over.Load() {
			k.sweep()
		}
	})
	for range 4 {
		l := newList(&k, 8)
		lists = append(lists, l)
		owners.Go(func() {
			for i := range 2000 {
				is := new([]byte)
				l.set(i%8, is, i)
				if got := l.get(i % 8); got != nil && got != is {
					t.Error("another value was returned")
				}
			}
		})
	}
	owners.Wait()
	over.Store(true)
	sweeper.Wait()
	k.sweep()
	k.sweep()
	for _, l := range lists {
		for i := range l.values {
			if l.values[i].value != nil {
				t.Error("a value is there long after its last use")
			}
		}
	}
	if owners, bytes, _ := k.kept(); owners != 0 || bytes != 0 {
		t.Errorf("without values there are %d owners and %d bytes", owners, bytes)
	}
}

// lateList sets a value just after the Keeper has looked.
type lateList struct {
	*list
	late atomic.Bool
}

// DropUnused implements Owner.
func (l *lateList) DropUnused() (left int) {
	left = l.list.DropUnused()
	if l.late.CompareAndSwap(true, false) {
		l.set()
	}
	return left
}

func (l *lateList) set() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values[0].Set(l.keeper, l, new([]byte), 7)
}

// A value that is set while the Keeper drops the others of its owner is dropped later.
func TestValuesThatAreSetDuringASweepAreDroppedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Keeper
		l := &lateList{list: newList(&k, 1)}
		l.set()
		time.Sleep(keptFor)
		synctest.Wait()
		l.late.Store(true)
		time.Sleep(keptFor) // nothing is left, and then there is another
		synctest.Wait()
		if l.get(0) == nil {
			t.Fatal("the value that was set last is not there")
		}
		time.Sleep(3 * keptFor)
		synctest.Wait()
		if l.get(0) != nil {
			t.Error("the value is there long after its last use")
		}
		if owners, bytes, _ := k.kept(); owners != 0 || bytes != 0 {
			t.Errorf("there are %d owners and %d bytes, when nothing is kept", owners, bytes)
		}
	})
}
