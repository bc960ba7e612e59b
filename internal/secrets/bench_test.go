package secrets_test

import (
	"fmt"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/secrets"
)

// BenchmarkHolds measures the search for secrets against decoding the same resource.
func BenchmarkHolds(b *testing.B) {
	tls := socket(nil)
	tls.GetTransportSocket().ConfigType.(*corev3.TransportSocket_TypedConfig).TypedConfig = pack(b, &tlsv3.UpstreamTlsContext{
		Sni: "cart.example.com", CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "default"}}, AlpnProtocols: []string{"h2"},
		},
	})
	tls.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{}}}
	endpoints := &endpointv3.ClusterLoadAssignment{ClusterName: "default/cart"}
	for i := range 1000 {
		endpoints.Endpoints = append(endpoints.Endpoints, &endpointv3.LocalityLbEndpoints{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
				SocketAddress: &corev3.SocketAddress{Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}},
			}}}},
		}}})
	}
	for name, m := range map[string]proto.Message{"cluster": tls, "endpoints": endpoints} {
		content := pack(b, m)
		b.Run(name+"/holds", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if secrets.Holds(content.TypeUrl, content.Value) {
					b.Fatal("a secret")
				}
			}
		})
		b.Run(name+"/decode", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := (&anypb.Any{TypeUrl: content.TypeUrl, Value: content.Value}).UnmarshalNew(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
