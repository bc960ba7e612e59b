package typeurl

import "testing"

func TestBothVersionsOfATypeAreOfOneKind(t *testing.T) {
	for _, test := range []struct {
		urls      []string
		kind      Kind
		fullState bool
	}{
		{[]string{"type.googleapis.com/envoy.config.listener.v3.Listener", "type.googleapis.com/envoy.api.v2.Listener"}, Listener, true},
		{[]string{"type.googleapis.com/envoy.config.cluster.v3.Cluster", "type.googleapis.com/envoy.api.v2.Cluster"}, Cluster, true},
		{[]string{"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "type.googleapis.com/envoy.api.v2.ClusterLoadAssignment"}, Endpoints, false},
		{[]string{"type.googleapis.com/envoy.config.route.v3.VirtualHost", "type.googleapis.com/envoy.api.v2.route.VirtualHost"}, VirtualHost, false},
		{[]string{"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "type.googleapis.com/envoy.api.v2.auth.Secret"}, Secret, false},
		{[]string{"type.googleapis.com/example.Widget", "envoy.config.cluster.v3.Cluster", ""}, Other, false},
	} {
		for _, url := range test.urls {
			if k := KindOf(url); k != test.kind || k.FullState() != test.fullState {
				t.Errorf("%s is of kind %d, full state %t; want %d, %t", url, k, k.FullState(), test.kind, test.fullState)
			}
		}
	}
}
