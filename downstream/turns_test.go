package downstream

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// A control plane changes endpoints, clusters or both before each turn of a stream. The stream still sends the changes
// of all types within two turns, and the removals when the client has answered these: the first types do not go first forever.
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
					ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL, Sets: []cache.SetUpdate{{Name: cache.Wildcard, Extent: cache.WholeIf(len(all) == 0), Changes: all}}})
				}
				put := func(typeURL, name, content string) {
					apply(typeURL, cache.Change{Name: name, Resource: newTestResource(typeURL, name, content, content)})
				}
				held := map[string]map[string]string{} // by type and name
				// turn has the client read and answer what the stream sends before it looks at the cache again.
				turn := func() {
					for first := true; first || c.follows != nil; first = false {
						r := c.next()
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
						// In SotW, only types with full states have removals. A removal waits for a turn in which no route is
						// on its way.
						if n := len(held[got.typeURL]); n > 5 && (form == deltaForm.name || got.typeURL == clusterType) {
							t.Fatalf("the client holds %v, want 5 at most: those of the last three turns", held[got.typeURL])
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

// changingStream changes the clusters again as soon as they have been sent.
type changingStream struct {
	endable
	change func(r *session.Response, sent int)
	sent   []*session.Response
}

func (s *changingStream) SendMsg(m any) error {
	r := m.(*session.Response)
	s.sent = append(s.sent, r)
	s.change(r, len(s.sent))
	return nil
}

// newChangingStream returns a stream for clusters and routes, and the server.
func newChangingStream(t *testing.T, node *corev3.Node, change func(c *crowd, r *session.Response, sent int)) (*changingStream, *crowd) {
	t.Helper()
	c := newCrowd(t)
	g := &changingStream{}
	g.change = func(r *session.Response, sent int) { change(c, r, sent) }
	st := c.server.open(g, nil, deltaForm.name, "")
	t.Cleanup(func() { st.end(); c.server.forget(st) })
	for _, typeURL := range []string{clusterType, routeType} {
		c.take(st, encoded(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: benchNames(1)}))
		node = nil
	}
	c.cache.Apply(puts(routeType, "v", values(1, 10, 0)...))
	c.cache.Apply(puts(clusterType, "v", values(1, 10, 0)...))
	synctest.Wait()
	return g, c
}

// The senders, too, send routes in turn with clusters that change after each response.
func TestRoutesAreSentWhileClustersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const changes = 20
		g, _ := newChangingStream(t, &corev3.Node{}, func(c *crowd, _ *session.Response, sent int) {
			if sent <= changes {
				c.cache.Apply(puts(routeType, "v", values(1, 10, sent)...))
				c.cache.Apply(puts(clusterType, "v", values(1, 10, sent)...))
			}
		})
		var types []string
		for _, r := range g.sent {
			types = append(types, r.TypeURL)
		}
		for i, typeURL := range types[:changes] {
			if want := []string{clusterType, routeType}[i%2]; i > 3 && typeURL == types[i-1] {
				t.Fatalf("response %d is of %s after one of the same type, want %s", i, shortName(typeURL), shortName(want))
			}
		}
	})
}

// A client with restricted rights is not sent what was composed by an earlier configuration: it has to come again.
func TestWhatWasComposedIsNotSentByANewConfiguration(t *testing.T) {
	for _, restricted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restricted %v", restricted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := &corev3.Node{}
				if restricted {
					node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{deniedField: structpb.NewStringValue("other")}}
				}
				var together *session.Response
				g, _ := newChangingStream(t, node, func(c *crowd, r *session.Response, sent int) {
					switch {
					case together != nil:
					case r.Next != nil:
						together = r
						c.server.Reconfigure(newClusterNames)
					default:
						c.cache.Apply(puts(routeType, "v", values(1, 10, sent)...))
						c.cache.Apply(puts(clusterType, "v", values(1, 10, sent)...))
					}
				})
				if together == nil {
					t.Fatal("no responses were composed together")
				}
				sent, ended := slices.Contains(g.sent, together.Next), g.transport.ended.Load()
				if sent == restricted {
					t.Errorf("the second response was sent: %v, want %v", sent, !restricted)
				}
				if (ended != nil) != restricted || restricted && ended.Code() != codes.Unavailable {
					t.Errorf("the stream has ended with %v", ended)
				}
			})
		})
	}
}
