package chain

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/costs"
)

func relays(ids ...string) Chain { return Chain{Relay: true, IDs: ids} }

// join is Join for a client whose stream does not end, and that is not refused.
func join[K comparable](table *Table[K], k K, c Chain) *Member {
	m, err := table.Join(k, c, func(why error) { panic(why) })
	if err != nil {
		panic(err)
	}
	return m
}

func TestATableAnnouncesTheRelaysBehindAScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable[string]("own", time.Minute)
		var notified atomic.Int32
		stop := table.Of("s").Watch(func() { notified.Add(1) })
		announced := func(wantNotified int32, want ...string) {
			t.Helper()
			if c := table.Of("s").Chain(); !c.Relay || !slices.Equal(c.IDs, want) {
				t.Errorf("announced is %+v, want %q", c, want)
			}
			if n := notified.Swap(0); n != wantNotified {
				t.Errorf("notified %d times, want %d", n, wantNotified)
			}
		}
		stale := func(want bool, announced ...string) {
			t.Helper()
			if got := table.Of("s").Stale(announced); got != want {
				t.Errorf("that %q were announced is stale: %v, want %v", announced, got, want)
			}
		}
		members := map[string][]*Member{}
		join := func(c Chain) { members[c.String()] = append(members[c.String()], join(table, "s", c)) }
		leave := func(c Chain) {
			there := members[c.String()]
			table.Leave("s", there[0])
			table.Leave("s", there[0]) // a second time does nothing
			members[c.String()] = there[1:]
		}
		announced(0)
		other, _ := table.Join("other", relays("x"), nil)
		announced(0)
		join(relays()) // the first: now the relay itself has to be named
		announced(1, "own")
		stale(true)
		stale(false, "own")
		join(relays())
		announced(0, "own")
		join(relays("a", "b"))
		announced(1, "a", "b", "own")
		stale(true, "own")
		stale(false, "own", "b", "a")
		join(relays("c", "b"))
		announced(1, "a", "b", "c", "own")
		leave(relays("a", "b"))
		announced(0, "b", "c", "own") // what is opened now says so
		stale(false, "own", "a", "b", "c")
		stale(false, "own", "b", "c")
		stale(true, "own", "a", "b")
		time.Sleep(30 * time.Second)
		leave(relays("c", "b"))
		time.Sleep(29 * time.Second)
		stale(false, "own", "a", "b", "c")
		join(relays("a"))
		announced(1, "a", "own")
		leave(relays("a"))
		time.Sleep(time.Second)
		synctest.Wait()
		announced(1, "own")
		stale(false, "own", "a", "b", "c") // a came once more
		time.Sleep(30 * time.Second)
		synctest.Wait()
		announced(1, "own")
		stale(true, "own", "a", "b", "c")
		stale(false, "own", "a")
		time.Sleep(29 * time.Second)
		synctest.Wait()
		announced(1, "own")
		stale(true, "own", "a")
		leave(relays())
		leave(relays())
		announced(0)
		stale(false, "own")
		time.Sleep(time.Minute)
		synctest.Wait()
		announced(1)
		stale(true, "own")
		stale(false)
		stop()
		table.Leave("other", other)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(table.scopes) != 0 {
			t.Errorf("%d scopes are left", len(table.scopes))
		}
	})
}

// An announced chain can be parsed, however many relays there are.
func TestATableAnnouncesNoMoreThanMayBe(t *testing.T) {
	table := NewTable[int]("own", time.Minute)
	for i := range 2 * MaxRelays {
		join(table, 0, relays(fmt.Sprint(i)))
	}
	c, err := Parse([]string{table.Of(0).Chain().String()})
	if err != nil || len(c.IDs) != MaxRelays || c.IDs[0] != "0" || c.IDs[MaxRelays-1] != "own" {
		t.Errorf("got %+v, %v", c, err)
	}
}

// After clients have come and gone in any order, the table announces exactly the relays of the clients
// that are present, and keeps nothing of the others.
func TestATableHasTheRelaysOfItsClientsOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := NewTable[int]("own", 0)
		type joined struct {
			chain Chain
			m     *Member
		}
		var there []joined
		id := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			if len(there) > 0 && rapid.Bool().Draw(t, "leaves") {
				i := rapid.IntRange(0, len(there)-1).Draw(t, "who")
				table.Leave(0, there[i].m)
				there = slices.Delete(there, i, i+1)
			} else {
				c := relays(rapid.SliceOfNDistinct(id, 0, 3, rapid.ID).Draw(t, "ids")...)
				m := join(table, 0, c)
				there = append(there, joined{c, m})
			}
			want := []string{}
			for _, c := range there {
				want = append(want, c.chain.IDs...)
			}
			if len(there) > 0 {
				want = append(want, "own")
			}
			slices.Sort(want)
			want = slices.Compact(want)
			if got := slices.Sorted(slices.Values(table.Of(0).Chain().IDs)); !slices.Equal(got, want) {
				t.Fatalf("%q are announced, want %q", got, want)
			}
		}
	})
}

// Clients can make up relays only up to a bound. Relays that were known before are found, and so are relays
// that come when there is room again.
func TestATableKeepsABoundedNumberOfRelays(t *testing.T) {
	table := NewTable[int]("own", time.Hour)
	defer func() { table.scopes[0].forget.Stop() }()
	genuine := join(table, 0, relays("genuine"))
	if table.Of(0).Stale([]string{"own", "genuine"}) {
		t.Error("the first relay is not known")
	}
	var joined []*Member
	for i := range 2 * maxRelays / MaxRelays {
		ids := make([]string, MaxRelays)
		for j := range ids {
			ids[j] = fmt.Sprint(i, "-", j)
		}
		joined = append(joined, join(table, 0, relays(ids...)))
	}
	kept := func() (relays, byID int) { return len(table.scopes[0].relays), len(table.scopes[0].byID) }
	if n, m := kept(); n != maxRelays || m != maxRelays {
		t.Errorf("%d and %d relays are kept, want %d", n, m, maxRelays)
	}
	if m := join(table, 0, relays("late", "genuine")); len(m.known.IDs) != 1 || m.known.IDs[0] != "genuine" {
		t.Errorf("a full table knows %q", m.known.IDs)
	} else {
		table.Leave(0, m)
	}
	for _, c := range joined {
		table.Leave(0, c)
	}
	late := join(table, 0, relays("late"))
	if len(late.known.IDs) != 1 {
		t.Errorf("those who have gone keep %q out", "late")
	}
	if n, m := kept(); n != maxRelays || m != maxRelays {
		t.Errorf("%d and %d relays are kept, want %d", n, m, maxRelays)
	}
	if c := table.Of(0).Chain(); !slices.Contains(c.IDs, "genuine") || !slices.Contains(c.IDs, "late") {
		t.Errorf("announced is %q", c.IDs)
	}
	table.Leave(0, genuine)
	table.Leave(0, late)
}

// The cost of a client that comes and goes is proportional to its relays.
func TestWorkOfRelaysBehindAScope(t *testing.T) {
	costs.Linear(t, 400, func(_ *testing.T, n int) {
		table := NewTable[int]("own", 0)
		var joined []*Member
		for i := range n {
			joined = append(joined, join(table, 0, relays(fmt.Sprint(i))))
		}
		for _, c := range joined {
			table.Leave(0, c)
		}
	})
}

// Clients make up scopes, with relays in each. When they leave, relays are kept for only a few of the scopes that
// no stream announces.
func TestATableKeepsRelaysOfFewScopesThatNoStreamAnnounces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable[int]("own", time.Minute)
		defer table.Of(-1).Watch(func() {})()
		table.Leave(-1, join(table, -1, relays("a")))
		for i := range 10 * maxIdle {
			known := join(table, i, relays(fmt.Sprint("made-up-", i)))
			stop := table.Of(i).Watch(func() {})
			if i%2 == 0 {
				stop()
				table.Leave(i, known)
			} else {
				table.Leave(i, known)
				stop()
			}
		}
		if n := len(table.scopes); n != maxIdle+1 || len(table.idle) > maxIdle {
			t.Errorf("%d scopes are left, and %d idle, want %d", n, len(table.idle), maxIdle)
		}
		if table.Of(-1).Stale([]string{"own", "a"}) {
			t.Error("what a stream announces is forgotten before the linger time")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(table.scopes); n != 1 {
			t.Errorf("%d scopes are left after the linger time", n)
		}
	})
}

// Clients that make a loop lose their streams, and come back only when that may be over. The stream announces the others.
func TestATableEndsTheClientsOfALoopOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable[string]("edge", 0)
		var ended []string
		member := func(name string, c Chain) (*Member, error) {
			return table.Join("s", c, func(why error) { ended = append(ended, name+": "+why.Error()) })
		}
		stop := table.Of("s").Watch(func() {})
		defer stop()
		for name, c := range map[string]Chain{"good": relays("site"), "evil": relays("x", "root", "y"), "leaf": relays()} {
			if _, err := member(name, c); err != nil {
				t.Fatal(err)
			}
		}
		inAnother, _ := table.Join("other", relays("root"), func(error) { t.Error("a client of another scope loses its stream") })
		announced := table.Of("s").Chain().IDs
		for _, text := range []string{
			"no such route", "loop of relays: ", "loop of relays: other -> other", "loop of relays: roo -> roo",
			"loop of relays: edge -> edge", // it has the id of this relay: nobody behind it is to blame
		} {
			if table.Of("s").Refused(announced, text) {
				t.Errorf("%q blames a client", text)
			}
		}
		if !table.Of("s").Refused(announced, "Bad Request: loop of relays: root -> y -> site -> edge -> root") {
			t.Error("a loop blames nobody")
		}
		if table.Of("s").Refused(table.Of("s").Chain().IDs, "loop of relays: root -> root") {
			t.Error("a relay that was not announced is blamed")
		}
		synctest.Wait()
		if want := []string{"evil: loop of relays: root -> y -> site -> edge -> root"}; !slices.Equal(ended, want) {
			t.Errorf("streams end with %q, want %q", ended, want)
		}
		if got, want := table.Of("s").Chain().IDs, []string{"site", "edge"}; !slices.Equal(got, want) {
			t.Errorf("%q are announced, want %q", got, want)
		}
		time.Sleep(refusedFor - 1)
		if m, err := member("evil", relays("root")); m != nil || err == nil || err.Error() != "loop of relays: root -> y -> site -> edge -> root" {
			t.Errorf("the client that comes back gets %v, %v", m, err)
		}
		table.Leave("s", nil)
		time.Sleep(time.Nanosecond)
		if _, err := member("evil", relays("root")); err != nil {
			t.Errorf("the client is refused for ever: %v", err)
		}
		table.Leave("other", inAnother)
	})
}
