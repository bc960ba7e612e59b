package relay

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/upstream"
)

// The relay speaks SotW for Istio's proxyless gRPC, unless the configuration says otherwise.
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
