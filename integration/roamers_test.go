package integration

// Clients that reconnect when their stream ends, as Envoy does, and a balancer that sends them to any of
// several relays.

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// roamers are clients that request the same names, each on its own connection.
type roamers struct {
	watched[travels]
	began time.Time
	stop  func()
}

// travels has the observations of all roamers.
type travels struct {
	working  int             // number of clients whose stream has had a response
	firsts   []time.Duration // from the start until each client's first response
	ends     []time.Time     // the ends of working streams
	gaps     []time.Duration // between the end of a working stream and the next response, without the client's own backoff
	failures []error         // the errors of streams that ended without a response
	longest  time.Duration   // the longest time without a response on one stream
}

// String describes the travels, for a failed test.
func (v *travels) String() string {
	return fmt.Sprintf("%d clients with a working stream, %d ends, %d failures: %v", v.working, len(v.ends), len(v.failures), v.failures[:min(5, len(v.failures))])
}

// Before Envoy opens a stream again, it waits for a random part of a time. The time doubles with each attempt
// up to a maximum, and starts again after a response.
const (
	firstBackoff = 500 * time.Millisecond
	mostBackoff  = 30 * time.Second
)

// startRoamers starts clients at once, half of them in each form.
func startRoamers(t testing.TB, address string, clients int, typeURL string, names ...string) *roamers {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	r := &roamers{began: time.Now(), stop: func() { cancel(); running.Wait() }}
	t.Cleanup(r.stop)
	for i := range clients {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
			grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10), grpc.WithDisableServiceConfig(),
			// The connection's backoff is short, so that only the roamer's own backoff matters.
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: patience, Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}}))
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			defer conn.Close()
			r.roam(ctx, discoveryv3.NewAggregatedDiscoveryServiceClient(conn), []form{delta, sotw}[i%2], fmt.Sprint("roamer-", i), typeURL, names)
		})
	}
	return r
}

func (r *roamers) roam(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, f form, id, typeURL string, names []string) {
	attempts := 0
	var lost time.Time // the end of the backoff after the last working stream
	for ctx.Err() == nil {
		began, responded := time.Now(), false
		err := r.stream(ctx, ads, f, id, typeURL, names, func() {
			responded = true
			now := time.Now()
			r.update(func(v *travels) {
				v.working++
				v.longest = max(v.longest, now.Sub(began))
				if lost.IsZero() {
					v.firsts = append(v.firsts, now.Sub(r.began))
				} else {
					v.gaps = append(v.gaps, now.Sub(lost))
				}
			})
		})
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		r.update(func(v *travels) {
			if responded {
				v.working--
				v.ends = append(v.ends, now)
			} else {
				v.longest = max(v.longest, now.Sub(began))
				v.failures = append(v.failures, err)
			}
		})
		attempts++
		if responded {
			attempts = 0
		}
		select {
		case <-time.After(rand.N(min(firstBackoff<<min(attempts, 10), mostBackoff))):
		case <-ctx.Done():
		}
		if responded {
			lost = time.Now()
		}
	}
}

// stream opens a stream, and reads it until it ends. It calls works at the first response.
func (r *roamers) stream(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, f form, id, typeURL string, names []string, works func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	open := openDelta
	if f == sotw {
		open = openSotW
	}
	s, err := open(ctx, ads, node(id, ""))
	if err != nil {
		return err
	}
	_ = s.subscribe(typeURL, names, nil) // receive returns the error
	for first := true; ; first = false {
		resp, err := s.receive()
		if err != nil {
			return err
		}
		if first {
			works()
		}
		_ = s.ack(&resp)
	}
}

// awaitWorking waits until all clients have a working stream.
func (r *roamers) awaitWorking(t testing.TB, clients int) {
	t.Helper()
	r.await(t, "all clients have a working stream", func(v *travels) bool { return v.working == clients })
}

// refusals counts the streams that the relay did not admit. Other failures fail the test.
func (v *travels) refusals(t testing.TB) (n int) {
	t.Helper()
	for _, err := range v.failures {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("a stream ended with %v, want UNAVAILABLE", err)
		}
		n++
	}
	return n
}

// quantile returns a quantile of durations: 0 is the shortest, 0.5 the median, 1 the longest.
func quantile(all []time.Duration, part float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(part*float64(len(sorted)-1))].Round(time.Millisecond)
}

// crossroads is a TCP balancer in front of several servers. It takes the servers in turn, and skips those
// that refuse a connection.
type crossroads struct {
	address string
	servers watched[[]string]
	turn    atomic.Int64
}

func startCrossroads(t testing.TB, servers ...string) *crossroads {
	t.Helper()
	b := &crossroads{}
	b.servers.value = servers
	b.address = acceptEach(t, b.carry)
	return b
}

// replace replaces a server with another one for new connections.
func (b *crossroads) replace(old, server string) {
	b.servers.update(func(all *[]string) { (*all)[slices.Index(*all, old)] = server })
}

func (b *crossroads) carry(front net.Conn) {
	defer front.Close()
	var servers []string
	b.servers.read(func(all *[]string) { servers = slices.Clone(*all) })
	turn := int(b.turn.Add(1))
	for i := range servers {
		back, err := net.Dial("tcp", servers[(turn+i)%len(servers)])
		if err != nil {
			continue
		}
		var both sync.WaitGroup
		both.Go(func() { pass(front, back); _ = front.Close() })
		both.Go(func() { pass(back, front); _ = back.Close() })
		both.Wait()
		return
	}
}

// pass copies data until from ends. io.Copy alone would splice through pipes, which need four more file
// descriptors for each connection.
func pass(to io.Writer, from io.Reader) {
	// After an error, the caller closes the connection.
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 4<<10))
}
