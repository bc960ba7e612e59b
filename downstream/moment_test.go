package downstream

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// A response is put together from the state of one moment, also while an origin changes things as fast as it can: what
// it names has been sent before. (TestMakeBeforeBreak defines which responses that are.)
func TestResponsesAreOfOneMoment(t *testing.T) {
	const responses = 3000
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			ch := newTestCache(&recordingSource{}, 1000)
			defer ch.Close()
			server, _ := newTestServer(ch, DefaultMaxResponseBytes)
			c := newTestClient(server, form, &corev3.Node{})
			defer c.close()
			for _, typeURL := range []string{clusterType, routeType} {
				subscribe(t, c, typeURL, cache.Wildcard)
			}
			c.woken.Store(true) // it looks without a wake

			done := make(chan struct{})
			var origin sync.WaitGroup
			origin.Go(func() { turnOver(ch, done) })
			defer origin.Wait()
			defer close(done)

			clusters := map[string]bool{}
			named, broken := "", 0
			for n := 0; n < responses; {
				r := c.next()
				if r == nil {
					runtime.Gosched() // to the origin
					continue
				}
				n++
				got := decode(t, form, r)
				if form == sotwForm.name {
					if err := c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: got.typeURL, ResponseNonce: got.nonce, ResourceNames: []string{cache.Wildcard}}); err != nil {
						t.Fatal(err)
					}
				}
				if got.typeURL == clusterType {
					if form == sotwForm.name {
						clear(clusters)
					}
					for _, res := range got.resources {
						clusters[res.name] = true
					}
					for _, name := range got.removed {
						delete(clusters, name)
					}
				} else if len(got.resources) > 0 {
					named = got.resources[0].content
				}
				if named != "" && !clusters[named] {
					broken++
				}
			}
			if broken > 0 {
				t.Errorf("after %d of %d responses the client's route names a cluster that it does not have", broken, responses)
			}
		})
	}
}

// turnOver has a route name one cluster after another, each of which comes before
// that and goes after it.
func turnOver(ch *cache.Cache, done chan struct{}) {
	apply := func(typeURL string, change cache.Change) {
		changes := []cache.Change{change}
		ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL, Sets: []cache.SetUpdate{{Name: cache.Wildcard, Changes: changes}}})
	}
	last := ""
	for i := 0; ; i++ {
		name := fmt.Sprint("c", i)
		apply(clusterType, cache.Change{Name: name, Resource: newTestResource(clusterType, name, "", "cluster")})
		apply(routeType, cache.Change{Name: "r", Resource: newTestResource(routeType, "r", "", name)})
		if last != "" {
			apply(clusterType, cache.Change{Name: last, Gone: true})
		}
		last = name
		select {
		case <-done:
			return
		default:
		}
	}
}
