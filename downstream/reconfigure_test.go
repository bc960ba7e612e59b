package downstream

import (
	"context"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
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
