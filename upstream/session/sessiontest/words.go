package sessiontest

import (
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/urn"
)

// TypeURLs are the types of the tests by short names.
var TypeURLs = map[string]string{
	"cds":   "type.googleapis.com/envoy.config.cluster.v3.Cluster",
	"eds":   "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
	"lds":   "type.googleapis.com/envoy.config.listener.v3.Listener",
	"cds2":  "type.googleapis.com/envoy.api.v2.Cluster",
	"rds":   "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
	"other": "type.googleapis.com/example.Unheard",
	"lists": "type.googleapis.com/example.ThingCollection",
}

// Value encodes a resource that contains the text.
func Value(t *testing.T, typ, name, text string) []byte {
	t.Helper()
	var m proto.Message
	switch typ {
	case "cds":
		m = &clusterv3.Cluster{Name: name, AltStatName: text}
	case "lds":
		m = &listenerv3.Listener{Name: name, StatPrefix: text}
	case "rds":
		m = &routev3.RouteConfiguration{Name: name}
		if text != "" {
			m.(*routev3.RouteConfiguration).InternalOnlyHeaders = []string{text}
		}
	case "eds":
		m = &endpointv3.ClusterLoadAssignment{ClusterName: name}
		if text != "" {
			m.(*endpointv3.ClusterLoadAssignment).NamedEndpoints = map[string]*endpointv3.Endpoint{text: {}}
		}
	default:
		return AppendText(AppendText(nil, 1, name), 2, text)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Text returns the text in a resource.
func Text(r *cache.Resource) string {
	f := wire.Walk(r.Value())
	text := ""
	for f.Next() {
		if f.Num == wire.InnerNameField {
			continue
		}
		inner := wire.Walk(f.Bytes)
		if strings.HasSuffix(r.TypeURL(), "LoadAssignment") && inner.Next() {
			return string(inner.Bytes)
		}
		text = string(f.Bytes)
	}
	return text
}

// ClusterFor encodes a Cluster that every client accepts, or that only gRPC clients or only Envoy
// accept.
func ClusterFor(t testing.TB, kind, name, text string) []byte {
	t.Helper()
	ads := &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
	c := &clusterv3.Cluster{
		Name: name, AltStatName: text, EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads, ServiceName: name},
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
	}
	switch kind {
	case "for-envoy":
		c.LbPolicy = clusterv3.Cluster_RANDOM
	case "for-grpc":
		c.ConnectTimeout = &durationpb.Duration{}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// redirect encodes the ResourceLocator of a URL. If the URL is invalid, the locator has it as its
// authority.
func redirect(t *testing.T, url string) []byte {
	t.Helper()
	m := &xdscorev3.ResourceLocator{Authority: url}
	if u, err := urn.ParseURL(url); err == nil {
		if m, err = u.Proto(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// WrapAny encodes a Resource as an element of a SotW response.
func WrapAny(t *testing.T, r *discoveryv3.Resource) *anypb.Any {
	t.Helper()
	a, err := anypb.New(r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Locators prints locators.
func Locators(list []*discoveryv3.ResourceLocator) (names []string) {
	for _, l := range list {
		names = append(names, l.GetName()+"{"+cache.Params(l.GetDynamicParameters()).String()+"}")
	}
	return names
}

// VariantName returns the name of the variant for requests with a parameter K:V, or
// for requests without K if the constraint has no V.
func VariantName(name, constraint string) *discoveryv3.ResourceName {
	key, value, ok := strings.Cut(constraint, ":")
	c := Is(key, value)
	if !ok {
		c = Not(Exists(key))
	}
	return &discoveryv3.ResourceName{Name: name, DynamicParameterConstraints: c}
}

// Is is the constraint that a parameter has a value.
func Is(key, value string) *discoveryv3.DynamicParameterConstraints {
	return Single(&discoveryv3.DynamicParameterConstraints_SingleConstraint{
		Key:            key,
		ConstraintType: &discoveryv3.DynamicParameterConstraints_SingleConstraint_Value{Value: value},
	})
}

// Exists is the constraint that there is a parameter.
func Exists(key string) *discoveryv3.DynamicParameterConstraints {
	return Single(&discoveryv3.DynamicParameterConstraints_SingleConstraint{
		Key:            key,
		ConstraintType: &discoveryv3.DynamicParameterConstraints_SingleConstraint_Exists_{Exists: &discoveryv3.DynamicParameterConstraints_SingleConstraint_Exists{}},
	})
}

// Single is one constraint.
func Single(c *discoveryv3.DynamicParameterConstraints_SingleConstraint) *discoveryv3.DynamicParameterConstraints {
	return &discoveryv3.DynamicParameterConstraints{Type: &discoveryv3.DynamicParameterConstraints_Constraint{Constraint: c}}
}

// Not is the opposite of a constraint.
func Not(c *discoveryv3.DynamicParameterConstraints) *discoveryv3.DynamicParameterConstraints {
	return &discoveryv3.DynamicParameterConstraints{Type: &discoveryv3.DynamicParameterConstraints_NotConstraints{NotConstraints: c}}
}

// AppendText appends a field of text to an encoded message.
func AppendText(b []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}
