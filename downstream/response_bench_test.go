package downstream

import (
	"context"
	"fmt"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// A session's steps: one more and one less name of a client with many, and the full state of a set that has changed.
func BenchmarkSessionStep(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		server, _, names := benchServer(b, n)
		b.Run(fmt.Sprintf("delta/names=%d/one more, one less", n), func(b *testing.B) {
			st := server.open(sinkStream{context.Background()}, nil, "delta", "")
			ask(b, st, deltaForm, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
			more := encoded(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names[:1]})
			less := encoded(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesUnsubscribe: names[:1]})
			b.ReportAllocs()
			for b.Loop() {
				for _, request := range [][]byte{less, more} {
					if _, err := take(st, deltaForm, request); err != nil {
						b.Fatal(err)
					}
				}
				if takeResponses(st) == nil {
					b.Fatal("no response")
				}
			}
		})
		b.Run(fmt.Sprintf("sotw/names=%d/one more, one less", n), func(b *testing.B) {
			st := server.open(sinkStream{context.Background()}, nil, "sotw", "")
			ask(b, st, sotwForm, &discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names})
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer() // the client encodes
				nonce := fmt.Sprint(st.nonces)
				less := encoded(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names[1:], ResponseNonce: nonce})
				more := encoded(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names, ResponseNonce: nonce})
				b.StartTimer()
				for _, request := range [][]byte{less, more} {
					if _, err := take(st, sotwForm, request); err != nil {
						b.Fatal(err)
					}
				}
				if takeResponses(st) == nil {
					b.Fatal("no response")
				}
			}
		})
	}
	for _, members := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("sotw/members=%d/one changes", members), func(b *testing.B) {
			c := cache.New(silentSource{}, cache.Options{IdleEntries: 10})
			defer c.Close()
			server, _ := newTestServer(c, DefaultMaxResponseBytes)
			st := server.open(sinkStream{context.Background()}, nil, "sotw", "")
			ask(b, st, sotwForm, &discoveryv3.DiscoveryRequest{TypeUrl: clusterType})
			st.inbox.awake = true // the benchmark looks after it
			c.Apply(puts(clusterType, "v", values(members, 1000, 0)...))
			takeResponses(st)
			updates := [2]cache.Update{puts(clusterType, "v", values(1, 1000, 1)...), puts(clusterType, "v", values(1, 1000, 2)...)}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				c.Apply(updates[n%2])
				if takeResponses(st) == nil {
					b.Fatal("no response")
				}
			}
		})
	}
}
