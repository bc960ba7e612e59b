package downstream

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// A control plane changes endpoints, clusters or both before each turn of a stream. The stream still sends the changes
// of all types, and the removals, within two turns: the first types do not go first forever.
func TestNoTypeWaitsForeverForEarlierOnes(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		for _, changes := range []struct {
			name  string
			types []string
		}{
			{"clusters", []string{clusterType}},
			{"endpoints", []string{endpointType}},
			{"both", []string{clusterType, endpointType}},
		} {
			t.Run(form+", "+changes.name, func(t *testing.T) {
				ch := newTestCache(silent{}, 1000)
				defer ch.Close()
				server, _ := newTestServer(ch, DefaultMaxResponseBytes)
				c := newTestClient(server, form, &corev3.Node{})
				defer c.close()
				apply := func(typeURL string, all ...cache.Change) {
					ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL, Sets: []cache.SetUpdate{{Name: cache.Wildcard, Full: len(all) == 0, Changes: all}}})
				}
				put := func(typeURL, name, content string) {
					apply(typeURL, cache.Change{Name: name, Resource: newTestResource(typeURL, name, content, content)})
				}
				held := map[string]map[string]string{} // by type and name
				// turn has the client read and answer what the stream sends before it looks at the cache again.
				turn := func() {
					for first := true; first || len(c.st.allComposed()) > 0; first = false {
						r := c.st.next()
						if r == nil {
							return
						}
						got := decode(t, form, r)
						if held[got.typeURL] == nil || form == sotwForm.name && got.typeURL == clusterType {
							held[got.typeURL] = map[string]string{}
						}
						for _, res := range got.resources {
							held[got.typeURL][res.name] = res.content
						}
						for _, name := range got.removed {
							delete(held[got.typeURL], name)
						}
						// In SotW, only types with full states have removals.
						if n := len(held[got.typeURL]); n > 4 && (form == deltaForm.name || got.typeURL == clusterType) {
							t.Fatalf("the client holds %v, want 4 at most: those of the last two turns", held[got.typeURL])
						}
						var err error
						if form == deltaForm.name {
							err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: got.typeURL, ResponseNonce: got.nonce})
						} else {
							err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: got.typeURL, ResponseNonce: got.nonce, ResourceNames: []string{cache.Wildcard}})
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, typeURL := range []string{clusterType, endpointType, routeType} {
					subscribe(t, c, typeURL, cache.Wildcard)
					put(typeURL, "first", "0")
				}
				c.woken.Store(true) // it looks without a wake
				for range 10 {
					turn()
				}
				for n := range 50 {
					for _, typeURL := range changes.types {
						put(typeURL, fmt.Sprint("r", n), "new")
						apply(typeURL, cache.Change{Name: fmt.Sprint("r", n-1), Gone: true})
					}
					if n%2 == 0 {
						put(routeType, "route", fmt.Sprint(n))
					}
					turn()
					if n%2 == 1 && held[routeType]["route"] != fmt.Sprint(n-1) {
						t.Fatalf("after two turns the client has the route of change %q, want %d", held[routeType]["route"], n-1)
					}
				}
			})
		}
	}
}
