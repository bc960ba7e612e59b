package upstream

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

func TestTheFirstRequestOfATypeWaitsForClientRequestsThatHaveBegun(t *testing.T) {
	requests := new(cache.Requests)
	run(t, Options{Protocol: Delta, ClientRequests: requests}, func(b *bench) {
		b.watch("rds", "r") // of a request that has ended
		st := b.next()
		st.delta(t)

		request := requests.Begin()
		b.watch("eds", "a")
		synctest.Wait()
		later := requests.Begin() // is not waited for
		b.watch("eds", "b")
		requests.End(request)
		since := time.Now()
		if got := st.delta(t).GetResourceNamesSubscribe(); !slices.Equal(got, []string{"a", "b"}) || time.Since(since) > 0 {
			t.Errorf("the first request is of %v after %v, want a and b at once", got, time.Since(since))
		}
		b.watch("eds", "c") // no first request waits any more
		if got := st.delta(t).GetResourceNamesSubscribe(); !slices.Equal(got, []string{"c"}) {
			t.Errorf("the second request is of %v, want c", got)
		}
		requests.End(later)
	})
}

func TestTheFirstRequestOfATypeWaitsNoLongerThanAMoment(t *testing.T) {
	requests := new(cache.Requests)
	requests.Begin()
	run(t, Options{Protocol: Delta, ClientRequests: requests}, func(b *bench) {
		since := time.Now()
		b.watch("eds", "a")
		st := b.next()
		synctest.Wait()
		st.delta(t)
		if waited := time.Since(since); waited != gatherWait {
			t.Errorf("the first request was sent after %v, want %v", waited, gatherWait)
		}
	})
}
