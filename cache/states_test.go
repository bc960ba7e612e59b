package cache

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"
)

var stateErrors = []*Error{
	{Code: codes.Internal, Message: "the authority's"},
	{Code: codes.InvalidArgument, Message: "cannot be stored", Invalid: true},
	{Code: codes.Unavailable, Message: "an outage", Outage: &Outage{}},
	{Code: codes.NotFound, Message: "silence of a SotW server", Unanswered: true},
	{Code: codes.ResourceExhausted, Message: "not requested", Refused: true},
	{Code: codes.DeadlineExceeded, Message: "silence of a delta server"},
}

func TestStatesAreThoseOfGRPC(t *testing.T) {
	want := map[bool][]CacheState{ // by whether the last good resource is served
		false: {StateReceivedError, StateNACKed, StateRequested, StateTimeout, StateRequested, StateTimeout},
		true:  {StateReceivedErrorButCached, StateNACKedButCached, StateACKed, StateACKed, StateACKed, StateACKed},
	}
	for cached, states := range want {
		for i, want := range states {
			if got := withError(stateErrors[i], cached); got != want {
				t.Errorf("%s, cached %v: %s, want %s", stateErrors[i].Message, cached, got, want)
			}
		}
	}
}

// The counts equal the states of all resources, counted one by one, however resources and topics come, fail and go.
func TestStatesAreThoseOfAllResources(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 2})
		defer c.Close()
		scope := testScope
		key := func(name string) Key { return Key{scope, testType, name} }
		names := []string{"n0", "n1", "n2", "n3", "n4"}
		entries := map[string]*counter{}
		var set *setCounter
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0:
				if entries[name] == nil {
					entries[name] = &counter{}
					c.Watch(key(name), entries[name])
				}
			case 1:
				if w := entries[name]; w != nil {
					c.Unwatch(w)
					delete(entries, name)
				}
			case 2:
				if set == nil {
					set = &setCounter{}
					c.WatchSet(key(Wildcard), set)
				} else {
					c.Unwatch(set)
					set = nil
				}
			case 3:
				c.Apply(Update{Scope: scope, TypeURL: testType, Sets: []SetUpdate{{Name: Wildcard, Err: rapid.SampledFrom(stateErrors).Draw(t, "set error")}}})
			default:
				var changes []Change
				for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "changes") {
					change := Change{Name: name}
					switch rapid.IntRange(0, 3).Draw(t, "change") {
					case 0:
						change.Err = rapid.SampledFrom(stateErrors).Draw(t, "error")
					case 1: // it does not exist
					default:
						change.Resource = res(name, fmt.Sprint(step), fmt.Sprint(step))
					}
					changes = append(changes, change)
				}
				full := rapid.Bool().Draw(t, "full")
				c.Apply(Update{Scope: scope, TypeURL: testType, Changes: changes, Sets: []SetUpdate{{Name: Wildcard, Changes: changes, Extent: WholeIf(full)}}})
			}
			var got StateCounts
			c.EachStates(func(_ Scope, _ string, n *StateCounts) { got = *n })
			if want := statesOneByOne(c, scope); got != want {
				t.Fatalf("step %d: counted %v, and there are %v", step, got, want)
			}
		}
	})
}

// statesOneByOne counts the states of all resources.
func statesOneByOne(c *Cache, scope Scope) (n StateCounts) {
	var keys []Key
	c.EachTopic(scope, func(k Key) { keys = append(keys, k) })
	for _, k := range keys {
		e, s := c.Find(k)
		if e != nil {
			st := e.State()
			n[st.cacheState()]++
			continue
		}
		switch status, err := s.Status(); status {
		case Requested:
			n[StateRequested]++
		case Failed:
			n[withError(err, false)]++
		default:
			page, _ := s.Page(&SetWatch{}, SetPosition{}, 1000, nil)
			for _, m := range page {
				switch {
				case m.Removed:
				case m.Err != nil:
					n[withError(m.Err, m.Resource != nil)]++
				default:
					n[StateACKed]++
				}
			}
		}
	}
	return n
}

// The cost of a scrape does not depend on the number of resources.
func BenchmarkStates(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := New(newFeeds(), Options{Linger: time.Hour, IdleEntries: 2})
			defer c.Close()
			scope := testScope
			set := &setCounter{}
			c.WatchSet(Key{scope, testType, Wildcard}, set)
			changes := make([]Change, n)
			for i := range changes {
				name := fmt.Sprint("n", i)
				changes[i] = Change{Name: name, Resource: res(name, "1", "x")}
			}
			c.Apply(Update{Scope: scope, TypeURL: testType, Sets: []SetUpdate{{Name: Wildcard, Extent: Whole, Changes: changes}}})
			b.ResetTimer()
			for range b.N {
				total := int64(0)
				c.EachStates(func(_ Scope, _ string, n *StateCounts) { total += n[StateACKed] })
				if total != int64(n) {
					b.Fatalf("%d resources are counted", total)
				}
			}
		})
	}
}
