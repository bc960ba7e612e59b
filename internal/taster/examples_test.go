package taster

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	wrrv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/client_side_weighted_round_robin/v3"
	leastrequestv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	quicv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/quic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Each rule of gRPC has an example that breaks it, and each type of resource has examples that gRPC accepts.
// TestGRPCRejectsTheSame checks them with gRPC itself.

// example is a resource.
type example struct {
	name string
	// broken is the rule that the resource breaks, empty if gRPC accepts it.
	broken string
	// server: the Listener is for a server.
	server   bool
	resource proto.Message
}

// The names of the resources.
const (
	clientName = "shop"
	serverName = "server/127.0.0.1"
	routesName = "shop-routes"
	cartName   = "cart"
)

func (e *example) typeURL() string {
	return xdstype.Prefix + string(e.resource.ProtoReflect().Descriptor().FullName())
}

// examples are all of them.
func examples() []example {
	for i := range serverExamples {
		serverExamples[i].server = true
	}
	return slices.Concat(clusterExamples, endpointsExamples, routesExamples, listenerExamples, serverExamples)
}

func TestResourcesOfWhichGRPCRejectsOneThing(t *testing.T) {
	for _, e := range examples() {
		t.Run(e.typeURL()+"/"+e.name, func(t *testing.T) {
			v := Of(e.typeURL()).Taste(encode(t, e.resource))
			switch {
			case e.broken == "" && v != nil && v.GRPC != "":
				t.Errorf("gRPC would not reject it: %s", v.GRPC)
			case e.broken != "" && (v == nil || !strings.Contains(v.GRPC, e.broken+" (gRFC A")):
				t.Errorf("got %+v, want that gRPC rejects it: %s", v, e.broken)
			}
		})
	}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A rule without an example might be one that gRPC does not have.
func TestEveryRuleHasAnExample(t *testing.T) {
	var broken []string
	for _, e := range examples() {
		broken = append(broken, e.broken)
	}
	all := grpcRules()
	if len(all) < 60 {
		t.Fatalf("only %d rules", len(all))
	}
	for _, r := range all {
		if !slices.Contains(broken, r.Want) {
			t.Errorf("nothing breaks: %s", r.Want)
		}
	}
}

var clusterExamples = []example{
	{name: "EDS", resource: goodCluster()},
	{name: "EDS from self", resource: cluster(func(c *clusterv3.Cluster) {
		c.EdsClusterConfig.EdsConfig = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}}
	})},
	{name: "a ring", resource: cluster(func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_RING_HASH })},
	{name: "least request", resource: cluster(func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST })},
	{name: "DNS", resource: dnsCluster(func(*endpointv3.ClusterLoadAssignment) {})},
	{name: "an aggregate", resource: aggregate(pack(&aggregatev3.ClusterConfig{Clusters: []string{"a"}}))},
	{name: "TLS", resource: upstreamSocket(func(*tlsv3.CommonTlsContext) {})},
	{name: "a policy that gRPC does not know, before one that it does", resource: balanced(pack(&luav3.Lua{}), pack(&roundrobinv3.RoundRobin{}))},
	{name: "16 policies in each other", resource: balanced(nestedPolicies(15))},
	{name: "outlier detection", resource: cluster(func(c *clusterv3.Cluster) {
		c.OutlierDetection = &clusterv3.OutlierDetection{Interval: durationpb.New(time.Second), MaxEjectionPercent: uint32Value(100)}
	})},

	{name: "no name", broken: "name is set", resource: cluster(func(c *clusterv3.Cluster) { c.Name = "" })},
	{name: "random", broken: "lb_policy is ROUND_ROBIN, RING_HASH or LEAST_REQUEST", resource: cluster(func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_RANDOM })},
	{name: "a ring by another hash", broken: "ring_hash_lb_config.hash_function is XX_HASH", resource: cluster(func(c *clusterv3.Cluster) {
		c.LbPolicy = clusterv3.Cluster_RING_HASH
		c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{HashFunction: clusterv3.Cluster_RingHashLbConfig_MURMUR_HASH_2}}
	})},
	{name: "a choice of one", broken: "least_request_lb_config.choice_count is at least 2", resource: cluster(func(c *clusterv3.Cluster) {
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{ChoiceCount: uint32Value(1)}}
	})},
	{name: "matches of sockets", broken: "transport_socket_matches is empty", resource: cluster(func(c *clusterv3.Cluster) {
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{{Name: "m"}}
	})},
	{name: "another server for loads", broken: "lrs_server is self", resource: cluster(func(c *clusterv3.Cluster) { c.LrsServer = ads })},
	{name: "STATIC", broken: "the cluster is of type EDS or LOGICAL_DNS, or an envoy.clusters.aggregate", resource: cluster(func(c *clusterv3.Cluster) {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	})},
	{name: "STRICT_DNS", broken: "the cluster is of type EDS or LOGICAL_DNS, or an envoy.clusters.aggregate", resource: cluster(func(c *clusterv3.Cluster) {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	})},
	{name: "EDS from a file", broken: "eds_cluster_config.eds_config is ads or self", resource: cluster(func(c *clusterv3.Cluster) { c.EdsClusterConfig.EdsConfig = fromFile })},
	{name: "an xdstp name", broken: "a cluster with an xdstp name has an eds_cluster_config.service_name", resource: cluster(func(c *clusterv3.Cluster) {
		c.Name = "xdstp://a/envoy.config.cluster.v3.Cluster/cart"
	})},
	{name: "DNS in two localities", broken: "load_assignment of a LOGICAL_DNS cluster has one locality with one endpoint", resource: dnsCluster(func(e *endpointv3.ClusterLoadAssignment) {
		e.Endpoints = append(e.Endpoints, e.Endpoints...)
	})},
	{name: "DNS without a port", broken: "the endpoint of a LOGICAL_DNS cluster is a socket_address with a host and a port, without resolver_name", resource: dnsCluster(func(e *endpointv3.ClusterLoadAssignment) {
		e.Endpoints[0].LbEndpoints[0] = lbEndpoint("cart.example.com", 0)
	})},
	{name: "DNS with another resolver", broken: "the endpoint of a LOGICAL_DNS cluster is a socket_address with a host and a port, without resolver_name", resource: dnsCluster(func(e *endpointv3.ClusterLoadAssignment) {
		e.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress().ResolverName = "r"
	})},
	{name: "an aggregate of nothing", broken: "an aggregate cluster names at least one cluster", resource: aggregate(pack(&aggregatev3.ClusterConfig{}))},
	{name: "an aggregate that is garbage", broken: "in cluster_type, it requires that an Any is a message of its type", resource: aggregate(garbage(&aggregatev3.ClusterConfig{}))},

	{name: "a negative interval", broken: "interval, base_ejection_time and max_ejection_time are durations of at least 0", resource: cluster(func(c *clusterv3.Cluster) {
		c.OutlierDetection = &clusterv3.OutlierDetection{Interval: negative}
	})},
	{name: "101 percent", broken: "max_ejection_percent, enforcing_success_rate, failure_percentage_threshold and enforcing_failure_percentage are at most 100", resource: cluster(func(c *clusterv3.Cluster) {
		c.OutlierDetection = &clusterv3.OutlierDetection{EnforcingFailurePercentage: uint32Value(101)}
	})},

	{name: "no policy that gRPC knows", broken: "gRPC supports one of the policies", resource: balanced(pack(&luav3.Lua{}))},
	{name: "a policy that is garbage", broken: "an Any is a message of its type", resource: balanced(garbage(&ringhashv3.RingHash{}))},
	{name: "17 policies in each other", broken: "policies are nested at most 16 deep", resource: balanced(nestedPolicies(16))},
	{name: "a policy of a ring by another hash", broken: "RingHash.hash_function is XX_HASH", resource: balanced(pack(&ringhashv3.RingHash{HashFunction: ringhashv3.RingHash_MURMUR_HASH_2}))},
	{name: "a policy of a ring that is too large", broken: "RingHash.minimum_ring_size and maximum_ring_size are at most 8388608, and the minimum is not above the maximum", resource: balanced(pack(&ringhashv3.RingHash{
		HashFunction: ringhashv3.RingHash_XX_HASH, MaximumRingSize: wrapperspb.UInt64(8<<20 + 1),
	}))},
	{name: "a policy of a ring with the limits swapped", broken: "RingHash.minimum_ring_size and maximum_ring_size are at most 8388608, and the minimum is not above the maximum", resource: balanced(pack(&ringhashv3.RingHash{
		HashFunction: ringhashv3.RingHash_XX_HASH, MinimumRingSize: wrapperspb.UInt64(11), MaximumRingSize: wrapperspb.UInt64(10),
	}))},
	{name: "a penalty below 0", broken: "ClientSideWeightedRoundRobin.error_utilization_penalty is at least 0", resource: balanced(pack(&wrrv3.ClientSideWeightedRoundRobin{ErrorUtilizationPenalty: wrapperspb.Float(-1)}))},
	{name: "random, and a policy that replaces it", broken: "lb_policy is ROUND_ROBIN, RING_HASH or LEAST_REQUEST", resource: cluster(func(c *clusterv3.Cluster) {
		c.LbPolicy, c.LoadBalancingPolicy = clusterv3.Cluster_RANDOM, balancing(pack(&roundrobinv3.RoundRobin{}))
	})},
	{name: "a policy of a choice of one", broken: "LeastRequest.choice_count is at least 2", resource: balanced(pack(&leastrequestv3.LeastRequest{ChoiceCount: uint32Value(1)}))},

	{name: "a socket of another name", broken: "name is envoy.transport_sockets.tls", resource: cluster(func(c *clusterv3.Cluster) {
		c.TransportSocket = socketWith(pack(&tlsv3.UpstreamTlsContext{}))
		c.TransportSocket.Name = "mine"
	})},
	{name: "a socket of another type", broken: "typed_config is an UpstreamTlsContext", resource: withSocket(&quicv3.QuicUpstreamTransport{})},
	{name: "a socket that is garbage", broken: "in transport_socket, it requires that an Any is a message of its type", resource: cluster(func(c *clusterv3.Cluster) {
		c.TransportSocket = socketWith(garbage(&tlsv3.UpstreamTlsContext{}))
	})},
	{name: "TLS of nothing", broken: "there is a common_tls_context", resource: withSocket(&tlsv3.UpstreamTlsContext{})},
	{name: "parameters of TLS", broken: "tls_params is not set", resource: upstreamSocket(func(c *tlsv3.CommonTlsContext) { c.TlsParams = &tlsv3.TlsParameters{} })},
	{name: "another handshake", broken: "custom_handshaker is not set", resource: upstreamSocket(func(c *tlsv3.CommonTlsContext) { c.CustomHandshaker = &corev3.TypedExtensionConfig{} })},
	{name: "a name that is empty", broken: "match_subject_alt_names has only valid matchers", resource: upstreamSocket(func(c *tlsv3.CommonTlsContext) {
		c.GetValidationContext().MatchSubjectAltNames = []*matcherv3.StringMatcher{{MatchPattern: &matcherv3.StringMatcher_Prefix{}}}
	})},
	{name: "a hash of a certificate", broken: "the validation context does not set verify_certificate_spki, verify_certificate_hash, require_signed_certificate_timestamp, crl or custom_validator_config", resource: upstreamSocket(func(c *tlsv3.CommonTlsContext) {
		c.GetValidationContext().VerifyCertificateHash = []string{"h"}
	})},
	{name: "roots in the resource", broken: "root certificates come from a ca_certificate_provider_instance, or system_root_certs is set", resource: upstreamSocket(func(c *tlsv3.CommonTlsContext) {
		c.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "ca"}}}}
	})},
	{name: "roots by SDS", broken: "root certificates come from a ca_certificate_provider_instance, or system_root_certs is set", resource: upstreamSocket(func(c *tlsv3.CommonTlsContext) {
		c.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: "roots"}}
	})},
	{name: "a certificate in the resource", broken: "the client's own certificate comes from a tls_certificate_provider_instance", resource: upstreamSocket(func(c *tlsv3.CommonTlsContext) { c.TlsCertificates = []*tlsv3.TlsCertificate{{}} })},
}

var endpointsExamples = []example{
	{name: "endpoints", resource: endpoints(locality("a", 0, lbEndpoint("10.0.0.1", 80), lbEndpoint("10.0.0.1", 81)), locality("a", 1, lbEndpoint("10.0.0.2", 80)))},
	{name: "none", resource: endpoints()},
	{name: "a locality without a weight, which would be wrong", resource: endpoints(&endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{}, Priority: 7, LbEndpoints: []*endpointv3.LbEndpoint{weighted(lbEndpoint("10.0.0.1", 80), 0)}})},

	{name: "no name", broken: "cluster_name is set", resource: &endpointv3.ClusterLoadAssignment{}},
	{name: "a locality of nowhere", broken: "each locality has an id", resource: endpoints(&endpointv3.LocalityLbEndpoints{LoadBalancingWeight: uint32Value(1)})},
	{name: "a locality twice", broken: "no locality occurs twice in one priority", resource: endpoints(locality("a", 0), locality("a", 0))},
	{name: "localities that are too heavy", broken: "the weights of the localities of one priority add up to at most 4294967295", resource: endpoints(
		&endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Zone: "a"}, LoadBalancingWeight: uint32Value(math.MaxUint32)},
		locality("b", 0))},
	{name: "priority 1 of none", broken: "priorities start at 0 and have no gaps", resource: endpoints(locality("a", 1))},
	{name: "an address twice", broken: "no address occurs twice", resource: endpoints(locality("a", 0, lbEndpoint("10.0.0.1", 80)), locality("b", 0, lbEndpoint("10.0.0.1", 80)))},
	{name: "an additional address twice", broken: "no address occurs twice", resource: endpoints(locality("a", 0, lbEndpoint("10.0.0.1", 80), &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
		Address: address("10.0.0.2", 80), AdditionalAddresses: []*endpointv3.Endpoint_AdditionalAddress{{Address: address("10.0.0.1", 80)}},
	}}}))},
	{name: "two pipes", broken: "no address occurs twice", resource: endpoints(locality("a", 0, pipe("a"), pipe("b")))},
	{name: "an endpoint of no weight", broken: "the load_balancing_weight of an endpoint is not 0", resource: endpoints(locality("a", 0, weighted(lbEndpoint("10.0.0.1", 80), 0)))},
	{name: "endpoints that are too heavy", broken: "the weights of the endpoints of a locality add up to at most 4294967295", resource: endpoints(locality("a", 0, weighted(lbEndpoint("10.0.0.1", 80), math.MaxUint32), lbEndpoint("10.0.0.2", 80)))},
	{name: "drops of another unit", broken: "drop_percentage.denominator is HUNDRED, TEN_THOUSAND or MILLION", resource: &endpointv3.ClusterLoadAssignment{ClusterName: cartName, Policy: &endpointv3.ClusterLoadAssignment_Policy{
		DropOverloads: []*endpointv3.ClusterLoadAssignment_Policy_DropOverload{{Category: "c", DropPercentage: &typev3.FractionalPercent{Denominator: 7}}},
	}}},
}

func pipe(path string) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}}}}
}
