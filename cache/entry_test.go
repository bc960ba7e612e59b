package cache

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

var (
	notFound    = &Error{Code: codes.NotFound, Message: "not found"}
	unavailable = &Error{Code: codes.Unavailable, Message: "unavailable"}
)

// The state of an entry after each of a row of changes, and whether its watchers
// are notified of the last.
func TestEntryTransitions(t *testing.T) {
	v1, v1again, v2 := res("foo", "1", "x"), res("foo", "2", "x"), res("foo", "3", "y")
	var (
		there      = Change{Name: "foo", Resource: v1}
		thereAgain = Change{Name: "foo", Resource: v1again}
		other      = Change{Name: "foo", Resource: v2}
		gone       = Change{Name: "foo"}
		goneErr    = Change{Name: "foo", Err: notFound, Gone: true}
		failed     = Change{Name: "foo", Err: unavailable}
		failedElse = Change{Name: "foo", Err: &Error{Code: codes.Unavailable, Message: "else"}}
		copyOfFail = Change{Name: "foo", Err: &Error{Code: codes.Unavailable, Message: "unavailable"}}
	)
	for _, c := range []struct {
		name     string
		changes  []Change
		want     State
		notified bool
	}{
		{"requested", nil, State{Status: Requested}, false},
		{"present", []Change{there}, State{Status: Present, Resource: v1}, true},
		{"absent", []Change{gone}, State{Status: Absent}, true},
		{"absent with what the authority said", []Change{goneErr}, State{Status: Absent, Err: notFound}, true},
		{"failed", []Change{failed}, State{Status: Failed, Err: unavailable}, true},

		{"the same again", []Change{there, there}, State{Status: Present, Resource: v1}, false},
		{"another version of the same", []Change{there, thereAgain}, State{Status: Present, Resource: v1again}, false},
		{"other content", []Change{there, other}, State{Status: Present, Resource: v2}, true},
		{"present, then absent", []Change{there, gone}, State{Status: Absent}, true},
		{"absent, then present", []Change{gone, there}, State{Status: Present, Resource: v1}, true},
		{"absent again", []Change{gone, gone}, State{Status: Absent}, false},
		{"absent, and now it is said why", []Change{gone, goneErr}, State{Status: Absent, Err: notFound}, true},

		{"failure keeps what is good", []Change{there, failed}, State{Status: Present, Resource: v1, Err: unavailable}, true},
		{"failure keeps what is absent", []Change{gone, failed}, State{Status: Absent, Err: unavailable}, true},
		{"the same failure again", []Change{there, failed, copyOfFail}, State{Status: Present, Resource: v1, Err: unavailable}, false},
		{"another failure", []Change{there, failed, failedElse}, State{Status: Present, Resource: v1, Err: failedElse.Err}, true},
		{"good again after a failure", []Change{there, failed, there}, State{Status: Present, Resource: v1}, true},
		{"absent after a failure", []Change{there, failed, gone}, State{Status: Absent}, true},
		{"failed twice", []Change{failed, copyOfFail}, State{Status: Failed, Err: copyOfFail.Err}, false},
		{"present after failed", []Change{failed, there}, State{Status: Present, Resource: v1}, true},
		{"absent after failed", []Change{failed, gone}, State{Status: Absent}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := New(newFeeds(), Options{Linger: time.Hour})
			defer cache.Close()
			w := &counter{}
			e, _ := cache.Watch(testKey("foo"), w)
			for i, change := range c.changes {
				if i == len(c.changes)-1 {
					w.notified, w.woken = 0, 0
				}
				cache.Apply(update(change))
			}
			got := e.State()
			if got.Status != c.want.Status || got.Resource != c.want.Resource || (got.Err == nil) != (c.want.Err == nil) || got.Err != nil && *got.Err != *c.want.Err {
				t.Errorf("state %+v, want %+v", got, c.want)
			}
			if notified := w.notified == 1; notified != c.notified || w.woken != w.notified {
				t.Errorf("notified %d times, woken %d times, want %v", w.notified, w.woken, c.notified)
			}
		})
	}
}

func TestUpdateOfOtherScopesTypesAndNamesIsIgnored(t *testing.T) {
	cache := New(newFeeds(), Options{Linger: time.Hour})
	defer cache.Close()
	w, sw := &counter{}, &setCounter{}
	e, _ := cache.Watch(testKey("foo"), w)
	s := cache.WatchSet(testKey(Wildcard), sw)
	foo := Change{Name: "foo", Resource: res("foo", "1", "x")}
	other := update(foo)
	other.Sets = []SetUpdate{{Name: Wildcard, Changes: []Change{foo}}}
	other.TypeURL = "type.googleapis.com/other"
	cache.Apply(other)
	other.TypeURL, other.Scope.Partition = testType, "p"
	cache.Apply(other)
	other.Scope = testScope
	other.Changes[0].Name, other.Sets[0].Name = "bar", "bar"
	cache.Apply(other)
	if w.notified+sw.notified > 0 || e.State().Status != Requested || s.Len() > 0 {
		t.Errorf("notified %d and %d times, state %v, %d members", w.notified, sw.notified, e.State().Status, s.Len())
	}
}

func TestUnwatchedWatcherIsNotNotified(t *testing.T) {
	cache := New(newFeeds(), Options{Linger: time.Hour})
	defer cache.Close()
	ws := make([]*counter, 5)
	for i := range ws {
		ws[i] = &counter{}
		cache.Watch(testKey("foo"), ws[i])
	}
	for n, i := range []int{0, 3, 1, 4, 2} {
		cache.Unwatch(ws[i])
		left := 0
		for _, w := range ws {
			w.notified = 0
		}
		cache.Apply(update(Change{Name: "foo", Resource: res("foo", "", string(rune('a'+n)))}))
		for _, w := range ws {
			left += w.notified
		}
		if ws[i].notified > 0 || left != len(ws)-n-1 {
			t.Errorf("after %d left: %d notified, and the one that left %d times", n+1, left, ws[i].notified)
		}
	}
}

func TestStatusesHaveNames(t *testing.T) {
	for s, want := range map[Status]string{Requested: "requested", Present: "present", Absent: "absent", Failed: "failed", 9: "status(9)"} {
		if got := s.String(); got != want {
			t.Errorf("status %d is %q, want %q", s, got, want)
		}
	}
	if got, want := unavailable.Error(), "Unavailable: unavailable"; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
}

// An error of what lives on is no sign of life.
func TestAnErrorIsNoHeartbeat(t *testing.T) {
	c := New(newFeeds(), Options{IdleEntries: 1})
	defer c.Close()
	w := &counter{}
	e, _ := c.Watch(testKey("x"), w)
	alive := res("x", "1", "c").WithTTL(time.Minute)
	for i, step := range []struct {
		change Change
		beats  uint32
	}{
		{Change{Name: "x", Resource: alive}, 0},
		{Change{Name: "x", Err: &Error{Code: codes.Unavailable}}, 0},
		{Change{Name: "x", Err: &Error{Code: codes.Internal}}, 0},
		{Change{Name: "x", Resource: alive}, 1},
	} {
		c.Apply(update(step.change))
		if is := e.State(); is.Status != Present || is.Heartbeats != step.beats {
			t.Errorf("step %d: %v with %d heartbeats, want %d", i, is.Status, is.Heartbeats, step.beats)
		}
	}
}
