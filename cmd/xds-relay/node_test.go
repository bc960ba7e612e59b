package main

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
)

// TestFeaturesOfTheProtocolAreTheRelaysOwn: what a client understands of the
// protocol is nothing to the control plane, which talks to the relay.
func TestFeaturesOfTheProtocolAreTheRelaysOwn(t *testing.T) {
	own := []string{"xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "xds.config.supports-resource-ttl"}
	for _, tt := range []struct {
		name         string
		client, want []string
	}{
		{"none", nil, own},
		{"about resources", []string{"envoy.lb.does_not_support_overprovisioning", "com.acme.feature"},
			append([]string{"envoy.lb.does_not_support_overprovisioning", "com.acme.feature"}, own...)},
		{"gRPC's", []string{"envoy.lb.does_not_support_overprovisioning", "xds.config.resource-in-sotw"},
			append([]string{"envoy.lb.does_not_support_overprovisioning"}, own...)},
		{"old spellings", []string{"envoy.config.supports-resource-ttl", "a", "envoy.config.resource-in-sotw"}, append([]string{"a"}, own...)},
	} {
		client := &corev3.Node{Id: "client", Cluster: "edge", UserAgentName: "envoy", ClientFeatures: tt.client}
		before := proto.CloneOf(client)
		got := nodeFor(client)
		if !slices.Equal(got.GetClientFeatures(), tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got.GetClientFeatures(), tt.want)
		}
		if !proto.Equal(client, before) {
			t.Errorf("%s: the client's own Node was changed: %v", tt.name, client)
		}
		got.ClientFeatures = client.ClientFeatures
		if !proto.Equal(got, client) {
			t.Errorf("%s: more than features was changed: %v", tt.name, got)
		}
	}
}
