package upstream

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/costs"
)

// madeUp is a topic of a made-up type.
func madeUp(i int, name string) cache.Key {
	return cache.Key{Scope: testScope, TypeURL: fmt.Sprintf("type.googleapis.com/made.Up%04d", i), Name: name}
}

// madeUpResponse has a resource of such a type, with a TTL.
func madeUpResponse(form Protocol, k cache.Key, ttl time.Duration) proto.Message {
	r := &discoveryv3.Resource{
		Name: "a", Version: "1", Ttl: durationpb.New(ttl),
		Resource: &anypb.Any{TypeUrl: k.TypeURL, Value: appendText(nil, 1, "a")},
	}
	if form == Delta {
		return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: k.TypeURL, Nonce: "n", Resources: []*discoveryv3.Resource{r}}
	}
	wrapped := &anypb.Any{}
	if err := anypb.MarshalFrom(wrapped, r, proto.MarshalOptions{}); err != nil {
		panic(err)
	}
	return &discoveryv3.DiscoveryResponse{TypeUrl: k.TypeURL, Nonce: "n", VersionInfo: "1", Resources: []*anypb.Any{wrapped}}
}

// An event of one type costs no work for the others: its start, answer and
// end, the passing of time, and a refresh. There are no more types
// than a stream may have before it is renewed.
func TestWorkOfEventsOfOneType(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		t.Run(string(form), func(t *testing.T) {
			costs.Linear(t, maxIdleFeeds/2, func(t *testing.T, n int) {
				run(t, Options{Protocol: form}, func(b *bench) {
					b.stream.Start(madeUp(0, "a"))
					st := b.next()
					requests := 1 // of the first type
					go func() {
						for {
							if _, err := st.recv(); err != nil {
								return
							}
							requests++
						}
					}()
					each := func(event func(i int, k cache.Key)) {
						for i := 1; i <= n; i++ {
							event(i, madeUp(i, "a"))
							pass(time.Millisecond)
						}
					}
					each(func(_ int, k cache.Key) { b.stream.Start(k) })
					each(func(i int, k cache.Key) {
						b.respond(st, madeUpResponse(form, k, time.Minute+time.Duration(i)*time.Second))
					})
					pass(2*time.Minute + time.Duration(n)*time.Second) // they lapse one by one
					each(func(_ int, k cache.Key) { b.stream.Refresh(k) })
					each(func(_ int, k cache.Key) { b.stream.Stop(k) })
					if got := b.stream.Status().Subscriptions; got != 1 {
						t.Errorf("%d are subscribed to, want 1", got)
					}
					if requests < 4*n {
						t.Errorf("%d requests for %d types, want at least 4 of each", requests, n)
					}
				})
			})
		})
	}
}

// The same while the control plane cannot be reached.
func TestWorkOfEventsOfOneTypeWithoutAStream(t *testing.T) {
	costs.Linear(t, 200, func(t *testing.T, n int) {
		run(t, Options{Protocol: Delta, BackoffBase: time.Hour, BackoffMax: time.Hour}, func(b *bench) {
			b.refuse(errors.New("refused"))
			b.stream.Start(madeUp(0, "a"))
			synctest.Wait()
			for i := range n {
				b.stream.Start(madeUp(i+1, "a"))
				synctest.Wait()
			}
			for i := range n {
				b.stream.Stop(madeUp(i+1, "a"))
				synctest.Wait()
			}
			if n := len(b.stream.feeds); n != 1 {
				t.Errorf("%d types are remembered, want 1", n)
			}
		})
	})
}

// The same if each type has a wildcard, and a name on the names stream.
func TestWorkOfEventsOfOneTypeWithAWildcard(t *testing.T) {
	costs.Linear(t, maxIdleFeeds/2, func(t *testing.T, n int) {
		run(t, Options{Protocol: Delta}, func(b *bench) {
			events := []cache.Key{}
			for i := range n {
				events = append(events, madeUp(i, cache.Wildcard), madeUp(i, "a"))
			}
			for _, k := range events {
				b.stream.Start(k)
				synctest.Wait()
			}
			for range 2 {
				st := b.next()
				go func() {
					for {
						if _, err := st.recv(); err != nil {
							return
						}
					}
				}()
			}
			pass(time.Minute)
			if got := b.stream.Statuses(); len(got) != 2 || got[0].Subscriptions != n || got[1].Subscriptions != n {
				t.Fatalf("the streams are %+v, want %d subscriptions on each of two", got, n)
			}
			for _, k := range events[2:] {
				b.stream.Stop(k)
				synctest.Wait()
			}
		})
	})
}

// The requests of a burst have a fixed order of types, whichever type came first.
func TestRequestsOfABurstAreInTheOrderOfTheirTypes(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.watch("rds", "r")
		st := b.next()
		st.delta(t)
		for _, typ := range []string{"rds", "lds", "cds", "eds"} {
			b.stream.inbox.Add(note{key: key(typ, "burst")})
		}
		b.stream.inbox.Wake() // now, so that the stream finds all of them at once
		synctest.Wait()
		var got []string
		for range 4 {
			got = append(got, st.delta(t).GetTypeUrl())
		}
		if !slices.IsSorted(got) {
			t.Errorf("asked in the order %q", got)
		}
	})
}

// The agenda's sum over all types is right after any events.
func TestSumsOverAllTypesAreKept(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		check := func(when string) {
			t.Helper()
			synctest.Wait()
			s := b.stream
			s.mu.Lock()
			defer s.mu.Unlock()
			want := tally{}
			for _, f := range s.feeds {
				want.wanted += f.wanted()
				if f.wanted() == 0 {
					want.idle++
				}
				if f.session != nil {
					want.unsent += f.session.Pending()
				}
				if f.stale || f.session != nil && f.topics.NeedStream(f.session.Begun()) {
					want.late++
				}
			}
			if got := s.agenda.sum; got != want {
				t.Errorf("%s: kept are %+v, want %+v", when, got, want)
			}
		}
		check("at first")
		b.stream.Start(key("cds", "a"))
		st := b.next()
		st.delta(t)
		check("with a name")
		b.stream.Start(key("eds", "a"))
		b.stream.Start(key("eds", "b"))
		b.stream.Start(key("rds", "a"))
		check("with more")
		b.respond(st, deltaResponse(t, "cds", "1", "a"))
		check("with an answer")
		b.stream.Stop(key("eds", "b"))
		check("with less")
		b.stream.Start(key("cds", cache.Wildcard))
		check("with a wildcard, for which there is a new stream")
		b.next().delta(t)
		b.stream.Start(key("lds", "l"))
		synctest.Wait()
		b.stream.Start(key("lds", cache.Wildcard))
		check("with a wildcard that waits")
		b.stream.mu.Lock()
		late := b.stream.agenda.sum.late
		b.stream.mu.Unlock()
		if late != 1 {
			t.Error("no wildcard waits")
		}
		pass(time.Minute)
		check("once it was asked for")
		st.end <- errors.New("lost")
		check("without a stream")
		pass(time.Minute)
		check("with the next")
		for _, k := range []cache.Key{
			key("cds", "a"), key("cds", cache.Wildcard), key("lds", "l"), key("lds", cache.Wildcard),
			key("eds", "a"), key("rds", "a"),
		} {
			b.stream.Stop(k)
			check("without " + k.Name)
		}
		pass(time.Minute)
		check("at last")
		if got := b.stream.agenda.sum; got != (tally{}) {
			t.Errorf("kept is %+v, want nothing", got)
		}
	})
}
