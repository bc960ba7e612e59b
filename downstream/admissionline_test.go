package downstream

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"pgregory.net/rapid"
)

// busyProcessors is the wait of goroutines in a process that has no idle processors.
func busyProcessors() time.Duration { return time.Hour }

// adaptive returns a line without a rate, with that measure.
func adaptive(waits func() time.Duration) *admission {
	q := newAdmission(Admission{Wait: 10 * time.Second})
	q.line.window.waits = waits
	return q
}

func (q *admission) places() (working, most int) {
	l := &q.line
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turns.working(), l.window.places()
}

// Without a rate, streams are admitted as fast as others are served, and no one is refused, however long that takes.
func TestStreamsAreAdmittedAsOthersAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, rounds = 40 * time.Millisecond, 500
		q, stats := adaptive(busyProcessors), new(admissionStats)
		_, most := q.places()
		began := time.Now()
		var works, peak atomic.Int64
		var all sync.WaitGroup
		for range most * rounds {
			all.Go(func() {
				at, e := q.placed(t.Context(), from("192.0.2.1"), stats)
				if e != nil {
					t.Error(e)
					return
				}
				if n := works.Add(1); n > peak.Load() {
					peak.Store(n)
				}
				time.Sleep(takes)
				works.Add(-1)
				at.done()
			})
		}
		all.Wait()
		if want := takes * rounds; time.Since(began) != want {
			t.Errorf("all were served after %v, want %v", time.Since(began), want)
		}
		if peak.Load() != int64(most) {
			t.Errorf("%d had work at a time, want %d", peak.Load(), most)
		}
		time.Sleep(time.Second)
		if is := stats.read(); is.Waiting != 0 || is.Waited != uint64(most*(rounds-1)) || !q.isEmpty() {
			t.Errorf("afterwards: %+v", is)
		}
	})
}

// An identity that keeps all of its places does not keep others waiting: they get the places that it loses, before it
// gets one again.
func TestPlacesThatAreKeptAreNotThoseOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kept, good = 20_000, 500
		q, stats := adaptive(busyProcessors), new(admissionStats)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for i := range kept {
			go func() {
				if at, e := q.placed(ctx, proven(fmt.Sprint("bad-", i%3), nil), stats); e == nil {
					<-ctx.Done()
					at.done()
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		var all sync.WaitGroup
		for range good {
			all.Go(func() {
				at, e := q.placed(ctx, proven("good", nil), stats)
				if e != nil {
					t.Error(e)
					return
				}
				time.Sleep(time.Millisecond)
				at.done()
			})
		}
		all.Wait()
		// The bad ones have places at first, and later their part of them.
		_, most := q.places()
		if limit := placeTime + time.Duration(good/(most/4))*time.Millisecond + windowTime; time.Since(began) > limit {
			t.Errorf("the streams of another identity are served after %v, want at most %v", time.Since(began), limit)
		}
		if n := stats.read().Waiting; n < kept/2 {
			t.Errorf("only %d of the %d streams that keep their places are in line", n, kept)
		}
		cancel()
		synctest.Wait()
		time.Sleep(time.Second)
		if !q.isEmpty() {
			t.Error("the line is not empty")
		}
	})
}

// If processors are idle, because the streams that were admitted wait for others, more are admitted. If not, fewer.
func TestTheWindowFollowsTheProcessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const herd = 50_000
		var wait atomic.Int64
		q, stats := adaptive(func() time.Duration { return time.Duration(wait.Load()) }), new(admissionStats)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range herd {
			go func() {
				if at, e := q.placed(ctx, from("192.0.2.1"), stats); e == nil {
					<-ctx.Done()
					at.done()
				}
			}()
		}
		_, least := q.places()
		time.Sleep(500 * time.Millisecond)
		if _, most := q.places(); most < 8*least || most > windowMost*runtime.GOMAXPROCS(0) {
			t.Errorf("there are %d places after half a second, and %d at first", most, least)
		}
		wait.Store(int64(time.Second))
		time.Sleep(time.Second)
		if _, most := q.places(); most != least {
			t.Errorf("there are %d places while the processors are busy, want %d", most, least)
		}
		cancel()
		synctest.Wait()
		time.Sleep(time.Second)
		if _, most := q.places(); !q.isEmpty() || q.line.window.size != 0 || most != least {
			t.Errorf("afterwards there are %d places, want %d", most, least)
		}
	})
}

// Whatever clients do with their places, and however busy the processors are, each stream that stays in line is
// admitted.
func TestNoStreamWaitsForEver(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type visit struct {
			at, takes, stays time.Duration
			party            party
		}
		conns := []*limitedConn{new(limitedConn), new(limitedConn), new(limitedConn)}
		visits := make([]visit, rapid.IntRange(1, 1500).Draw(rt, "streams"))
		rnd := rapid.Uint64().Draw(rt, "seed")
		draw := func(n uint64) uint64 { // fast
			rnd = rnd*6364136223846793005 + 1442695040888963407
			return (rnd >> 33) % n
		}
		keepers := draw(10)
		for i := range visits {
			v := visit{at: time.Duration(draw(100)) * time.Millisecond, takes: time.Duration(draw(30)) * time.Millisecond, stays: time.Hour}
			if draw(10) < keepers {
				v.takes = time.Hour // never gives its place back
			}
			if draw(10) == 0 {
				v.stays = time.Duration(draw(100)) * time.Millisecond
			}
			if n := draw(6); n < 4 {
				v.party.identity.proven = fmt.Sprint("id-", n)
			}
			v.party.conn = conns[draw(3)]
			visits[i] = v
		}
		rate := int(draw(3)) * 500
		synctest.Test(t, func(t *testing.T) {
			q, stats := newAdmission(Admission{StreamsPerSecond: rate, Burst: 1, Wait: time.Hour}), new(admissionStats)
			var ticks atomic.Uint64
			q.line.window.waits = func() time.Duration { return time.Duration(ticks.Add(1)%3) * windowWait }
			ctx, cancel := context.WithCancel(t.Context())
			var missing atomic.Int64
			for _, v := range visits {
				missing.Add(1)
				go func() {
					time.Sleep(v.at)
					ctx, end := context.WithTimeout(ctx, v.stays)
					defer end()
					at, e := q.placed(ctx, func() party { return v.party }, stats)
					missing.Add(-1)
					if e != nil {
						if v.stays == time.Hour {
							t.Errorf("a stream is refused: %v", e)
						}
						return
					}
					_ = sleep(ctx, v.takes)
					at.done()
				}()
			}
			// Of the least window, at least, all places become free in placeTime.
			longest := time.Duration(len(visits)/(windowLeast*runtime.GOMAXPROCS(0))+2)*placeTime + 200*time.Millisecond
			if rate > 0 {
				longest += time.Duration(len(visits)) * time.Second / time.Duration(rate) * 11 / 10
			}
			time.Sleep(longest)
			synctest.Wait()
			if n := missing.Load(); n > 0 {
				t.Errorf("%d of %d streams still wait after %v", n, len(visits), longest)
			}
			cancel()
			synctest.Wait()
			time.Sleep(time.Second)
			if !q.isEmpty() {
				t.Error("the line is not empty")
			}
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// A stream has its place until its first answer is out; until there is none for a while, because that depends on a
// control plane; or until it ends. One that sends no request has it for placeTime, if others wait.
func TestAStreamHasAPlaceUntilItIsAttended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := ListenerOptions{}
		o.Door = NewDoor(o)
		d, q := newDrained(t, o), o.Door.newest.Load().admission
		check := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if n, _ := q.places(); n != want {
				t.Errorf("%s: %d streams have places, want %d", what, n, want)
			}
		}
		silent := openDelta(t, d.dial())
		check("a stream without a request", 1)
		answered := openDelta(t, d.dial())
		if err := answered.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"xdstp://unknown/" + clusterType[len("type.googleapis.com/"):] + "/a"}}); err != nil {
			t.Fatal(err)
		}
		if r, err := answered.Recv(); err != nil {
			t.Errorf("no answer: %v, %v", r, err)
		}
		check("a stream with its answer", 1)
		waits := openDelta(t, d.dial())
		if err := waits.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"unknown so far"}}); err != nil {
			t.Fatal(err)
		}
		check("a stream that waits for the control plane", 1)
		if err := silent.CloseSend(); err != nil {
			t.Fatal(err)
		}
		check("the end of the stream without a request", 0)
	})
}

// The measure of the processors sees that goroutines wait.
func TestGoroutineWaits(t *testing.T) {
	var waits goroutineWaits
	waits.take()
	var all sync.WaitGroup
	until := time.Now().Add(50 * time.Millisecond)
	for range 64 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for time.Now().Before(until) {
				runtime.Gosched()
				for range 10_000 {
					_ = until
				}
			}
		})
	}
	all.Wait()
	if wait := waits.take(); wait <= 0 {
		t.Errorf("goroutines waited for %v", wait)
	}
	if wait := waits.take(); wait > time.Second {
		t.Errorf("then they waited for %v", wait)
	}
}
