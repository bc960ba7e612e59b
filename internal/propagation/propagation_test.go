package propagation

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/costs"
)

// measurements implements Observer.
type measurements struct {
	mu    sync.Mutex
	kinds []Kind
	all   []string
}

func (m *measurements) Measures(of Kind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kinds = append(m.kinds, of)
}

func (m *measurements) Reached(of Kind, at Stage, client Client, after time.Duration) {
	m.add(fmt.Sprintf("%s %s %s", at, client, after))
}

func (m *measurements) Missed(of Kind, at Stage, clients int64) {
	m.add(fmt.Sprintf("%s missed %d", at, clients))
}

func (m *measurements) add(s string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, s)
}

// take returns what was measured since it was called last.
func (m *measurements) take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.all
	m.all = nil
	return all
}

func newTestTracker() (*Tracker, *measurements) {
	m := &measurements{}
	t := NewTracker(m, func(a, typeURL string) (string, string) { return a, typeURL })
	t.Measure(true)
	return t, m
}

// begin opens a change for clients that are all owed it.
func begin(t *Tracker, clients []*Owed) {
	c := t.Begin(&Receipt{At: time.Now()}, "a", "type")
	for _, o := range clients {
		o.Add(c)
		o.Add(c) // as if it had two resources of the client
	}
	c.Open()
}

func newClients(n int) []*Owed {
	clients := make([]*Owed, n)
	for i := range clients {
		clients[i] = new(Owed)
	}
	return clients
}

func wantMeasured(t *testing.T, m *measurements, want ...string) {
	t.Helper()
	if got := m.take(); !slices.Equal(got, want) {
		t.Errorf("measured\n%q\nwant\n%q", got, want)
	}
}

func TestFirstMedianAndLastClientAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, m := newTestTracker()
		clients := newClients(5)
		begin(tracker, clients)
		var lists []*List
		for _, c := range clients {
			time.Sleep(time.Second)
			l := c.Take()
			l.Sent()
			lists = append(lists, l)
		}
		wantMeasured(t, m, "sent first 1s", "sent median 3s", "sent last 5s")
		for _, l := range lists {
			time.Sleep(time.Second)
			l.ACKed()
		}
		wantMeasured(t, m, "acked first 6s", "acked median 8s", "acked last 10s")
		time.Sleep(2 * Limit)
		wantMeasured(t, m)
	})
}

func TestClientsThatGoAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, m := newTestTracker()
		clients := newClients(4)
		begin(tracker, clients)
		time.Sleep(time.Second)
		first := clients[0].Take()
		first.Sent()
		wantMeasured(t, m, "sent first 1s")
		time.Sleep(time.Second)
		for _, c := range clients[2:] {
			c.Take().Spared()
		}
		wantMeasured(t, m, "sent median 2s")
		time.Sleep(time.Second)
		second := clients[1].Take()
		second.Sent()
		wantMeasured(t, m, "sent last 3s")
		first.NotACKed()
		second.ACKed()
		wantMeasured(t, m, "acked first 3s", "acked median 3s", "acked last 3s")
	})
}

func TestAChangeThatNobodyNeedsIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, m := newTestTracker()
		clients := newClients(2)
		begin(tracker, clients)
		for _, c := range clients {
			c.Take().Spared()
		}
		begin(tracker, nil)
		time.Sleep(2 * Limit)
		wantMeasured(t, m)
	})
}

func TestClientsThatAreNotReachedInTimeAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, m := newTestTracker()
		clients := newClients(3)
		begin(tracker, clients)
		l := clients[0].Take()
		l.Sent()
		l.ACKed()
		time.Sleep(Limit)
		synctest.Wait()
		wantMeasured(t, m, "sent first 0s", "acked first 0s", "sent missed 2", "acked missed 2")
		late := clients[1].Take()
		late.Sent()
		late.ACKed()
		clients[2].Take().Sent()
		wantMeasured(t, m)
	})
}

// An observer can prepare its counters, so that they have a value before the first measurement.
func TestTheObserverKnowsEachKindBeforeItsFirstMeasurement(t *testing.T) {
	tracker, m := newTestTracker()
	clients := newClients(1)
	begin(tracker, clients)
	begin(tracker, clients)
	wantMeasured(t, m)
	if want := []Kind{{Authority: "a", Type: "type"}}; !slices.Equal(m.kinds, want) {
		t.Errorf("the observer knows the kinds %v, want %v", m.kinds, want)
	}
	tracker.Close()
}

// A client that lags is sent the newest state only, which counts for all changes before.
func TestALaggingClientIsSentAllChangesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, m := newTestTracker()
		clients := newClients(1)
		begin(tracker, clients)
		time.Sleep(time.Second)
		begin(tracker, clients)
		time.Sleep(time.Second)
		clients[0].Take().Sent()
		got := m.take()
		slices.Sort(got)
		want := []string{"sent first 1s", "sent first 2s", "sent last 1s", "sent last 2s", "sent median 1s", "sent median 2s"}
		if !slices.Equal(got, want) {
			t.Errorf("measured %q, want %q", got, want)
		}
	})
}

// Changes that come faster than clients take them cost bounded memory.
func TestChangesInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, m := newTestTracker()
		var group Numbered
		stalled := new(Owed)
		const changes = 10 * maxOpen
		for i := range changes {
			c := tracker.Begin(&Receipt{At: time.Now()}, "a", "type")
			group.Add(c, uint64(i+1), 2)
			stalled.Add(c)
			c.Open()
		}
		line := tracker.lines[Kind{Authority: "a", Type: "type"}]
		if n := len(line.changes); n != maxOpen {
			t.Errorf("%d changes are measured, want %d", n, maxOpen)
		}
		if n := len(group.changes); n > maxOwed+1 {
			t.Errorf("a group remembers %d changes, want at most %d", n, maxOwed+1)
		}
		if n := stalled.list.Load().n; n > maxOwed+1 {
			t.Errorf("a client is owed %d changes, want at most %d", n, maxOwed+1)
		}
		missed := 0
		for _, s := range m.take() {
			if s == "sent missed 3" {
				missed++
			}
		}
		if want := changes - maxOpen; missed != want {
			t.Errorf("%d changes were given up with 3 clients, want %d", missed, want)
		}
		tracker.Close()
	})
}

func TestAGroupHasTheChangesSinceAClientWasSentThem(t *testing.T) {
	tracker, _ := newTestTracker()
	defer tracker.Close()
	var group Numbered
	var all []*Change
	for i := range 3 {
		c := tracker.Begin(&Receipt{At: time.Now()}, "a", "type")
		seq := uint64(10 * (i + 1))
		group.Add(c, seq, 1)
		group.Add(c, seq+1, 1) // another name of the same change
		c.Open()
		all = append(all, c)
	}
	for since, want := range map[uint64][]*Change{0: all, 11: all[1:], 21: all[2:], 31: nil} {
		var got []*Change
		for l := group.Since(since); l != nil; l = l.rest {
			got = append(got, l.change)
		}
		slices.SortFunc(got, func(a, b *Change) int { return slices.Index(all, a) - slices.Index(all, b) })
		if !slices.Equal(got, want) {
			t.Errorf("since %d: %d changes, want %d", since, len(got), len(want))
		}
	}
	for i, c := range all {
		if c.clients != 1 {
			t.Errorf("change %d counts %d clients, want 1", i, c.clients)
		}
	}
}

// Clients that are sent the change, or leave, before all are counted: what they do is not lost, and does not end the
// measurement.
func TestAClientMayActBeforeAChangeIsOpened(t *testing.T) {
	for _, tt := range []struct {
		name         string
		early, later func(*List)
		want         []string
	}{
		{"it leaves", (*List).Spared, (*List).Sent, []string{"sent first 2s", "sent median 2s", "sent last 2s"}},
		{"it is sent the change", (*List).Sent, (*List).Sent, []string{"sent first 1s", "sent median 1s", "sent last 2s"}},
		{"it is sent the change, and others leave", (*List).Sent, (*List).Spared, []string{"sent first 1s", "sent median 1s", "sent last 2s"}},
		{"all leave", (*List).Spared, (*List).Spared, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tracker, m := newTestTracker()
				c := tracker.Begin(&Receipt{At: time.Now()}, "a", "type")
				clients := newClients(2)
				clients[0].Add(c)
				tt.early(clients[0].Take())
				clients[1].Add(c)
				time.Sleep(time.Second)
				c.Open()
				time.Sleep(time.Second)
				tt.later(clients[1].Take())
				wantMeasured(t, m, tt.want...)
			})
		})
	}
}

// However clients come, lag, answer and go at the same time, even before all of them are counted: each stage of a
// change is measured to its end, once.
func TestEveryChangeIsMeasuredToItsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker, m := newTestTracker()
		n := rapid.IntRange(1, 20).Draw(t, "clients")
		acts := rapid.SliceOfN(rapid.IntRange(0, 3), n, n).Draw(t, "acts")
		opensAfter := rapid.IntRange(0, n).Draw(t, "clients that may act before the change is open")
		clients := newClients(n)
		c := tracker.Begin(&Receipt{At: time.Now()}, "a", "type")
		for _, o := range clients[opensAfter:] {
			o.Add(c)
		}
		var wg sync.WaitGroup
		sent, acked := 0, 0
		for i, act := range acts {
			if i == opensAfter {
				c.Open()
			} else if i < opensAfter {
				clients[i].Add(c)
			}
			if act > 0 {
				sent++
			}
			if act > 1 {
				acked++
			}
			wg.Go(func() {
				l := clients[i].Take()
				if act == 0 {
					l.Spared()
					return
				}
				l.Sent()
				if act == 1 {
					l.NotACKed()
				} else {
					l.ACKed()
				}
			})
		}
		if opensAfter == n {
			c.Open()
		}
		wg.Wait()
		count := map[string]int{}
		for _, s := range m.take() {
			var stage, client, after string
			if _, err := fmt.Sscan(s, &stage, &client, &after); err != nil {
				t.Fatal(err)
			}
			count[stage+" "+client]++
		}
		for stage, n := range map[Stage]int{Sent: sent, ACKed: acked} {
			want := 0
			if n > 0 {
				want = 1
			}
			for client := range milestones {
				if got := count[stage.String()+" "+client.String()]; got != want {
					t.Errorf("%s %s was measured %d times, want %d", stage, client, got, want)
				}
			}
		}
		if open := len(tracker.lines[Kind{Authority: "a", Type: "type"}].changes); open != 0 {
			t.Errorf("%d changes are still measured", open)
		}
	})
}

func TestNothingIsMeasuredUnlessSomebodyCanSeeIt(t *testing.T) {
	tracker, _ := newTestTracker()
	r := &Receipt{At: time.Now()}
	if tracker.Begin(r, "a", "type") == nil || tracker.Begin(nil, "a", "type") != nil || (*Tracker)(nil).Begin(r, "a", "type") != nil {
		t.Error("an update without a response is measured, or one with a response is not")
	}
	tracker.Measure(false)
	if tracker.Begin(r, "a", "type") != nil {
		t.Error("a change is measured though nobody can see it")
	}
}

// The cost of a change for each client.
func TestAClientAllocatesNothing(t *testing.T) {
	tracker, _ := newTestTracker()
	defer tracker.Close()
	clients := newClients(100)
	allocs := testing.AllocsPerRun(10, func() {
		begin(tracker, clients)
		for _, o := range clients {
			l := o.Take()
			l.Sent()
			l.ACKed()
		}
	})
	if allocs > 50 {
		t.Errorf("a change for 100 clients makes %v allocations", allocs)
	}
}

// A client that lags is owed many changes. The next one costs no more for that.
func TestWorkForAClientThatLags(t *testing.T) {
	costs.Linear(t, maxOpen/2, func(_ *testing.T, n int) {
		tracker, _ := newTestTracker()
		defer tracker.Close()
		clients := newClients(3)
		for range n {
			begin(tracker, clients)
		}
	})
}

// The list of a client that lags is searched only now and then, even if nearly all changes are still measured.
func TestTheListOfALaggingClientIsSeldomSearched(t *testing.T) {
	tracker, _ := newTestTracker()
	defer tracker.Close()
	client := new(Owed)
	open := func(authority string) {
		c := tracker.Begin(&Receipt{At: time.Now()}, authority, "type")
		client.Add(c)
		client.Add(c)
		c.Open()
	}
	for range maxOpen - 1 {
		open("a") // these stay open, and of the others the newest ones
	}
	const changes = 10 * maxOwed
	before, lookedThrough := client.list.Load().n, 0
	for range changes {
		open("b")
		n := client.list.Load().n
		if n > maxOwed {
			t.Fatalf("the client is owed %d changes, want at most %d", n, maxOwed)
		}
		if n != before+1 {
			lookedThrough++
		}
		before = n
	}
	if most := changes/(maxOwed-mostKept) + 1; lookedThrough > most {
		t.Errorf("for %d changes, what the client is owed was looked through %d times, want at most %d", changes, lookedThrough, most)
	}
}

// Changes that come at the same time, each with several resources of a client, count the client once.
func TestChangesThatComeAtTheSameTimeCountAClientOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker, _ := newTestTracker()
		defer tracker.Close()
		client := new(Owed)
		var coming []*Change
		wants := 0
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if len(coming) == 0 || len(coming) < 4 && rapid.Bool().Draw(t, "begins") {
				coming = append(coming, tracker.Begin(&Receipt{At: time.Now()}, "a", "type"))
				continue
			}
			i := rapid.IntRange(0, len(coming)-1).Draw(t, "which")
			c := coming[i]
			if rapid.Bool().Draw(t, "is over") {
				c.Open()
				coming = slices.Delete(coming, i, i+1)
				continue
			}
			if c.clients == 0 {
				wants++
			}
			client.Add(c)
			if c.clients != 1 {
				t.Fatalf("the client counts %d times", c.clients)
			}
		}
		n := 0
		for l := client.Take(); l != nil; l = l.rest {
			n++
		}
		if n != wants {
			t.Fatalf("the client is owed %d changes, want %d", n, wants)
		}
	})
}
