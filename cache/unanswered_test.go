package cache

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/propagation"
)

// said is an update that a response of the control plane has brought.
func said(changes ...Change) Update {
	u := update(changes...)
	u.Receipt = new(propagation.Receipt)
	return u
}

// What was never answered ends with its last watcher, once the control plane has said something else.
func TestUnansweredTopicDoesNotLinger(t *testing.T) {
	outage := new(Outage)
	unreachable := &Error{Code: codes.Unavailable, Outage: outage}
	for _, test := range []struct {
		when    string
		happens func(c *Cache) // after the topic is watched
		lingers bool
	}{
		{"nothing is said", func(*Cache) {}, true},
		{"another name is answered", func(c *Cache) { c.Apply(said(Change{Name: "other", Resource: res("other", "1", "x")})) }, false},
		{"another name expires", func(c *Cache) { c.Apply(update(Change{Name: "other"})) }, true},
		{"it is not answered in time", func(c *Cache) {
			err := &Error{Code: codes.DeadlineExceeded}
			u := update(Change{Name: "foo", Err: err})
			u.Sets = []SetUpdate{{Name: Wildcard, Err: err}}
			c.Apply(u)
		}, false},
		{"the control plane cannot be reached", func(c *Cache) {
			c.Apply(said(Change{Name: "other", Resource: res("other", "1", "x")}))
			u := update(Change{Name: "foo", Err: unreachable})
			u.Sets = []SetUpdate{{Name: Wildcard, Err: unreachable}}
			c.Apply(u)
		}, true},
		{"the outage is over", func(c *Cache) {
			u := update(Change{Name: "foo", Err: unreachable})
			u.Sets = []SetUpdate{{Name: Wildcard, Err: unreachable}}
			c.Apply(u)
			outage.End()
		}, false},
		{"the control plane sends an error", func(c *Cache) {
			err := &Error{Code: codes.Internal}
			u := said(Change{Name: "foo", Err: err})
			u.Sets = []SetUpdate{{Name: Wildcard, Err: err}}
			c.Apply(u)
		}, true},
		{"it is absent", func(c *Cache) {
			u := said(Change{Name: "foo"})
			u.Sets = []SetUpdate{{Name: Wildcard, Extent: Whole}}
			c.Apply(u)
		}, true},
	} {
		t.Run(test.when, func(t *testing.T) {
			lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
				other, w, sw := &counter{}, &counter{}, &setCounter{}
				c.Watch(testKey("other"), other)
				c.Watch(testKey("foo"), w)
				c.WatchSet(testKey(Wildcard), sw)
				test.happens(c)
				c.Unwatch(w)
				c.Unwatch(sw)
				stops := 1
				if test.lingers {
					stops = 0
				}
				f.expect(t, "the name", testKey("foo"), 1, stops)
				f.expect(t, "the set", testKey(Wildcard), 1, stops)
				<-time.After(testLinger)
				f.expect(t, "the name, after the linger time", testKey("foo"), 1, 1)
				f.expect(t, "the set, after the linger time", testKey(Wildcard), 1, 1)
				c.Unwatch(other)
			})
		})
	}
}

// What was said before a topic was requested is no reason to give it up.
func TestTopicRequestedSinceTheLastAnswerLingers(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		other, early, late := &counter{}, &counter{}, &counter{}
		c.Watch(testKey("other"), other)
		c.Watch(testKey("early"), early)
		c.Apply(said(Change{Name: "other", Resource: res("other", "1", "x")}))
		c.Watch(testKey("late"), late)
		c.Unwatch(early)
		c.Unwatch(late)
		f.expect(t, "requested before the answer", testKey("early"), 1, 1)
		f.expect(t, "requested after it", testKey("late"), 1, 0)
	})
}

// A client that polls has no watch between two polls. What it polls may be answered then.
func TestUnansweredTopicOfAPollLingers(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		other, w := &counter{}, &counter{}
		c.Watch(testKey("other"), other)
		poll := c.NewReader()
		poll.Watch(testKey("foo"), w)
		c.Apply(said(Change{Name: "other", Resource: res("other", "1", "x")}))
		poll.Suspend(w)
		f.expect(t, "between two polls", testKey("foo"), 1, 0)
	})
}

// A derived topic watches its leaves as long as it is there. They linger, or not, by themselves.
func TestUnansweredDerivedTopicDoesNotLinger(t *testing.T) {
	lingering(t, 10, func(t *testing.T, c *Cache, f *feeds) {
		k, w := testKey("foo"), &counter{}
		k.Scope.Derived = Resolved
		c.Watch(k, w)
		c.Unwatch(w)
		f.expect(t, "unwatched", k, 1, 1)
	})
}
