package partition

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/configs"
)

// TestFeaturesOfTheProtocolAreTheRelaysOwn: the control plane talks to the relay, so the clients' features of the
// protocol do not matter to it.
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
		got := NodeFor(fieldsOf(t, "partition: node.id"), client)
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

// fieldsOf returns the fields that a rule sends upstream.
func fieldsOf(t *testing.T, rule string) configs.NodeFields {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(`
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: a, servers: [{address: "cp.example.com:1"}]}]
old_style_names:
  - authority: a
    `+rule))
	if err != nil {
		t.Fatal(err)
	}
	return cfg.OldStyleNames[0].Upstream()
}

// Fields in which a partition's clients may differ are not sent for all of them.
func TestAPartitionIsAskedForWithWhatItsClientsShare(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{"ROLE": "edge", "POD": "cart-1"})
	if err != nil {
		t.Fatal(err)
	}
	role, err := structpb.NewStruct(map[string]any{"ROLE": "edge"})
	if err != nil {
		t.Fatal(err)
	}
	client := &corev3.Node{
		Id: "cart-1", Cluster: "cart", Metadata: metadata, Locality: &corev3.Locality{Zone: "z"},
		UserAgentName: "envoy", ClientFeatures: []string{"envoy.lb.does_not_support_overprovisioning"},
	}
	relays := &corev3.Node{ClientFeatures: relayFeatures}
	setUserAgent(relays)
	with := func(node *corev3.Node) *corev3.Node {
		proto.Merge(node, &corev3.Node{Id: "cart-1", Cluster: "cart"})
		if node.GetUserAgentName() == "" {
			setUserAgent(node)
		}
		node.ClientFeatures = append(node.ClientFeatures, relayFeatures...)
		return node
	}
	for rule, want := range map[string]*corev3.Node{
		"partition: node.cluster":                                   with(&corev3.Node{}),
		"when: node.locality.zone == 'z'":                           with(&corev3.Node{}),
		"partition: node.locality.zone":                             with(&corev3.Node{Locality: client.GetLocality()}),
		"{partition: node.cluster, node_fields: [metadata.ROLE]}":   with(&corev3.Node{Metadata: role}),
		"{partition: node.cluster, node_fields: [user_agent_name]}": with(&corev3.Node{UserAgentName: "envoy"}),
		"{partition: node.cluster, node_fields: [client_features]}": with(&corev3.Node{ClientFeatures: []string{"envoy.lb.does_not_support_overprovisioning"}}),
		`{partition: node.cluster, node_fields: ["*"]}`:             with(proto.CloneOf(client)),
		"partition: node.id":                                        with(proto.CloneOf(client)),
		`{partition: node.cluster + "/" + node.id}`:                 with(&corev3.Node{}),
	} {
		rule = strings.TrimSuffix(strings.TrimPrefix(rule, "{"), "}")
		rule = strings.Replace(rule, ", node_fields", "\n    node_fields", 1)
		before := proto.CloneOf(client)
		if got := NodeFor(fieldsOf(t, rule), client); !proto.Equal(got, want) {
			t.Errorf("%s:\ngot  %v\nwant %v", rule, got, want)
		}
		if !proto.Equal(client, before) {
			t.Errorf("%s: the client's own Node was changed", rule)
		}
	}
}
