package downstream

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

// A request that is answered once may end while a new configuration changes what it has subscribed to.
func TestNewConfigurationsWhileRequestsEnd(t *testing.T) {
	c := newTestCache(silentSource{}, 1000)
	defer c.Close()
	server, _ := newTestServer(c, DefaultMaxResponseBytes)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			default:
			}
			m := &meaning{clusters: map[string]string{"a": []string{"x", "y"}[i%2]}}
			server.Reconfigure(m.names)
		}
	}()
	g := newGate(ListenerOptions{})
	for range 200 {
		req := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Cluster: "a"}, TypeUrl: endpointType, ResourceNames: benchNames(2 * fewSubscriptions)}
		if _, err := server.fetch(context.Background(), g, nil, formREST, "", req, 0); err == nil {
			t.Error("a request is answered of which nothing is known")
		}
	}
	close(ended)
	<-done
}

// Clients that share a list of names go on sharing it when a new configuration moves all of its names. They
// keep what they have, and are sent what differs.
func TestGroupsMoveAsAWhole(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			c := newTestCache(silentSource{}, 1000)
			defer c.Close()
			server, _ := newTestServer(c, DefaultMaxResponseBytes)
			says := func(cluster string, content map[string]string) {
				u := cache.Update{Scope: oldStyleScope(cluster), TypeURL: endpointType}
				for _, name := range slices.Sorted(maps.Keys(content)) {
					change := cache.Change{Name: name, Gone: true}
					if content[name] != "" {
						change = cache.Change{Name: name, Resource: newTestResource(endpointType, name, "1", content[name])}
					}
					u.Changes = append(u.Changes, change)
				}
				c.Apply(u)
			}
			var clients []*groupClient
			for range 3 {
				cl := newGroupClient(server, form)
				defer cl.close()
				cl.asks(t, []string{"changed", "gone", "later", "same"}, nil)
				clients = append(clients, cl)
			}
			says("", map[string]string{"changed": "one", "gone": "one", "later": "one", "same": "one"})
			for _, cl := range clients {
				cl.reads(t, false)
			}
			m := &meaning{clusters: map[string]string{"": "b"}}
			server.Reconfigure(m.names)
			for _, cl := range clients[1:] { // the first one is alone with its list
				for !cl.configured() {
					runtime.Gosched()
				}
				if cl.reads(t, false); len(cl.has) != 4 {
					t.Errorf("it holds %v before the other topics have an answer", cl.has)
				}
				if !cl.shares() {
					t.Error("it shares its names no more")
				}
			}
			says("b", map[string]string{"changed": "two", "gone": "", "same": "one"})
			says("", map[string]string{"same": "other", "later": ""})
			for _, cl := range clients {
				cl.reads(t, false)
			}
			says("b", map[string]string{"later": "one"})
			says("b", map[string]string{"later": "two"})
			for _, cl := range clients {
				cl.reads(t, false)
				if _, removed := cl.errors["gone"]; form == sotwForm.name && removed {
					delete(cl.has, "gone")
				}
				if want := map[string]string{"changed": "two0s", "later": "two0s", "same": "one0s"}; !maps.Equal(cl.has, want) {
					t.Errorf("it holds %v, want %v", cl.has, want)
				}
			}
		})
	}
}

// configured says whether the client's stream has the newest configuration.
func (c *groupClient) configured() bool {
	c.st.mu.Lock()
	defer c.st.mu.Unlock()
	return c.st.sessionClient.Generation == c.st.server.naming.Load().generation
}
