package main

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/upstream"
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

// Istio's proxyless gRPC is asked for in SotW, unless the configuration says
// otherwise.
func TestAutoIsSotWForIstiosProxylessGRPC(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{"GENERATOR": "grpc"})
	if err != nil {
		t.Fatal(err)
	}
	grpc := &corev3.Node{Metadata: metadata}
	for _, tt := range []struct {
		configured configs.Protocol
		node       *corev3.Node
		want       upstream.Protocol
	}{
		{configs.ProtocolAuto, grpc, upstream.AutoSotW},
		{configs.ProtocolDelta, grpc, upstream.Delta},
		{configs.ProtocolAuto, &corev3.Node{}, upstream.Auto},
		{configs.ProtocolSotW, &corev3.Node{}, upstream.SotW},
	} {
		if got := protocolFor(configs.Server{Protocol: tt.configured}, tt.node); got != tt.want {
			t.Errorf("%s for %v: %s, want %s", tt.configured, tt.node, got, tt.want)
		}
	}
}
