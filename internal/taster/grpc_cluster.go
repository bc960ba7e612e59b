package taster

import (
	"math"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	wrrv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/client_side_weighted_round_robin/v3"
	leastrequestv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	wrrlocalityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file checks Clusters as gRPC does.

var clusterRules = rules[*clusterv3.Cluster]{
	{"grpc-cluster-name", "A27", "name is set", func(_ *tasting, c *clusterv3.Cluster) bool { return c.GetName() != "" }},
	{"grpc-lb-policy", "A27, A42, A48", "lb_policy is ROUND_ROBIN, RING_HASH or LEAST_REQUEST", func(_ *tasting, c *clusterv3.Cluster) bool {
		switch c.GetLbPolicy() {
		case clusterv3.Cluster_ROUND_ROBIN, clusterv3.Cluster_RING_HASH, clusterv3.Cluster_LEAST_REQUEST:
			return true
		}
		return false // even if load_balancing_policy replaces it: gRPC's Go client checks it first
	}},
	{"grpc-ring-hash-function", "A42", "ring_hash_lb_config.hash_function is XX_HASH", func(_ *tasting, c *clusterv3.Cluster) bool {
		return c.GetLbPolicy() != clusterv3.Cluster_RING_HASH || c.GetRingHashLbConfig().GetHashFunction() == clusterv3.Cluster_RingHashLbConfig_XX_HASH
	}},
	{"grpc-least-request-choices", "A48", "least_request_lb_config.choice_count is at least 2", func(_ *tasting, c *clusterv3.Cluster) bool {
		choices := c.GetLeastRequestLbConfig().GetChoiceCount()
		return c.GetLbPolicy() != clusterv3.Cluster_LEAST_REQUEST || choices == nil || choices.GetValue() >= 2
	}},
	{"grpc-no-socket-matches", "A29", "transport_socket_matches is empty", func(_ *tasting, c *clusterv3.Cluster) bool { return len(c.GetTransportSocketMatches()) == 0 }},
	{"grpc-lrs-server", "A27", "lrs_server is self", func(_ *tasting, c *clusterv3.Cluster) bool {
		return c.GetLrsServer() == nil || c.GetLrsServer().GetSelf() != nil
	}},
	{"grpc-cluster-type", "A27, A37", "the cluster is of type EDS or LOGICAL_DNS, or an envoy.clusters.aggregate", func(_ *tasting, c *clusterv3.Cluster) bool {
		return isEDS(c) || isLogicalDNS(c) || isAggregate(c)
	}},
	{"grpc-eds-source", "A27", "eds_cluster_config.eds_config is ads or self", func(_ *tasting, c *clusterv3.Cluster) bool {
		return !isEDS(c) || adsOrSelf(c.GetEdsClusterConfig().GetEdsConfig())
	}},
	{"grpc-xdstp-service-name", "A47", "a cluster with an xdstp name has an eds_cluster_config.service_name", func(_ *tasting, c *clusterv3.Cluster) bool {
		return !isEDS(c) || !strings.HasPrefix(c.GetName(), "xdstp:") || c.GetEdsClusterConfig().GetServiceName() != ""
	}},
	{"grpc-dns-one-endpoint", "A37", "load_assignment of a LOGICAL_DNS cluster has one locality with one endpoint", func(_ *tasting, c *clusterv3.Cluster) bool {
		return !isLogicalDNS(c) || onlyEndpoint(c) != nil
	}},
	{"grpc-dns-host-and-port", "A37", "the endpoint of a LOGICAL_DNS cluster is a socket_address with a host and a port, without resolver_name", func(_ *tasting, c *clusterv3.Cluster) bool {
		address := onlyEndpoint(c).GetAddress().GetSocketAddress()
		return !isLogicalDNS(c) || address.GetAddress() != "" && address.GetPortValue() != 0 && address.GetResolverName() == ""
	}},
	{"grpc-aggregate-names", "A37", "an aggregate cluster names at least one cluster", func(t *tasting, c *clusterv3.Cluster) bool {
		if !isAggregate(c) || t.open(c.GetClusterType().GetTypedConfig()).failed {
			return true // undecodable reports it
		}
		aggregate, ok := openAs[*aggregatev3.ClusterConfig](t, c.GetClusterType().GetTypedConfig())
		return ok && len(aggregate.GetClusters()) > 0
	}},
}

func isEDS(c *clusterv3.Cluster) bool { return c.GetType() == clusterv3.Cluster_EDS }

func isLogicalDNS(c *clusterv3.Cluster) bool { return c.GetType() == clusterv3.Cluster_LOGICAL_DNS }

func isAggregate(c *clusterv3.Cluster) bool {
	return !isEDS(c) && !isLogicalDNS(c) && c.GetClusterType().GetName() == "envoy.clusters.aggregate"
}

func adsOrSelf(c *corev3.ConfigSource) bool { return c.GetAds() != nil || c.GetSelf() != nil }

// onlyEndpoint returns the endpoint of a cluster with exactly one, otherwise nil.
func onlyEndpoint(c *clusterv3.Cluster) *endpointv3.Endpoint {
	localities := c.GetLoadAssignment().GetEndpoints()
	if len(localities) != 1 || len(localities[0].GetLbEndpoints()) != 1 {
		return nil
	}
	return localities[0].GetLbEndpoints()[0].GetEndpoint()
}

func checkCluster(t *tasting, c *clusterv3.Cluster) *violation {
	return first(
		func() *violation { return clusterRules.check(t, c) },
		func() *violation {
			if !isAggregate(c) {
				return nil
			}
			return t.undecodable("A37", c.GetClusterType().GetTypedConfig()).in("cluster_type")
		},
		func() *violation { return checkUpstreamTLS(t, c.GetTransportSocket()).in("transport_socket") },
		func() *violation { return outlierRules.check(t, c.GetOutlierDetection()).in("outlier_detection") },
		func() *violation {
			if c.GetLoadBalancingPolicy() == nil {
				return nil
			}
			return checkBalancing(t, c.GetLoadBalancingPolicy(), 0).in("load_balancing_policy")
		},
	)
}

var outlierRules = rules[*clusterv3.OutlierDetection]{
	{"grpc-outlier-durations", "A50", "interval, base_ejection_time and max_ejection_time are durations of at least 0", func(_ *tasting, o *clusterv3.OutlierDetection) bool {
		return notNegative(o.GetInterval()) && notNegative(o.GetBaseEjectionTime()) && notNegative(o.GetMaxEjectionTime())
	}},
	{"grpc-outlier-percentages", "A50", "max_ejection_percent, enforcing_success_rate, failure_percentage_threshold and enforcing_failure_percentage are at most 100", func(_ *tasting, o *clusterv3.OutlierDetection) bool {
		return percent(o.GetMaxEjectionPercent()) && percent(o.GetEnforcingSuccessRate()) && percent(o.GetFailurePercentageThreshold()) && percent(o.GetEnforcingFailurePercentage())
	}},
}

func notNegative(d *durationpb.Duration) bool {
	return d == nil || d.CheckValid() == nil && d.AsDuration() >= 0
}

func percent(n *wrapperspb.UInt32Value) bool { return n.GetValue() <= 100 }

// policyDepth is the depth to which gRPC reads nested load balancing policies. gRFC A52.
const policyDepth = 16

// These are the load balancing policies that every gRPC client has.
const (
	policies     = xdstype.Prefix + "envoy.extensions.load_balancing_policies."
	ringHash     = policies + "ring_hash.v3.RingHash"
	leastRequest = policies + "least_request.v3.LeastRequest"
	wrrLocality  = policies + "wrr_locality.v3.WrrLocality"
)

// supportedPolicies are the load balancing policies that gRPC supports. The policy in a TypedStruct may be known only
// to the client.
var supportedPolicies = map[string]bool{
	ringHash: true, leastRequest: true, wrrLocality: true,
	policies + "client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin": true,
	policies + "pick_first.v3.PickFirst":                                          true,
	policies + "round_robin.v3.RoundRobin":                                        true,
}

var typedStructs = map[string]bool{
	xdstype.Prefix + "xds.type.v3.TypedStruct": true, xdstype.Prefix + "udpa.type.v1.TypedStruct": true,
}

// checkBalancing checks the first policy of a list that gRPC supports, which is the one that gRPC uses.
func checkBalancing(t *tasting, p *clusterv3.LoadBalancingPolicy, depth int) *violation {
	if depth >= policyDepth {
		return policyDepthRules.check(t, p)
	}
	for i, policy := range p.GetPolicies() {
		config := policy.GetTypedExtensionConfig().GetTypedConfig()
		switch {
		case typedStructs[config.GetTypeUrl()]:
			return t.undecodable("A52", config).at("policies", i)
		case supportedPolicies[config.GetTypeUrl()]:
			return first(
				func() *violation { return t.undecodable("A52", config) },
				func() *violation { return policyRules.check(t, config) },
				func() *violation {
					if inner, ok := openAs[*wrrlocalityv3.WrrLocality](t, config); ok {
						return checkBalancing(t, inner.GetEndpointPickingPolicy(), depth+1).in("endpoint_picking_policy")
					}
					return nil
				},
			).at("policies", i)
		}
	}
	return noSupportedPolicy.check(t, p)
}

var policyDepthRules = rules[*clusterv3.LoadBalancingPolicy]{
	{"grpc-policy-depth", "A52", "policies are nested at most 16 deep", func(*tasting, *clusterv3.LoadBalancingPolicy) bool { return false }},
}

var noSupportedPolicy = rules[*clusterv3.LoadBalancingPolicy]{
	{"grpc-supported-policy", "A52", "gRPC supports one of the policies", func(*tasting, *clusterv3.LoadBalancingPolicy) bool { return false }},
}

var policyRules = rules[*anypb.Any]{
	{"grpc-policy-ring-hash-function", "A42, A52", "RingHash.hash_function is XX_HASH", func(t *tasting, a *anypb.Any) bool {
		p, ok := openAs[*ringhashv3.RingHash](t, a)
		return !ok || p.GetHashFunction() == ringhashv3.RingHash_XX_HASH
	}},
	{"grpc-policy-ring-sizes", "A42, A52", "RingHash.minimum_ring_size and maximum_ring_size are at most 8388608, and the minimum is not above the maximum", func(t *tasting, a *anypb.Any) bool {
		p, ok := openAs[*ringhashv3.RingHash](t, a)
		least, most := ringSize(p.GetMinimumRingSize(), 1024), ringSize(p.GetMaximumRingSize(), largestRing)
		return !ok || least <= most && most <= largestRing
	}},
	{"grpc-policy-choices", "A48, A52", "LeastRequest.choice_count is at least 2", func(t *tasting, a *anypb.Any) bool {
		p, ok := openAs[*leastrequestv3.LeastRequest](t, a)
		return !ok || p.GetChoiceCount() == nil || p.GetChoiceCount().GetValue() >= 2
	}},
	{"grpc-policy-penalty", "A58", "ClientSideWeightedRoundRobin.error_utilization_penalty is at least 0", func(t *tasting, a *anypb.Any) bool {
		p, ok := openAs[*wrrv3.ClientSideWeightedRoundRobin](t, a)
		return !ok || penaltyIsValid(p.GetErrorUtilizationPenalty().GetValue())
	}},
}

const largestRing = 8 << 20

// penaltyIsValid reports whether a number is finite and not negative.
func penaltyIsValid(n float32) bool { return n >= 0 && !math.IsInf(float64(n), 1) }

func ringSize(n *wrapperspb.UInt64Value, otherwise uint64) uint64 {
	if n.GetValue() == 0 {
		return otherwise
	}
	return n.GetValue()
}
