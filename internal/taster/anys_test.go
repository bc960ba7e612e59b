package taster

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A name may look like the type of a message. That neither hides the messages in a resource nor counts as one.
func TestMessagesAreFoundBehindNames(t *testing.T) {
	named := func(name string, broken bool) []byte {
		return encode(t, cluster(func(c *clusterv3.Cluster) {
			c.Name = name
			if broken {
				c.TransportSocket = socketWith(garbage(goodCluster()))
			}
		}))
	}
	const xdstp = "xdstp://a/envoy.config.cluster.v3.Cluster/b"
	nameless := named("", true)
	resource := encode(t, &discoveryv3.Resource{Resource: garbage(goodCluster())})
	inside := encode(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		CustomHandshaker: &corev3.TypedExtensionConfig{Name: "x", TypedConfig: garbage(goodCluster())},
	}})
	for _, tt := range []struct {
		what, typeURL string
		value         []byte
		broken        bool
	}{
		{"a plain name", xdstype.ClusterV3, named("b", false), false},
		{"a plain name, and a broken message", xdstype.ClusterV3, named("b", true), true},
		{"an xdstp name", xdstype.ClusterV3, named(xdstp, false), false},
		{"an xdstp name, and a broken message", xdstype.ClusterV3, named(xdstp, true), true},
		{"a broken message before the name", xdstype.ClusterV3, append(nameless, encode(t, &clusterv3.Cluster{Name: xdstp})...), true},
		{"a broken message behind no name", xdstype.Prefix + "envoy.service.discovery.v3.Resource", resource, true},
		{"a broken message where others have the name", xdstype.Prefix + "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", inside, true},
	} {
		v := Of(tt.typeURL).Taste(tt.value)
		if broken := v != nil && v.Envoy != ""; broken != tt.broken {
			t.Errorf("%s: got %+v, want it broken for Envoy: %t", tt.what, v, tt.broken)
		}
	}
}
