package downstream

import (
	"runtime"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// Options.ManyBegun is called for very many subscriptions that begin, those of a group included, and not for names that
// are requested again.
func TestVeryManySubscriptionsAreAnnounced(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			announced := 0
			topics := cache.New(silentSource{}, cache.Options{})
			defer topics.Close()
			server := NewServer(topics, newClusterNames, Options{ManyBegun: func(names int) { announced += names }})
			const n = 2*session.ManyNames + 1
			for i, want := range []int{2, 4, 4} { // the second client makes the group that the third one joins
				c := newTestClient(server, form, &corev3.Node{Id: "test"})
				defer c.close()
				for range 2 - min(i, 1) { // the first client requests all names again
					if err := c.requestsNames(form, manyNames(n)); err != nil {
						t.Fatal(err)
					}
				}
				if announced != want*session.ManyNames {
					t.Errorf("with %d clients, %d names were announced, want %d", i+1, announced, want*session.ManyNames)
				}
			}
		})
	}
}

func (c *testClient) requestsNames(form string, names []string) error {
	if form == deltaForm.name {
		return c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
	}
	return c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: names})
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
			during("subscribes", names, func() error { return c.requestsNames(form, all) })
			during("unsubscribes", names/2, func() error {
				if form == deltaForm.name {
					return c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesUnsubscribe: all[names/2:]})
				}
				return c.requestsNames(form, all[:names/2])
			})
			during("leaves", names/2, func() error { c.close(); return nil })
			again := newTestClient(server, form, &corev3.Node{Id: "test"})
			defer again.close()
			during("begins a group", names, func() error { return again.requestsNames(form, all) })
			over.Store(true)
			<-ended
		})
	}
}
