package relay

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// rejectingClients stands for the clients of all scopes.
type rejectingClients struct {
	began time.Time
	mu    sync.Mutex
	now   downstream.Rejecters
	count int      // how often they were counted
	told  []string // what was passed on, with the time
}

func (c *rejectingClients) are(r downstream.Rejecters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = r
}

func (c *rejectingClients) counted(of map[downstream.ScopeType]*downstream.Rejecters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	for _, r := range of {
		*r = c.now
	}
}

func (c *rejectingClients) counts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func (c *rejectingClients) pass(of downstream.ScopeType, r session.Rejection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, fmt.Sprintf("%s %s: %s", time.Since(c.began), of.TypeURL, r.Words))
}

// want compares what was passed on since the last call.
func (c *rejectingClients) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.told, want) {
		t.Errorf("passed on: %q\nwant %q", c.told, want)
	}
	c.told, c.began = nil, time.Now()
}

func withRejections(t *testing.T, test func(t *testing.T, r *rejections, c *rejectingClients)) {
	synctest.Test(t, func(t *testing.T) {
		c := &rejectingClients{began: time.Now()}
		r := newRejections(c.counted, c.pass)
		defer r.close()
		test(t, r, c)
	})
}

var cds = downstream.ScopeType{Scope: cache.Scope{Authority: "a"}, TypeURL: "cds"}

func TestAClientAloneIsHeardAtOnceInItsOwnWords(t *testing.T) {
	withRejections(t, func(t *testing.T, r *rejections, c *rejectingClients) {
		c.are(downstream.Rejecters{Clients: 1, Rejecting: 1, Names: []string{"envoy"}, Reason: "bad"})
		r.add(cds, nil)
		c.want(t, "0s cds: bad")
		r.add(cds, nil) // the next response
		time.Sleep(999 * time.Millisecond)
		c.want(t)
		time.Sleep(time.Millisecond)
		c.want(t, "1ms cds: bad")
		time.Sleep(time.Hour)
		c.are(downstream.Rejecters{Clients: 1, Rejecting: 1})
		c.want(t)
		r.add(cds, nil)
		c.want(t, "0s cds: the client gives no reason")
	})
}

func TestRejectionsOfSeveralClientsAreMerged(t *testing.T) {
	withRejections(t, func(t *testing.T, r *rejections, c *rejectingClients) {
		c.are(downstream.Rejecters{Clients: 120, Rejecting: 1, Names: []string{"a"}, Reason: "bad"})
		r.add(cds, nil)
		time.Sleep(100 * time.Millisecond)
		c.want(t)
		c.are(downstream.Rejecters{Clients: 120, Rejecting: 4, Names: []string{"a", "b", "c"}, Reason: "bad"})
		r.add(cds, nil)
		time.Sleep(100 * time.Millisecond)
		c.want(t, "100ms cds: 4 of 120 clients reject it (a, b, c, ...): bad")
		c.are(downstream.Rejecters{Clients: 2, Rejecting: 2, Names: []string{"a", "b"}, Reason: "bad"})
		time.Sleep(time.Minute)
		c.want(t)
		r.add(cds, nil) // there is nobody to wait for
		c.want(t, "0s cds: 2 of 2 clients reject it (a, b): bad")
	})
}

func TestARejectionWaitsForTheAnswerToWhatIsNewer(t *testing.T) {
	withRejections(t, func(t *testing.T, r *rejections, c *rejectingClients) {
		c.are(downstream.Rejecters{Clients: 1, Undecided: true})
		r.add(cds, nil)
		time.Sleep(900 * time.Millisecond)
		c.want(t)
		c.are(downstream.Rejecters{Clients: 1, Rejecting: 1, Reason: "bad"})
		time.Sleep(100 * time.Millisecond)
		c.want(t, "100ms cds: bad")

		c.are(downstream.Rejecters{Clients: 1}) // it has accepted what is newer
		r.add(cds, nil)
		time.Sleep(time.Minute)
		c.want(t)

		c.are(downstream.Rejecters{Clients: 1, Undecided: true}) // it never answers
		r.add(cds, nil)
		time.Sleep(time.Minute)
		before := c.counts()
		time.Sleep(time.Hour)
		c.want(t)
		if n := c.counts() - before; n != 0 {
			t.Errorf("clients were counted %d times more for one that never answers", n)
		}
	})
}

// A client that rejects again and again does not keep the control plane busy.
func TestAControlPlaneIsNotKeptBusyByRejections(t *testing.T) {
	withRejections(t, func(t *testing.T, r *rejections, c *rejectingClients) {
		c.are(downstream.Rejecters{Clients: 500, Rejecting: 1, Names: []string{"a"}, Reason: "made up"})
		for range 100 * 60 * 60 {
			r.add(cds, nil)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.told); n < 50 || n > 70 {
			t.Errorf("it was sent %d NACKs within an hour, want about one a minute: %q", n, c.told)
		}
	})
}

func TestAClientThatPollsIsHeard(t *testing.T) {
	withRejections(t, func(t *testing.T, r *rejections, c *rejectingClients) {
		r.add(cds, &downstream.Rejecters{Clients: 1, Rejecting: 1, Names: []string{"poller"}, Reason: "bad"})
		c.want(t, "0s cds: bad")
	})
}

// A control plane that was connected to anew has not heard what clients still reject.
func TestAControlPlaneHearsAgainWhatClientsStillReject(t *testing.T) {
	withRejections(t, func(t *testing.T, r *rejections, c *rejectingClients) {
		c.are(downstream.Rejecters{Clients: 1, Rejecting: 1, Reason: "bad"})
		r.again(cds)
		time.Sleep(999 * time.Millisecond)
		c.want(t)
		time.Sleep(time.Millisecond)
		c.want(t, "1ms cds: bad")

		c.are(downstream.Rejecters{Clients: 1, Rejecting: 1, Reason: "worse"})
		time.Sleep(time.Minute)
		c.want(t)
		r.again(cds)
		r.add(cds, nil) // what comes meanwhile does not wait for that
		c.want(t, "0s cds: worse")

		time.Sleep(time.Minute)
		c.want(t)
		c.are(downstream.Rejecters{Clients: 1}) // by then the client accepts what there is
		r.again(cds)
		time.Sleep(time.Hour)
		c.want(t)
	})
}
