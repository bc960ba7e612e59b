package upstream

import (
	"fmt"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// A client that requests the wildcard of a type after a name needs a new stream
// of the scope, which other clients share.

func TestFirstWildcardAfterANameIsNotDelayed(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.watch("cds", "a")
		b.next().delta(t)
		pass(time.Second)
		began := time.Now()
		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next().delta(t)
		if took := time.Since(began); took > 0 {
			t.Errorf("the wildcard was asked for after %s, want at once", took)
		}
	})
}

func TestWildcardsOfMadeUpTypesRenewTheStreamAtGrowingDistances(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.watch("eds", "served")
		b.next().delta(t)
		b.cache.WatchSet(key("eds", cache.Wildcard), &setWatcher{})
		b.next()
		b.next() // of the names
		pass(time.Minute)
		renewals := []time.Time{}
		stop := time.Now().Add(time.Minute)
		for i := 0; time.Now().Before(stop); i++ {
			k := cache.Key{Scope: testScope, TypeURL: fmt.Sprintf("type.googleapis.com/made.Up%d", i), Name: "a"}
			b.cache.Watch(k, &watcher{})
			pass(100 * time.Millisecond)
			k.Name = cache.Wildcard
			b.cache.WatchSet(k, &setWatcher{})
			pass(100 * time.Millisecond)
			select {
			case <-b.script.streams:
				renewals = append(renewals, time.Now())
			default:
			}
		}
		// At 0, 2, 6, 14, 30, and then every 30 s.
		for i := 1; i < len(renewals); i++ {
			if d := renewals[i].Sub(renewals[i-1]); d < min(2*time.Second<<(i-1), defaultBackoffMax)-200*time.Millisecond {
				t.Errorf("renewal %d came %s after the one before", i, d)
			}
		}
		if n := len(renewals); n != 5 && n != 6 {
			t.Errorf("the stream was renewed %d times in a minute, want 5 or 6: it is bounded, and nobody waits for ever", n)
		}
	})
}

// While a wildcard waits for the next stream all else goes on, on the present one.
func TestServedResourcesGoOnWhileAWildcardWaits(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		t.Run(string(form), func(t *testing.T) {
			run(t, Options{Protocol: form}, func(b *bench) {
				respond := func(st *scripted, typ, nonce string, names ...string) {
					t.Helper()
					if form == Delta {
						b.respond(st, deltaResponse(t, typ, nonce, names...))
					} else {
						b.respond(st, sotwResponse(t, typ, nonce, names...))
					}
				}
				// askedByName has a type asked for by a name, which is given up.
				askedByName := func(st *scripted, typ string) {
					t.Helper()
					b.stream.Start(key(typ, "x"))
					st.request(t)
					b.stream.Stop(key(typ, "x"))
					st.request(t)
				}
				b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
				st := b.next()
				st.request(t)
				askedByName(st, "eds")
				b.cache.WatchSet(key("eds", cache.Wildcard), &setWatcher{})
				st = b.next()
				st.request(t)
				st.request(t)
				askedByName(st, "rds")
				b.cache.WatchSet(key("rds", cache.Wildcard), &setWatcher{}) // which has to wait
				pass(time.Second)

				respond(st, "cds", "7", "x")
				var nonce string
				switch ack := st.request(t).(type) {
				case *discoveryv3.DeltaDiscoveryRequest:
					nonce = ack.GetResponseNonce()
				case *discoveryv3.DiscoveryRequest:
					nonce = ack.GetResponseNonce()
				}
				if nonce != "7" {
					t.Errorf("the response was answered with the nonce %q, want 7", nonce)
				}
				respond(st, "rds", "8", "x") // for names that are not on the stream any more
				select {
				case <-st.stopped:
					t.Error("the stream was ended meanwhile")
				default:
				}
				st = b.next()
				for _, typ := range []string{"cds", "eds", "rds"} {
					got := st.request(t).(interface{ GetTypeUrl() string }).GetTypeUrl()
					if got != typeURLs[typ] {
						t.Errorf("the next stream begins with %s, want %s", got, typeURLs[typ])
					}
				}
				if b.logs.count("type was not requested") > 0 {
					t.Error("what comes for names that have moved is logged")
				}
			})
		})
	}
}

func TestPaceStartsAgainAfterAQuietTime(t *testing.T) {
	p := pace{base: 2 * time.Second, limit: 10 * time.Second}
	now := t0
	for i, tt := range []struct{ after, want time.Duration }{ // since the one before, and until the next
		{0, 2 * time.Second},
		{2 * time.Second, 4 * time.Second},
		{4 * time.Second, 8 * time.Second},
		{9 * time.Second, 10 * time.Second},
		{10 * time.Second, 10 * time.Second},
		{20 * time.Second, 2 * time.Second},
		{3 * time.Second, 4 * time.Second},
	} {
		now = now.Add(tt.after)
		if wait := p.wait(now); wait > 0 {
			t.Errorf("%d: there is a wait of %s", i, wait)
		}
		p.took(now)
		if wait := p.wait(now); wait != tt.want {
			t.Errorf("%d: the next has to wait for %s, want %s", i, wait, tt.want)
		}
	}
}
