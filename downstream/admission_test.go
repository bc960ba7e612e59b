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

// from is the context of a stream from an address.
func from(t *testing.T, address string) context.Context {
	return peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address), Port: 1}})
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
				if e := q.admit(from(t, "192.0.2.1"), stats); e != nil {
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
		if is := stats.read(); is.Waiting != 0 || is.Waited != herd-burst || len(q.lines) != 0 || q.turns.Len() != 0 {
			t.Errorf("afterwards: %+v, %d lines", is, len(q.lines))
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
				if e := q.admit(from(t, "192.0.2.1"), stats); e != nil {
					refused.Add(1)
				}
			}()
		}
		// Of IPv6 one client has all of a /64.
		for i := range many {
			go func() {
				if e := q.admit(from(t, fmt.Sprintf("2001:db8::%x", i+1)), stats); e != nil {
					refused.Add(1)
				}
			}()
		}
		synctest.Wait()
		for range 3 {
			began := time.Now()
			if e := q.admit(from(t, "192.0.2.2"), stats); e != nil {
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
		if len(q.lines) != 0 || q.waiting != 0 {
			t.Errorf("%d lines with %d streams are left", len(q.lines), q.waiting)
		}
	})
}

// A stream that has waited for too long is refused, and gets a time to retry. So does a new stream when there is no
// memory. The time differs from stream to stream.
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
			if e := <-ended; status.Code(e.err) != codes.Unavailable || e.at.Sub(began) != wait {
				t.Errorf("a stream ends after %v with %v", e.at.Sub(began), e.err)
			}
		}
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
