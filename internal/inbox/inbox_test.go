package inbox

import (
	"slices"
	"sync"
	"testing"
)

func TestItemsAreTakenOnceInTheirOrder(t *testing.T) {
	i := New[int]()
	if !i.Empty() || i.Take() != nil {
		t.Error("a new inbox has items")
	}
	i.Put(1)
	i.Add(2)
	if i.Empty() {
		t.Error("an inbox with two items says that it is empty")
	}
	if got := i.Take(); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("got %v, want 1 and 2", got)
	}
	if got := i.Take(); len(got) > 0 || !i.Empty() {
		t.Errorf("taken again: %v", got)
	}
}

func TestManyCallsWakeOnce(t *testing.T) {
	i := New[int]()
	i.Add(1)
	select {
	case <-i.Awake():
		t.Error("Add alone woke the goroutine")
	default:
	}
	i.Wake()
	i.Put(2)
	<-i.Awake()
	select {
	case <-i.Awake():
		t.Error("two calls woke the goroutine twice")
	default:
	}
}

// No item is lost between the last Take and the next wait.
func TestAGoroutineThatWaitsAfterTakingFindsEverything(t *testing.T) {
	const each, senders = 1000, 4
	i := New[int]()
	var sending sync.WaitGroup
	for range senders {
		sending.Go(func() {
			for n := range each {
				i.Put(n)
			}
		})
	}
	for got := 0; got < each*senders; {
		<-i.Awake()
		got += len(i.Take())
	}
	sending.Wait()
}

func TestTheRoomOfItemsIsUsedAgain(t *testing.T) {
	i := New[*int]()
	var taken []*int
	for round := range 10 {
		for n := range 5 {
			i.Add(&n)
		}
		before := taken
		taken = i.TakeAgain(taken)
		if len(taken) != 5 || *taken[0] != 0 || *taken[4] != 4 {
			t.Fatalf("round %d: got %d items, want 0 to 4", round, len(taken))
		}
		if round > 0 && before[0] != nil {
			t.Error("what was processed is still there")
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		i.Add(nil)
		taken = i.TakeAgain(taken)
	}); n > 0 {
		t.Errorf("taking an item allocates %v times, want 0", n)
	}
}
