package downstream

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// from returns the party of a stream from an address whose client has proven nothing.
func from(address string) func() party {
	p := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address), Port: 1}})
	return func() party { return party{identity: identityKeyOf(p, nil)} }
}

// proven returns the party of a stream whose client has proven an identity.
func proven(id string, conn *limitedConn) func() party {
	return func() party { return party{identityKey{proven: id}, conn} }
}

// isEmpty reports whether nothing is left of those who were in line.
func (q *admission) isEmpty() bool {
	l := &q.line
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turns.waiting() == 0 && l.turns.working() == 0 && l.oldest == nil && l.newest == nil && len(l.turns.members) == 0 && l.turns.all.below.Len() == 0
}

// placed admits a stream, and returns its place.
func (q *admission) placed(ctx context.Context, of func() party, stats *admissionStats) (*place, *refusedStream) {
	at := new(place)
	if e := q.admit(ctx, at, of, stats); e != nil {
		return nil, e
	}
	return at, nil
}

// served admits a stream, and gives its place back at once.
func (q *admission) served(ctx context.Context, of func() party, stats *admissionStats) *refusedStream {
	at, e := q.placed(ctx, of, stats)
	if at != nil {
		at.done()
	}
	return e
}

// Up to burst streams are admitted at once. The others wait for their turn, in the order of their arrival.
func TestAHerdIsAdmittedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, burst, herd = 10, 20, 50
		q, stats := newAdmission(Admission{StreamsPerSecond: perSecond, Burst: burst, Wait: time.Minute}), new(admissionStats)
		began := time.Now()
		var mu sync.Mutex
		var order []int
		var last time.Duration
		for i := range herd {
			go func() {
				if e := q.served(t.Context(), from("192.0.2.1"), stats); e != nil {
					t.Error(e)
				}
				mu.Lock()
				defer mu.Unlock()
				order, last = append(order, i), time.Since(began)
			}()
			synctest.Wait()
		}
		mu.Lock()
		if len(order) != burst || stats.read().Waiting != herd-burst {
			t.Errorf("%d are admitted at once and %d wait, want %d and %d", len(order), stats.read().Waiting, burst, herd-burst)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.IsSorted(order) || len(order) != herd {
			t.Errorf("admitted in the order %v", order)
		}
		if want := (herd - burst) * time.Second / perSecond; last < want || last > want+50*time.Millisecond {
			t.Errorf("the last one is admitted after %v, want %v", last, want)
		}
		if is := stats.read(); is.Waiting != 0 || is.Waited != herd-burst || !q.isEmpty() {
			t.Errorf("afterwards: %+v", is)
		}
	})
}

// An address with very many streams does not delay the stream of another address.
func TestTheLineIsFairAmongAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, many = 10, 1000
		q, stats := newAdmission(Admission{StreamsPerSecond: perSecond, Burst: 1, Wait: 5 * time.Second}), new(admissionStats)
		var refused atomic.Int64
		for range many {
			go func() {
				if e := q.served(t.Context(), from("192.0.2.1"), stats); e != nil {
					refused.Add(1)
				}
			}()
		}
		// Of IPv6 one client has all of a /64.
		for i := range many {
			go func() {
				if e := q.served(t.Context(), from(fmt.Sprintf("2001:db8::%x", i+1)), stats); e != nil {
					refused.Add(1)
				}
			}()
		}
		synctest.Wait()
		for range 3 {
			began := time.Now()
			if e := q.served(t.Context(), from("192.0.2.2"), stats); e != nil {
				t.Fatal(e)
			}
			if took, want := time.Since(began), 3*time.Second/perSecond+50*time.Millisecond; took > want {
				t.Errorf("a stream of another address waits for %v, want %v", took, want)
			}
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := refused.Load(); n < 2*many-5*perSecond-2 || n > 2*many-4*perSecond {
			t.Errorf("%d of %d are refused", n, 2*many)
		}
		if !q.isEmpty() {
			t.Error("the line is not empty")
		}
	})
}

// hog opens many streams of a party at a steady rate until the returned function is called, and counts those that are
// admitted and refused.
type hog struct{ admitted, refused atomic.Int64 }

func (h *hog) opens(t *testing.T, q *admission, stats *admissionStats, perSecond int, of func(i int) func() party) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		pace := time.NewTicker(time.Second / time.Duration(perSecond))
		defer pace.Stop()
		for i := 0; ; i++ {
			select {
			case <-pace.C:
			case <-ctx.Done():
				return
			}
			go func() {
				switch e := q.served(ctx, of(i), stats); {
				case e == nil:
					h.admitted.Add(1)
				case ctx.Err() == nil:
					h.refused.Add(1)
				}
			}()
		}
	}()
	return cancel
}

// While an identity opens many more streams than are admitted, on many connections, a stream of another identity waits
// for as many turns as there are identities. So does one whose client has proven nothing while an identity, or very many
// addresses, are in line; and one on a connection of its own while another connection of its identity is.
func TestALineHasTurns(t *testing.T) {
	const perSecond, wait = 500, 10 * time.Second
	hogConns := make([]*limitedConn, 20)
	for i := range hogConns {
		hogConns[i] = new(limitedConn)
	}
	for _, test := range []struct {
		name string
		hog  func(i int) func() party
		// others are the streams that come besides, one after another.
		others func(i int) func() party
		most   time.Duration // that each waits
	}{
		{"identities behind one address", func(i int) func() party { return proven("hog", hogConns[i%20]) }, func(i int) func() party { return proven(fmt.Sprint(i), nil) }, 10 * time.Millisecond},
		{"an identity and an address", func(i int) func() party { return proven("hog", hogConns[i%20]) }, func(int) func() party { return from("192.0.2.1") }, 10 * time.Millisecond},
		{"addresses that are made up, and an identity", func(i int) func() party { return from(fmt.Sprintf("2001:db8:0:%x::1", i%65536)) }, func(i int) func() party { return proven(fmt.Sprint(i), nil) }, 10 * time.Millisecond},
		{"connections of one identity", func(int) func() party { return proven("fleet", hogConns[0]) }, func(int) func() party { return proven("fleet", new(limitedConn)) }, 10 * time.Millisecond},
		{"one of many connections of an identity", func(i int) func() party { return proven("fleet", hogConns[i%20]) }, func(int) func() party { return proven("fleet", new(limitedConn)) }, 60 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, stats := newAdmission(Admission{StreamsPerSecond: perSecond, Burst: 1, Wait: wait}), new(admissionStats)
				var h hog
				stop := h.opens(t, q, stats, 1700, test.hog)
				const attacked = 20
				for second := range attacked {
					time.Sleep(time.Second)
					began := time.Now()
					if e := q.served(t.Context(), test.others(second), stats); e != nil {
						t.Fatalf("after %ds: %v", second, e)
					}
					if took := time.Since(began); took > test.most {
						t.Errorf("after %ds, a stream waits for %v, want at most %v", second, took, test.most)
					}
				}
				// The hog has no more streams in line than are admitted while they may wait.
				if n, most := stats.read().Waiting, int(wait.Seconds()*perSecond)+attacked; n > most {
					t.Errorf("%d streams are in line, want at most %d", n, most)
				}
				if n, least := h.admitted.Load(), int64((attacked-1)*perSecond); n < least {
					t.Errorf("%d streams of the hog are admitted, want at least %d: nobody else needs the room", n, least)
				}
				stop()
				synctest.Wait()
				if !q.isEmpty() {
					t.Error("the line is not empty")
				}
			})
		})
	}
}

// A stream that would have to wait for too long is refused at once, and gets a time to retry. So does a new stream when
// there is no memory. The time differs from stream to stream.
func TestRefusedStreamsGetATimeToRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait, herd = 2500 * time.Millisecond, 40
		var full atomic.Bool
		d := newDrained(t, ListenerOptions{Admission: Admission{StreamsPerSecond: 1, Burst: 1, Wait: wait, Full: full.Load}})
		refused := func() (after, retry time.Duration, text string) {
			began := time.Now()
			s := openDelta(t, d.dial())
			_, err := s.Recv()
			st := status.Convert(err)
			if st.Code() != codes.Unavailable || len(st.Details()) != 1 {
				t.Errorf("refused with %v, %v", err, st.Details())
				return 0, 0, ""
			}
			info, _ := st.Details()[0].(*errdetails.RetryInfo)
			ms, _ := strconv.ParseInt(strings.Join(s.Trailer()["grpc-retry-pushback-ms"], ""), 10, 64)
			if retry = info.GetRetryDelay().AsDuration(); retry.Milliseconds() != ms {
				t.Errorf("RetryInfo says %v, the pushback %d ms", retry, ms)
			}
			return time.Since(began), retry, st.Message()
		}
		ended := make(chan departed, herd)
		for range herd {
			d.subscriber(ended)
		}
		synctest.Wait()
		began := time.Now()
		retries := map[time.Duration]bool{}
		for range 37 { // three are admitted: at once, after a second, and after two
			if e := <-ended; status.Code(e.err) != codes.Unavailable || !strings.Contains(e.err.Error(), "but admission.wait is 2.5s") || e.at.Sub(began) > 0 {
				t.Errorf("a stream ends after %v with %v", e.at.Sub(began), e.err)
			}
		}
		time.Sleep(wait)
		synctest.Wait()
		full.Store(true)
		for range 20 {
			after, retry, text := refused()
			if after != 0 || retry < retryMemory/2 || retry > retryMemory*3/2 || !strings.Contains(text, "no memory") {
				t.Errorf("refused after %v with %q, to come again in %v", after, text, retry)
			}
			retries[retry] = true
		}
		if len(retries) < 10 {
			t.Errorf("they all come again at the same time: %v", retries)
		}
		full.Store(false)
		stats := d.server.Stats().Admission
		if stats.Refused["wait"] != 37 || stats.Refused["memory"] != 20 || stats.Waiting != 0 || d.server.Clients() != 3 {
			t.Errorf("counted %+v, %d clients", stats, d.server.Clients())
		}
	})
}

// A stream is refused when it has waited for too long, because others came that have their turns before it.
func TestAStreamThatHasWaitedForTooLongIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, stats := newAdmission(Admission{StreamsPerSecond: 1, Burst: 1, Wait: 4500 * time.Millisecond}), new(admissionStats)
		var late, admitted atomic.Int64
		began := time.Now()
		open := func(id string) {
			go func() {
				switch e := q.served(t.Context(), proven(id, nil), stats); {
				case e == nil:
					admitted.Add(1)
				case time.Since(began) >= 4500*time.Millisecond && e.refusal == RefusedWait && strings.Contains(e.text, "waited in line for 4.5s (admission.wait)"):
					late.Add(1)
				default:
					t.Errorf("after %v: %v", time.Since(began), e)
				}
			}()
			synctest.Wait()
		}
		for range 5 { // one is admitted at once, and the last one after four seconds
			open("a")
		}
		open("b")
		open("c")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if late.Load() != 2 || admitted.Load() != 5 || !q.isEmpty() {
			t.Errorf("%d are late and %d are admitted", late.Load(), admitted.Load())
		}
	})
}

// A stream in line ends with its client, or when the client is sent away, and leaves no place behind.
func TestAStreamInLineEndsWithItsClientAndInADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrained(t, ListenerOptions{Admission: Admission{StreamsPerSecond: 1, Burst: 1, Wait: time.Hour}})
		ended := make(chan departed, 4)
		for range 2 {
			d.subscriber(ended)
			synctest.Wait() // the first one comes in
		}
		gone := d.subscriber(ended)
		synctest.Wait()
		if is := d.server.Stats().Admission; is.Waiting != 2 {
			t.Errorf("%d wait, want 2", is.Waiting)
		}
		_ = gone.Close()
		<-ended
		synctest.Wait()
		if is := d.server.Stats().Admission; is.Waiting != 1 {
			t.Errorf("%d wait, want 1", is.Waiting)
		}
		d.listener.Drain(t.Context(), 0)
		for range 2 {
			if e := <-ended; status.Code(e.err) != codes.Unavailable || !strings.Contains(e.err.Error(), "drains") {
				t.Errorf("a stream ends with %v", e.err)
			}
		}
		if is := d.server.Stats().Admission; is.Waiting != 0 || is.Refused["wait"] != 0 {
			t.Errorf("counted %+v", is)
		}
	})
}

// Streams that come no faster than they may do not wait.
func TestStreamsThatComeSlowlyDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrained(t, ListenerOptions{Admission: Admission{StreamsPerSecond: 10, Burst: 1, Wait: time.Second}})
		for range 20 {
			s := openDelta(t, d.dial())
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if is := d.server.Stats().Admission; is.Waited != 0 || d.server.Clients() != 20 {
			t.Errorf("counted %+v, %d clients", is, d.server.Clients())
		}
	})
}
