package downstream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// stuck is a watcher that holds up the update of which it is notified.
type stuck struct {
	cache.Watch
	in, out chan struct{}
}

func (s *stuck) Changed() cache.Waker {
	close(s.in)
	<-s.out
	return nil
}

// storeStuck has an update of old-style names stored, which comes to its end when release is
// called.
func (c *crowd) storeStuck() (release func()) {
	s := &stuck{in: make(chan struct{}), out: make(chan struct{})}
	u := puts(endpointType, "stuck", values(1, 10, 7)...)
	c.cache.Watch(cache.Key{Scope: u.Scope, TypeURL: endpointType, Name: u.Changes[0].Name}, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.cache.Apply(u)
	}()
	<-s.in
	return func() {
		close(s.out)
		<-done
	}
}

// While a large update of one authority is being stored, the clients of others are sent what
// is new to them: its own clients, however many, keep no sender waiting.
func TestAnAuthoritysUpdateWaitsForNoOther(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const clients = 50
				c := newCrowd(t)
				var own []*countingStream
				for range clients {
					c.join(form, endpointType, benchNames(1)...)
					own = append(own, c.grpc[len(c.grpc)-1])
				}
				c.changes(1)
				synctest.Wait()
				before := own[0].messages

				name := "xdstp://known/envoy.config.endpoint.v3.ClusterLoadAssignment/other"
				c.join(form, endpointType, name)
				other := c.grpc[len(c.grpc)-1]
				release := c.storeStuck()
				for _, st := range c.streams[:clients] {
					if st.inbox.wake() { // all have something to be looked at
						st.Wake()
					}
				}
				for content := range 3 {
					c.cache.Apply(cache.Update{Scope: cache.Scope{Authority: knownAuthority}, TypeURL: endpointType,
						Changes: []cache.Change{{Name: name, Resource: newTestResource(endpointType, name, fmt.Sprint(content), fmt.Sprint("content", content))}}})
					synctest.Wait()
					if other.messages != content+1 {
						t.Fatalf("the other authority's client was sent %d messages, want %d", other.messages, content+1)
					}
				}
				if n := own[0].messages; n != before {
					t.Errorf("a client was sent %d messages of an update that is not stored yet", n-before)
				}
				release()
				synctest.Wait()
				for i, g := range own {
					if g.messages != before+1 {
						t.Errorf("client %d was sent %d messages of the update, want 1", i, g.messages-before)
					}
				}
			})
		})
	}
}

// longSession takes until then to find out what is new.
type longSession struct {
	typeSession
	over chan struct{}
}

func (l *longSession) Additions(may session.RemovalRule) *session.Response {
	<-l.over
	return l.typeSession.Additions(may)
}

// A stream whose response takes long to put together lends its sender's place, too, so that others are served. At most
// as many of these work at once as there are senders.
func TestALongResponseHoldsUpNoSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, clients = 1, 10
		c, streams, _ := paced(t, limit, clients, 0)
		long := []*longSession{{over: make(chan struct{})}, {over: make(chan struct{})}}
		for i, l := range long {
			l.typeSession = c.streams[i].sessions[0]
			c.streams[i].sessions[0] = l
		}
		c.changes(1)
		time.Sleep(10 * lendAfter)
		// One of the two has lent its place, the other not: there would be no end.
		if _, n := c.atWork(); n != limit {
			t.Errorf("%d senders that are held up have lent their places, want %d", n, limit)
		}
		close(long[0].over)
		time.Sleep(10 * lendAfter)
		for i, s := range streams[2:] {
			if n := s.messages.Load(); n != 1 {
				t.Errorf("client %d was sent %d messages, want 1", i+2, n)
			}
		}
		close(long[1].over)
		time.Sleep(10 * lendAfter)
		for i, s := range streams[:2] {
			if n := s.messages.Load(); n != 1 {
				t.Errorf("client %d was sent %d messages after all, want 1", i, n)
			}
		}
		if active, composing := c.atWork(); active != 0 || composing != 0 {
			t.Errorf("%d senders are left, and %d that have lent their places", active, composing)
		}
	})
}

// atWork is how many senders there are, and of them how many have lent their places to find
// out what is new.
func (c *crowd) atWork() (active, composing int) {
	q := c.server.senders
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.working), q.composing
}
