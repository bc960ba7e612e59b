package fleet

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// TestTheStateOfAScopeComesFirst: from a member that gets the scope from this relay, otherwise from the next by the scores.
func TestTheStateOfAScopeComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c", "d")
		s := scopeWith(t, "self", "a", "b", "c", "d")
		notGiven := func() {
			from, _ := w.Route(s)
			w.NotGiven(s, from)
		}
		w.comesFrom(t, s, "servers")

		w.TakeOver(s)
		w.comesFrom(t, s, "state of a")
		for _, next := range []string{"state of b", "state of c", "servers"} { // not of all
			before := w.changes.Load()
			notGiven()
			w.comesFrom(t, s, next)
			if w.changes.Load() == before {
				t.Errorf("before %s, Changed was not called", next)
			}
		}

		done := w.Serve(s, "c")
		w.TakeOver(s)
		w.comesFrom(t, s, "state of c")
		notGiven()
		w.comesFrom(t, s, "state of a")
		stranger, _ := w.Route(scopeWith(t, "b", "self"))
		w.NotGiven(s, stranger) // it is not its turn
		w.Given(s, stranger)
		w.comesFrom(t, s, "state of a")
		w.others["a"].server.Stop()
		synctest.Wait()
		w.comesFrom(t, s, "servers") // the owner is there already, so the others are not tried
		done()
		time.Sleep(servesFor)
		synctest.Wait()
		if len(w.scopes) > 0 {
			t.Errorf("%d scopes are remembered", len(w.scopes))
		}
	})
}

// TestTheStateOfAScopeTakesAMoment: it is complete when nothing has come for a while, and its time has a bound.
func TestTheStateOfAScopeTakesAMoment(t *testing.T) {
	const beat = givenAfter - time.Millisecond
	for _, tt := range []struct {
		name  string
		given int // how often something comes, one beat after the other
		cut   int // how many of these are no whole part
		want  time.Duration
	}{
		{"nothing comes", 0, 0, givesWithin},
		{"one response", 1, 0, beat + givenAfter},
		{"some responses", 3, 0, 3*beat + givenAfter},
		{"one part in some responses", 3, 2, 3*beat + givenAfter},
		{"a part that does not end", 2, 2, 2*beat + givesWithin},
		{"it does not end", 1000, 0, givesFor},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "a")
				s := scopeWith(t, "self", "a")
				w.TakeOver(s)
				begun, changes := time.Now(), w.changes.Load()
				from, _ := w.Route(s)
				go func() {
					for i := range tt.given {
						time.Sleep(beat)
						if i < tt.cut {
							w.Giving(s, from)
						} else {
							w.Given(s, from)
						}
					}
				}()
				time.Sleep(tt.want - time.Since(begun) - time.Millisecond)
				synctest.Wait()
				w.comesFrom(t, s, "state of a")
				time.Sleep(time.Millisecond)
				synctest.Wait()
				w.comesFrom(t, s, "servers")
				if w.changes.Load() == changes || len(w.scopes) > 0 {
					t.Errorf("Changed was called %d times; %d scopes are remembered", w.changes.Load()-changes, len(w.scopes))
				}
				time.Sleep(1000 * beat) // the goroutine ends
			})
		})
	}
}

// TestNothingIsTakenOverFromNobody: what another member owns comes from there anyway.
func TestNothingIsTakenOverFromNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		s := scopeWith(t, "a", "self")
		w.TakeOver(s)
		w.comesFrom(t, s, "a")
		w.others["a"].server.Stop()
		synctest.Wait()
		w.TakeOver(s)
		w.comesFrom(t, s, "servers")
		w.TakeOver(cache.Scope{Authority: "cp"})
		if len(w.scopes) > 0 {
			t.Errorf("%d scopes are remembered", len(w.scopes))
		}
	})
}

// TestAStreamForStateThatFailsStaysOpen: who opened it does not take the member for a control plane that fails.
func TestAStreamForStateThatFailsStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		s := scopeWith(t, "a", "self")
		from, _ := w.Route(s)
		var failed atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(ForState(from.Conn, s, func() { t.Error("there is a response") }, func() { failed.Add(1) })).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := stream.Recv()
			ended <- err
		}()
		time.Sleep(time.Minute)
		select {
		case err := <-ended:
			t.Errorf("the stream has ended: %v", err)
		default:
		}
		if failed.Load() != 1 {
			t.Errorf("failed was called %d times, want once", failed.Load())
		}
		cancel()
		if err := <-ended; status.Code(err) != codes.Unimplemented { // what the member has said
			t.Errorf("the stream has ended with %v", err)
		}
		if failed.Load() != 1 {
			t.Errorf("failed was called %d times, want once", failed.Load())
		}
	})
}
