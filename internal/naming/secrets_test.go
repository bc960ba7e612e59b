package naming

import (
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func TestSecretsThatAResourceNames(t *testing.T) {
	ads := &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
	file := &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: "/a"}}}
	secret := func(name string, from *corev3.ConfigSource) *tlsv3.SdsSecretConfig {
		return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: from}
	}
	socket := func(context proto.Message) *corev3.TransportSocket {
		config, err := anypb.New(context)
		if err != nil {
			t.Fatal(err)
		}
		return &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
	}
	common := func(names ...*tlsv3.SdsSecretConfig) *tlsv3.CommonTlsContext {
		return &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: names,
			ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: secret("roots", ads)},
		}
	}
	var known SecretNames
	for _, test := range []struct {
		name    string
		typeURL string
		value   proto.Message
		want    []string
	}{
		{"a cluster", xdstype.ClusterV3, &clusterv3.Cluster{Name: "c", TransportSocket: socket(&tlsv3.UpstreamTlsContext{
			CommonTlsContext: common(secret("key", ads), secret("key", ads)),
		})}, []string{"key", "roots"}},
		{"a listener", xdstype.ListenerV3, &listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{{TransportSocket: socket(&tlsv3.DownstreamTlsContext{
			CommonTlsContext: common(secret("of a file", file), secret("of the bootstrap", nil), secret("other", ads)),
		})}}}, []string{"other", "roots"}},
		{"none", xdstype.ClusterV3, &clusterv3.Cluster{Name: "c"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			value, err := proto.Marshal(test.value)
			if err != nil {
				t.Fatal(err)
			}
			r := cache.NewResource(cache.Spec{Name: "a", TypeURL: test.typeURL, Value: value})
			for range 2 {
				if got := known.In(r); !slices.Equal(got, test.want) {
					t.Errorf("%q, want %q", got, test.want)
				}
			}
		})
	}
	for i := range 5 * mostSecretNames {
		known.In(cache.NewResource(cache.Spec{Name: "a", TypeURL: xdstype.ClusterV3, Value: []byte{0x0a, 3, byte(i), byte(i >> 7 & 127), byte(i >> 14)}}))
	}
	if n := len(known.newer) + len(known.before); n > 2*mostSecretNames {
		t.Errorf("the names of %d resources are kept", n)
	}
}
