package taster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	wrrlocalityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// These are the parts of the examples: good resources, and changes of them.

func pack(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return a
}

// garbage is an Any whose content is not a message of its type.
func garbage(of proto.Message) *anypb.Any {
	return &anypb.Any{TypeUrl: xdstype.Prefix + string(of.ProtoReflect().Descriptor().FullName()), Value: []byte{0x0a, 0xff}}
}

var ads = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}

var fromFile = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Path{Path: "/file"}}

func goodCluster() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 cartName,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads},
	}
}

func cluster(change func(*clusterv3.Cluster)) *clusterv3.Cluster {
	c := goodCluster()
	change(c)
	return c
}

func dnsCluster(change func(*endpointv3.ClusterLoadAssignment)) *clusterv3.Cluster {
	at := &endpointv3.ClusterLoadAssignment{ClusterName: cartName, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{lbEndpoint("cart.example.com", 80)}}}}
	change(at)
	return cluster(func(c *clusterv3.Cluster) {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		c.EdsClusterConfig, c.LoadAssignment = nil, at
	})
}

func aggregate(config *anypb.Any) *clusterv3.Cluster {
	return cluster(func(c *clusterv3.Cluster) {
		c.EdsClusterConfig = nil
		c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.clusters.aggregate", TypedConfig: config}}
	})
}

func upstreamSocket(change func(*tlsv3.CommonTlsContext)) *clusterv3.Cluster {
	common := &tlsv3.CommonTlsContext{ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
		CaCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{InstanceName: "roots"},
	}}}
	change(common)
	return withSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: common})
}

func withSocket(config proto.Message) *clusterv3.Cluster {
	return cluster(func(c *clusterv3.Cluster) { c.TransportSocket = socketWith(pack(config)) })
}

func socketWith(config *anypb.Any) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
}

func balanced(policies ...*anypb.Any) *clusterv3.Cluster {
	return cluster(func(c *clusterv3.Cluster) { c.LoadBalancingPolicy = balancing(policies...) })
}

func balancing(policies ...*anypb.Any) *clusterv3.LoadBalancingPolicy {
	p := &clusterv3.LoadBalancingPolicy{}
	for _, policy := range policies {
		p.Policies = append(p.Policies, &clusterv3.LoadBalancingPolicy_Policy{TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: "policy", TypedConfig: policy}})
	}
	return p
}

// nestedPolicies returns round_robin nested in depth wrr_locality policies.
func nestedPolicies(depth int) *anypb.Any {
	policy := pack(&roundrobinv3.RoundRobin{})
	for range depth {
		policy = pack(&wrrlocalityv3.WrrLocality{EndpointPickingPolicy: balancing(policy)})
	}
	return policy
}

func uint32Value(n uint32) *wrapperspb.UInt32Value { return wrapperspb.UInt32(n) }

func lbEndpoint(host string, port uint32) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(host, port)}}}
}

func address(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func locality(zone string, priority uint32, endpoints ...*endpointv3.LbEndpoint) *endpointv3.LocalityLbEndpoints {
	return &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Zone: zone}, Priority: priority, LoadBalancingWeight: uint32Value(1), LbEndpoints: endpoints}
}

func endpoints(localities ...*endpointv3.LocalityLbEndpoints) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{ClusterName: cartName, Endpoints: localities}
}

func weighted(e *endpointv3.LbEndpoint, weight uint32) *endpointv3.LbEndpoint {
	e.LoadBalancingWeight = uint32Value(weight)
	return e
}

func goodRoutes() *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: routesName, VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{goodRoute()}}}}
}

func goodRoute() *routev3.Route {
	return &routev3.Route{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cartName}}},
	}
}

func routes(change func(*routev3.RouteConfiguration)) *routev3.RouteConfiguration {
	r := goodRoutes()
	change(r)
	return r
}

// route is a RouteConfiguration with one more route, at the front.
func route(change func(*routev3.Route)) *routev3.RouteConfiguration {
	return routes(func(r *routev3.RouteConfiguration) {
		more := goodRoute()
		change(more)
		r.VirtualHosts[0].Routes = []*routev3.Route{more, goodRoute()}
	})
}

func header(h *routev3.HeaderMatcher) *routev3.RouteConfiguration {
	h.Name = "h"
	return route(func(r *routev3.Route) { r.Match.Headers = []*routev3.HeaderMatcher{h} })
}

func stringMatch(m *matcherv3.StringMatcher) *routev3.RouteConfiguration {
	return header(&routev3.HeaderMatcher{HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}})
}

func retries(p *routev3.RetryPolicy) *routev3.RouteConfiguration {
	return route(func(r *routev3.Route) { r.GetRoute().RetryPolicy = p })
}

func clusters(weights ...uint32) *routev3.RouteConfiguration {
	return route(func(r *routev3.Route) {
		w := &routev3.WeightedCluster{}
		for _, weight := range weights {
			w.Clusters = append(w.Clusters, &routev3.WeightedCluster_ClusterWeight{Name: cartName, Weight: uint32Value(weight)})
		}
		r.GetRoute().ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: w}
	})
}

func overrides(config *anypb.Any) *routev3.RouteConfiguration {
	return route(func(r *routev3.Route) { r.TypedPerFilterConfig = map[string]*anypb.Any{"filter": config} })
}

func regex(text string) *matcherv3.RegexMatcher { return &matcherv3.RegexMatcher{Regex: text} }

func goodHCM() *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{
		StatPrefix:     "x",
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads, RouteConfigName: routesName}},
		HttpFilters:    []*hcmv3.HttpFilter{httpFilterWith("router", pack(&routerv3.Router{}))},
	}
}

func httpFilterWith(name string, config *anypb.Any) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}}
}

func clientListener(change func(*hcmv3.HttpConnectionManager)) *listenerv3.Listener {
	hcm := goodHCM()
	change(hcm)
	return apiListener(pack(hcm))
}

func apiListener(config *anypb.Any) *listenerv3.Listener {
	return &listenerv3.Listener{Name: clientName, ApiListener: &listenerv3.ApiListener{ApiListener: config}}
}

// filtered is a Listener with HTTP filters before the router.
func filtered(filters ...*hcmv3.HttpFilter) *listenerv3.Listener {
	return clientListener(func(h *hcmv3.HttpConnectionManager) { h.HttpFilters = append(filters, h.HttpFilters...) })
}

func goodChain() *listenerv3.FilterChain {
	return &listenerv3.FilterChain{Filters: []*listenerv3.Filter{networkFilter("hcm", pack(serverHCM()))}}
}

func serverHCM(filters ...*hcmv3.HttpFilter) *hcmv3.HttpConnectionManager {
	h := goodHCM()
	h.HttpFilters = append(filters, h.HttpFilters...)
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
	}}}}}}
	return h
}

func networkFilter(name string, config *anypb.Any) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}}
}

func serverListener(change func(*listenerv3.Listener)) *listenerv3.Listener {
	l := &listenerv3.Listener{Name: serverName, Address: address("127.0.0.1", 1), FilterChains: []*listenerv3.FilterChain{goodChain()}}
	change(l)
	return l
}

func filterChain(change func(*listenerv3.FilterChain)) *listenerv3.Listener {
	return serverListener(func(l *listenerv3.Listener) { change(l.FilterChains[0]) })
}

func matching(matches ...*listenerv3.FilterChainMatch) *listenerv3.Listener {
	return serverListener(func(l *listenerv3.Listener) {
		l.FilterChains = nil
		for _, m := range matches {
			c := goodChain()
			c.FilterChainMatch = m
			l.FilterChains = append(l.FilterChains, c)
		}
	})
}

func prefixes(prefix string, length uint32) []*corev3.CidrRange {
	return []*corev3.CidrRange{{AddressPrefix: prefix, PrefixLen: uint32Value(length)}}
}

func downstreamSocket(change func(*tlsv3.DownstreamTlsContext)) *listenerv3.Listener {
	d := &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{InstanceName: "own"}}}
	change(d)
	return filterChain(func(c *listenerv3.FilterChain) { c.TransportSocket = socketWith(pack(d)) })
}

func rbac(p *rbacconfigv3.Policy) *anypb.Any {
	return pack(&rbacv3.RBAC{Rules: &rbacconfigv3.RBAC{Policies: map[string]*rbacconfigv3.Policy{"p": p}}})
}

func onHeader(name string) *rbacconfigv3.Policy {
	return &rbacconfigv3.Policy{
		Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_NotRule{NotRule: &rbacconfigv3.Permission{Rule: &rbacconfigv3.Permission_Header{
			Header: &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}},
		}}}}},
		Principals: []*rbacconfigv3.Principal{{Identifier: &rbacconfigv3.Principal_Any{Any: true}}},
	}
}

func onServer(filters ...*hcmv3.HttpFilter) *listenerv3.Listener {
	return filterChain(func(c *listenerv3.FilterChain) {
		c.Filters = []*listenerv3.Filter{networkFilter("hcm", pack(serverHCM(filters...)))}
	})
}

var negative = &durationpb.Duration{Seconds: -1}
