package cache

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// What was never answered may not exist. As long as the relay requests such a name, some control planes answer no other
// name of the request. So the name lingers only for a client that reconnects.
func TestANameWithoutAnAnswerLingersShortly(t *testing.T) {
	const name = "foo"
	silence := &Error{Code: codes.DeadlineExceeded, Unanswered: true}
	for _, row := range []struct {
		state   string
		change  *Change
		lingers time.Duration
	}{
		{"requested", nil, unansweredLinger},
		{"silence", &Change{Name: name, Err: silence}, unansweredLinger},
		{"silence of a delta control plane", &Change{Name: name, Err: &Error{Code: codes.DeadlineExceeded}}, unansweredLinger},
		{"refused by the relay", &Change{Name: name, Err: &Error{Code: codes.ResourceExhausted, Refused: true}}, unansweredLinger},
		{"an outage", &Change{Name: name, Err: &Error{Code: codes.Unavailable, Outage: &Outage{}}}, testLinger},
		{"a control plane that is unavailable", &Change{Name: name, Err: &Error{Code: codes.Unavailable}}, testLinger},
		{"an error of the control plane", &Change{Name: name, Err: &Error{Code: codes.PermissionDenied}}, testLinger},
		{"a resource that is invalid", &Change{Name: name, Err: &Error{Code: codes.InvalidArgument, Invalid: true}}, testLinger},
		{"absent", &Change{Name: name}, testLinger},
		{"present", &Change{Name: name, Resource: res(name, "1", "x")}, testLinger},
	} {
		t.Run(row.state, func(t *testing.T) {
			lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
				w, k := &counter{}, testKey(name)
				c.Watch(k, w)
				if row.change != nil {
					c.Apply(update(*row.change))
				}
				c.Unwatch(w)
				<-time.After(row.lingers - 1)
				f.expect(t, "just before", k, 1, 0)
				<-time.After(1)
				f.expect(t, "after", k, 1, 1)
			})
		})
	}
}

func TestANameWhoseAnswerComesLateLingersFromWhenItWasLeft(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		w, k := &counter{}, testKey("foo")
		c.Watch(k, w)
		c.Unwatch(w)
		<-time.After(unansweredLinger - 1)
		c.Apply(update(Change{Name: "foo", Resource: res("foo", "1", "x")}))
		<-time.After(testLinger - unansweredLinger)
		f.expect(t, "just before the linger time is over", k, 1, 0)
		<-time.After(1)
		f.expect(t, "after the linger time", k, 1, 1)
	})
}

// The name is requested again when the outage is over, and may silence the control plane then.
func TestANameWithoutAnAnswerLingersWhileThereIsNoControlPlane(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		w, k := &counter{}, testKey("foo")
		outage := &Outage{}
		c.Watch(k, w)
		c.Apply(update(Change{Name: "foo", Err: &Error{Code: codes.Unavailable, Outage: outage}}))
		c.Unwatch(w)
		<-time.After(testLinger / 2)
		f.expect(t, "during the outage", k, 1, 0)
		outage.End()
		<-time.After(unansweredLinger)
		f.expect(t, "after the outage", k, 1, 1)
	})
}

func TestAClientThatReconnectsKeepsANameWithoutAnAnswer(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		w, k := &counter{}, testKey("foo")
		for range 5 {
			c.Watch(k, w)
			c.Unwatch(w)
			<-time.After(unansweredLinger - 1)
		}
		c.Watch(k, w)
		<-time.After(2 * unansweredLinger)
		f.expect(t, "watched", k, 1, 0)
	})
}

// The two linger times do not wait for each other, in whichever order topics become idle.
func TestNamesWithAndWithoutAnAnswerLingerEachForItsTime(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		visit := func(name string, answered bool) {
			w := &counter{}
			c.Watch(testKey(name), w)
			if answered {
				c.Apply(update(Change{Name: name, Resource: res(name, "1", "x")}))
			}
			c.Unwatch(w)
		}
		visit("answered", true)
		<-time.After(time.Second)
		visit("first", false)
		<-time.After(time.Second)
		visit("second", false)
		<-time.After(unansweredLinger - time.Second)
		f.expect(t, "after the first one's time", testKey("first"), 1, 1)
		f.expect(t, "after the first one's time", testKey("second"), 1, 0)
		<-time.After(time.Second)
		f.expect(t, "after the second one's time", testKey("second"), 1, 1)
		<-time.After(testLinger - 2*time.Second - unansweredLinger - 2*unansweredLinger/4)
		visit("third", false) // shortly before the end of the answered one's time
		f.expect(t, "before the end", testKey("answered"), 1, 0)
		<-time.After(2 * unansweredLinger / 4)
		f.expect(t, "at the end", testKey("answered"), 1, 1)
		f.expect(t, "at the end", testKey("third"), 1, 0)
		<-time.After(2 * unansweredLinger / 4)
		f.expect(t, "the last", testKey("third"), 1, 1)
	})
}

func TestALingerTimeThatIsShorterHoldsForNamesWithoutAnAnswer(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		c.Configure(Options{Linger: time.Second, IdleEntries: 10})
		w, k := &counter{}, testKey("foo")
		c.Watch(k, w)
		c.Unwatch(w)
		<-time.After(time.Second)
		f.expect(t, "after the linger time", k, 1, 1)
	})
}

// A client that polls may not wait as long as a control plane takes for its first answer, and comes again.
func TestANameWithoutAnAnswerLingersForAClientThatPolls(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		w, k := &Watch{Group: &WatchGroup{Polls: true, Changed: func(*Watch) Waker { return nil }}}, testKey("foo")
		c.WatchInGroup(k, w)
		c.Unwatch(w)
		<-time.After(testLinger - 1)
		f.expect(t, "just before", k, 1, 0)
		<-time.After(1)
		f.expect(t, "after", k, 1, 1)
	})
}
