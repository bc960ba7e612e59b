package downstream

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// Options.LargeRequest is called for a request that begins very many subscriptions, and not for one that repeats them.
func TestLargeRequestsAreAnnounced(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			var announced []int
			topics := cache.New(silentSource{}, cache.Options{})
			defer topics.Close()
			server := NewServer(topics, newClusterNames, Options{LargeRequest: func(names int) { announced = append(announced, names) }})
			for _, n := range []int{largeRequest - 1, largeRequest} {
				c := newTestClient(server, form, &corev3.Node{Id: "test"})
				defer c.close()
				names := manyNames(n)
				for range 2 {
					var err error
					if form == deltaForm.name {
						err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
						names = nil
					} else {
						err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			if want := []int{largeRequest}; !slices.Equal(announced, want) {
				t.Errorf("announced %v, want %v", announced, want)
			}
		})
	}
}

// Other goroutines run while a client begins, and ends, very many subscriptions.
func TestOthersRunDuringALargeRequest(t *testing.T) {
	const names = 4096
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			topics := cache.New(silentSource{}, cache.Options{})
			defer topics.Close()
			server, _ := newTestServer(topics, DefaultMaxResponseBytes)
			c := newTestClient(server, form, &corev3.Node{Id: "test"})
			all := manyNames(names)
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			var turns atomic.Int64
			var over atomic.Bool
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for !over.Load() {
					turns.Add(1)
					runtime.Gosched()
				}
			}()
			during := func(what string, names int, work func() error) {
				t.Helper()
				before := turns.Load()
				if err := work(); err != nil {
					t.Error(err)
				}
				const perTurn = 128
				if n := turns.Load() - before; n < int64(names/perTurn)-2 {
					t.Errorf("others had %d turns while the client %s, want about %d", n, what, names/perTurn)
				}
			}
			request := func(add, drop []string) func() error {
				return func() error {
					if form == deltaForm.name {
						return c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: drop})
					}
					return c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: add})
				}
			}
			during("subscribes", names, request(all, nil))
			if form == deltaForm.name {
				during("unsubscribes", names/2, request(nil, all[names/2:]))
			} else {
				during("unsubscribes", names/2, request(all[:names/2], nil))
			}
			during("leaves", names/2, func() error { c.close(); return nil })
			over.Store(true)
			<-ended
		})
	}
}
