package downstream

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// sentCounter counts the messages that a stream is sent.
type sentCounter struct {
	sinkStream
	sent *atomic.Int64
}

func (s sentCounter) SendMsg(any) error {
	s.sent.Add(1)
	return nil
}

// BenchmarkReconfigure measures what a new configuration costs for each subscription of 2,000 streams with 500 names
// that nobody shares. It also measures how long a change takes that goes to all streams at the same time, and without a
// new configuration ("at rest"). With moves, each name becomes another topic each time.
func BenchmarkReconfigure(b *testing.B) {
	const streams, perStream = 2000, 500
	for _, moves := range []bool{false, true} {
		b.Run(fmt.Sprintf("moves=%v", moves), func(b *testing.B) {
			server, c, names := benchServer(b, perStream)
			var sent atomic.Int64
			for i := range streams {
				st := server.open(sentCounter{sinkStream{context.Background()}, &sent}, nil, deltaForm.name, "")
				own := append([]string{names[0]}, names[1+i%400:]...)
				own = append(own, names[1:1+i%400]...)
				own[1], own[2+i%300] = own[2+i%300], own[1]
				req := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Cluster: ""}, TypeUrl: endpointType, ResourceNamesSubscribe: own}
				if answer, err := take(st, deltaForm, encoded(req)); err != nil || answer && st.inbox.wake() {
					st.Wake()
				}
			}
			settle := func() { // until nothing is sent any more
				for last := int64(-1); last != sent.Load(); {
					last = sent.Load()
					<-time.After(50 * time.Millisecond)
				}
			}
			settle()
			change := func(n int, scope cache.Scope) time.Duration {
				before, began := sent.Load(), time.Now()
				c.Apply(cache.Update{Scope: scope, TypeURL: endpointType, Changes: []cache.Change{{Name: names[0], Resource: newTestResource(endpointType, names[0], fmt.Sprint(n), fmt.Sprint(n))}}})
				for sent.Load() < before+streams {
					runtime.Gosched()
				}
				return time.Since(began)
			}
			var rest, meanwhile, all time.Duration
			scope, n := oldStyleScope(""), 0
			for b.Loop() {
				n += 2
				if settle(); !moves {
					rest += change(n, scope)
					settle()
				}
				m := &meaning{}
				if moves {
					m.clusters = map[string]string{"": fmt.Sprint("to", n)}
				}
				began := time.Now()
				server.Reconfigure(m.names)
				if !moves {
					meanwhile += change(n+1, scope)
				}
				for running := true; running; runtime.Gosched() {
					server.mu.Lock()
					running = server.running
					server.mu.Unlock()
				}
				all += time.Since(began)
			}
			ops := float64(max(1, n/2))
			b.ReportMetric(float64(all.Nanoseconds())/ops/streams/perStream, "ns/name")
			if moves {
				return
			}
			b.ReportMetric(float64(rest.Microseconds())/ops, "µs-at-rest")
			b.ReportMetric(float64(meanwhile.Microseconds())/ops, "µs-meanwhile")
		})
	}
}
