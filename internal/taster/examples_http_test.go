package taster

import (
	"math"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	quicv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/quic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	expr "google.golang.org/genproto/googleapis/api/expr/v1alpha1"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// These are Routes and Listeners in which gRPC rejects one thing each.

var routesExamples = []example{
	{name: "routes", resource: goodRoutes()},
	{name: "every header matcher", resource: route(func(r *routev3.Route) {
		for _, m := range []*routev3.HeaderMatcher{
			{HeaderMatchSpecifier: &routev3.HeaderMatcher_ExactMatch{ExactMatch: "e"}}, {HeaderMatchSpecifier: &routev3.HeaderMatcher_SafeRegexMatch{SafeRegexMatch: regex("a+")}},
			{HeaderMatchSpecifier: &routev3.HeaderMatcher_RangeMatch{RangeMatch: &typev3.Int64Range{End: 3}}}, {HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{}},
			{HeaderMatchSpecifier: &routev3.HeaderMatcher_PrefixMatch{PrefixMatch: "p"}}, {HeaderMatchSpecifier: &routev3.HeaderMatcher_SuffixMatch{SuffixMatch: "s"}},
			{HeaderMatchSpecifier: &routev3.HeaderMatcher_ContainsMatch{ContainsMatch: "c"}},
			{HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{}}}},
		} {
			m.Name = "h"
			r.Match.Headers = append(r.Match.Headers, m)
		}
	})},
	{name: "weighted clusters", resource: clusters(0, 1, 2)},
	{name: "a route that gRPC ignores for its query", resource: route(func(r *routev3.Route) {
		r.Match = &routev3.RouteMatch{QueryParameters: []*routev3.QueryParameterMatcher{{Name: "q"}}}
	})},
	{name: "a route that gRPC ignores for its cluster", resource: route(func(r *routev3.Route) {
		r.GetRoute().ClusterSpecifier = &routev3.RouteAction_ClusterHeader{ClusterHeader: "h"}
		r.GetRoute().RetryPolicy = &routev3.RetryPolicy{NumRetries: uint32Value(0)}
		r.TypedPerFilterConfig = map[string]*anypb.Any{"lua": pack(&luav3.LuaPerRoute{})}
	})},
	{name: "a redirect", resource: route(func(r *routev3.Route) { r.Action = &routev3.Route_Redirect{Redirect: &routev3.RedirectAction{}} })},
	{name: "a fault", resource: overrides(pack(&faultv3.HTTPFault{}))},
	{name: "Lua, as far as gRPC can", resource: overrides(pack(&routev3.FilterConfig{IsOptional: true, Config: pack(&luav3.LuaPerRoute{})}))},
	{name: "garbage of a filter that gRPC does not have, optional", resource: overrides(pack(&routev3.FilterConfig{IsOptional: true, Config: garbage(&luav3.LuaPerRoute{})}))},
	{name: "retries", resource: retries(&routev3.RetryPolicy{RetryOn: "unavailable", NumRetries: uint32Value(1), RetryBackOff: &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(time.Second)}})},

	{name: "no name", broken: "name is set", resource: routes(func(r *routev3.RouteConfiguration) { r.Name = "" })},
	{name: "a plugin for clusters", broken: "each cluster_specifier_plugin that is not optional is a RouteLookupClusterSpecifier", resource: routes(func(r *routev3.RouteConfiguration) {
		r.ClusterSpecifierPlugins = []*routev3.ClusterSpecifierPlugin{{Extension: &corev3.TypedExtensionConfig{Name: "p", TypedConfig: pack(&luav3.Lua{})}}}
	})},
	{name: "a plugin of no name", broken: "cluster_specifier_plugin names one of the cluster_specifier_plugins", resource: route(func(r *routev3.Route) {
		r.GetRoute().ClusterSpecifier = &routev3.RouteAction_ClusterSpecifierPlugin{ClusterSpecifierPlugin: "p"}
	})},
	{name: "no match", broken: "match is set", resource: route(func(r *routev3.Route) { r.Match = nil })},
	{name: "a match of nothing", broken: "match has a prefix, a path or a safe_regex", resource: route(func(r *routev3.Route) { r.Match = &routev3.RouteMatch{} })},
	{name: "a path in parts", broken: "match has a prefix, a path or a safe_regex", resource: route(func(r *routev3.Route) {
		r.Match.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: "/a"}
	})},
	{name: "a path that is no expression", broken: "match.safe_regex is a regular expression", resource: route(func(r *routev3.Route) {
		r.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex("(")}
	})},
	{name: "no header matcher", broken: "gRPC supports the header matcher", resource: header(&routev3.HeaderMatcher{})},
	{name: "a header that is no expression", broken: "safe_regex_match is a regular expression", resource: header(&routev3.HeaderMatcher{HeaderMatchSpecifier: &routev3.HeaderMatcher_SafeRegexMatch{SafeRegexMatch: regex("(")}})},
	{name: "a matcher of nothing", broken: "string_match has a matcher that is not empty, or a regular expression", resource: stringMatch(&matcherv3.StringMatcher{})},
	{name: "a matcher of an empty suffix", broken: "string_match has a matcher that is not empty, or a regular expression", resource: stringMatch(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{}})},
	{name: "an empty prefix", broken: "prefix_match, suffix_match and contains_match are not empty", resource: header(&routev3.HeaderMatcher{HeaderMatchSpecifier: &routev3.HeaderMatcher_PrefixMatch{}})},
	{name: "an empty suffix", broken: "prefix_match, suffix_match and contains_match are not empty", resource: header(&routev3.HeaderMatcher{HeaderMatchSpecifier: &routev3.HeaderMatcher_SuffixMatch{}})},
	{name: "weights of nothing", broken: "the weights of weighted_clusters add up to at least 1 and at most 4294967295", resource: clusters(0)},
	{name: "weights of too much", broken: "the weights of weighted_clusters add up to at least 1 and at most 4294967295", resource: clusters(math.MaxUint32, 1)},
	{name: "a hash that is no expression", broken: "regex_rewrite of a hash_policy has a regular expression", resource: route(func(r *routev3.Route) {
		r.GetRoute().HashPolicy = []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{
			HeaderName: "h", RegexRewrite: &matcherv3.RegexMatchAndSubstitute{Pattern: regex("(")},
		}}}}
	})},
	{name: "no retries", broken: "num_retries is at least 1", resource: retries(&routev3.RetryPolicy{NumRetries: uint32Value(0)})},
	{name: "no retries of a host", broken: "num_retries is at least 1", resource: routes(func(r *routev3.RouteConfiguration) {
		r.VirtualHosts[0].RetryPolicy = &routev3.RetryPolicy{NumRetries: uint32Value(0)}
	})},
	{name: "a wait of nothing", broken: "retry_back_off has a base_interval above 0, and a max_interval above 0 if set", resource: retries(&routev3.RetryPolicy{RetryBackOff: &routev3.RetryPolicy_RetryBackOff{}})},
	{name: "a longest wait of nothing", broken: "retry_back_off has a base_interval above 0, and a max_interval above 0 if set", resource: retries(&routev3.RetryPolicy{RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
		BaseInterval: durationpb.New(time.Second), MaxInterval: durationpb.New(0),
	}})},
	{name: "Lua", broken: "each configuration that is not optional is of an HTTP filter that gRPC supports", resource: overrides(pack(&luav3.LuaPerRoute{}))},
	{name: "Lua of a cluster", broken: "each configuration that is not optional is of an HTTP filter that gRPC supports", resource: routes(func(r *routev3.RouteConfiguration) {
		r.VirtualHosts[0].Routes = clusters(1).VirtualHosts[0].Routes
		r.VirtualHosts[0].Routes[0].GetRoute().GetWeightedClusters().Clusters[0].TypedPerFilterConfig = map[string]*anypb.Any{"lua": pack(&luav3.LuaPerRoute{})}
	})},
	{name: "a fault that is garbage", broken: "in virtual_hosts[0].routes[0].typed_per_filter_config, it requires that an Any is a message of its type", resource: overrides(garbage(&faultv3.HTTPFault{}))},
	{name: "a router of a route", broken: "there is no configuration of the router", resource: overrides(pack(&routerv3.Router{}))},
	{name: "RBAC of a route that is not there", broken: "an RBACPerRoute has an rbac, without which gRPC's Go servers panic", resource: overrides(pack(&rbacv3.RBACPerRoute{}))},
	{name: "RBAC of a route as that of a filter", broken: "the configuration of an HTTP filter has the type for a part of the routes", resource: overrides(pack(&rbacv3.RBAC{}))},
	{name: "RBAC of a route for a range of no address", broken: "RBAC allows or denies by permissions and principals that gRPC knows, and has audit loggers that it knows", resource: overrides(pack(&rbacv3.RBACPerRoute{Rbac: &rbacv3.RBAC{
		Rules: &rbacconfigv3.RBAC{Policies: map[string]*rbacconfigv3.Policy{"p": {
			Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_DestinationIp{DestinationIp: prefixes("10.0.0.0", 33)[0]}}},
		}}},
	}}))},
	{name: "RBAC of a route by a header of gRPC's", broken: "an RBAC policy has no condition, and no matcher for grpc- headers or :scheme", resource: overrides(pack(&rbacv3.RBACPerRoute{Rbac: &rbacv3.RBAC{
		Rules: &rbacconfigv3.RBAC{Policies: map[string]*rbacconfigv3.Policy{"p": onHeader("Grpc-Timeout")}},
	}}))},
}

var listenerExamples = []example{
	{name: "a listener of a client", resource: clientListener(func(*hcmv3.HttpConnectionManager) {})},
	{name: "filters", resource: filtered(httpFilterWith("fault", pack(&faultv3.HTTPFault{})))},
	{name: "a filter that gRPC does not have, optional", resource: filtered(optional(httpFilterWith("lua", pack(&luav3.Lua{}))))},
	{name: "a filter for servers, optional", resource: filtered(optional(httpFilterWith("rbac", rbac(onHeader("x")))))},

	{name: "no name", broken: "name is set", resource: func() *listenerv3.Listener {
		l := clientListener(func(*hcmv3.HttpConnectionManager) {})
		l.Name = ""
		return l
	}()},
	{name: "another manager", broken: "api_listener is an HttpConnectionManager", resource: apiListener(pack(&tcpproxyv3.TcpProxy{}))},
	{name: "garbage", broken: "in api_listener, it requires that an Any is a message of its type", resource: apiListener(garbage(&hcmv3.HttpConnectionManager{}))},
	{name: "trusted hops", broken: "xff_num_trusted_hops is 0", resource: clientListener(func(h *hcmv3.HttpConnectionManager) { h.XffNumTrustedHops = 1 })},
	{name: "detection of addresses", broken: "original_ip_detection_extensions is empty", resource: clientListener(func(h *hcmv3.HttpConnectionManager) {
		h.OriginalIpDetectionExtensions = []*corev3.TypedExtensionConfig{{Name: "x"}}
	})},
	{name: "no routes", broken: "there is rds or a route_config", resource: clientListener(func(h *hcmv3.HttpConnectionManager) { h.RouteSpecifier = nil })},
	{name: "scoped routes", broken: "there is rds or a route_config", resource: clientListener(func(h *hcmv3.HttpConnectionManager) {
		h.RouteSpecifier = &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmv3.ScopedRoutes{}}
	})},
	{name: "RDS from a file", broken: "rds.config_source is ads or self", resource: clientListener(func(h *hcmv3.HttpConnectionManager) { h.GetRds().ConfigSource = fromFile })},
	{name: "RDS of no name", broken: "rds.route_config_name is set", resource: clientListener(func(h *hcmv3.HttpConnectionManager) { h.GetRds().RouteConfigName = "" })},
	{name: "bad routes", broken: "in api_listener.route_config.virtual_hosts[0].routes[0], it requires that match is set", resource: clientListener(func(h *hcmv3.HttpConnectionManager) {
		h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: route(func(r *routev3.Route) { r.Match = nil })}
	})},
	{name: "a filter that gRPC does not have", broken: "gRPC supports each HTTP filter that is not optional", resource: filtered(httpFilterWith("lua", pack(&luav3.Lua{})))},
	{name: "a filter for servers", broken: "gRPC supports each HTTP filter that is not optional on this side", resource: filtered(httpFilterWith("rbac", rbac(onHeader("x"))))},
	{name: "a filter that is garbage", broken: "in api_listener.http_filters[0], it requires that an Any is a message of its type", resource: filtered(httpFilterWith("fault", garbage(&faultv3.HTTPFault{})))},
	{name: "a filter without a name", broken: "HTTP filters have distinct names", resource: filtered(httpFilterWith("", pack(&faultv3.HTTPFault{})))},
	{name: "a filter twice", broken: "HTTP filters have distinct names", resource: filtered(httpFilterWith("router", pack(&faultv3.HTTPFault{})))},
	{name: "two routers", broken: "the last HTTP filter is the only router", resource: filtered(httpFilterWith("another", pack(&routerv3.Router{})))},
	{name: "no filters", broken: "the last HTTP filter is the only router", resource: clientListener(func(h *hcmv3.HttpConnectionManager) { h.HttpFilters = nil })},
}

func optional(f *hcmv3.HttpFilter) *hcmv3.HttpFilter {
	f.IsOptional = true
	return f
}

var serverExamples = []example{
	{name: "a listener of a server", resource: serverListener(func(*listenerv3.Listener) {})},
	{name: "TLS", resource: downstreamSocket(func(*tlsv3.DownstreamTlsContext) {})},
	{name: "RBAC", resource: onServer(httpFilterWith("rbac", rbac(onHeader("x"))))},
	{name: "only a default", resource: serverListener(func(l *listenerv3.Listener) { l.DefaultFilterChain, l.FilterChains = goodChain(), nil })},
	{name: "chains for different connections", resource: matching(
		&listenerv3.FilterChainMatch{}, &listenerv3.FilterChainMatch{PrefixRanges: prefixes("10.0.0.0", 8)}, &listenerv3.FilterChainMatch{SourcePorts: []uint32{1, 2}},
		&listenerv3.FilterChainMatch{SourceType: listenerv3.FilterChainMatch_EXTERNAL}, &listenerv3.FilterChainMatch{SourcePrefixRanges: prefixes("::", 0)},
	)},
	{name: "raw_buffer, before and after any", resource: matching(&listenerv3.FilterChainMatch{}, &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"}, &listenerv3.FilterChainMatch{})},
	{name: "a chain that gRPC leaves out, which would be wrong", resource: serverListener(func(l *listenerv3.Listener) {
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{"n"}, SourcePrefixRanges: prefixes("x", 1)}})
	})},

	{name: "a filter of listeners", broken: "listener_filters is empty", resource: serverListener(func(l *listenerv3.Listener) { l.ListenerFilters = []*listenerv3.ListenerFilter{{Name: "f"}} })},
	{name: "the original destination", broken: "use_original_dst is not true", resource: serverListener(func(l *listenerv3.Listener) { l.UseOriginalDst = wrapperspb.Bool(true) })},
	{name: "no address", broken: "address is a socket_address", resource: serverListener(func(l *listenerv3.Listener) { l.Address = nil })},
	{name: "a prefix of no address", broken: "filter_chain_match has valid address prefixes", resource: matching(&listenerv3.FilterChainMatch{PrefixRanges: prefixes("x", 8)})},
	{name: "a prefix that is too long", broken: "filter_chain_match has valid address prefixes", resource: matching(&listenerv3.FilterChainMatch{SourcePrefixRanges: prefixes("10.0.0.1", 33)})},
	{name: "sources of no type", broken: "source_type of a filter_chain_match is a known value", resource: matching(&listenerv3.FilterChainMatch{SourceType: 77})},
	{name: "RDS of a server from self", broken: "rds.config_source of a server is ads", resource: filterChain(func(c *listenerv3.FilterChain) {
		h := goodHCM()
		h.GetRds().ConfigSource = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}}
		c.Filters = []*listenerv3.Filter{networkFilter("hcm", pack(h))}
	})},
	{name: "RBAC as that of a route", broken: "the configuration of an HTTP filter has the type for the filter itself", resource: onServer(httpFilterWith("rbac", pack(&rbacv3.RBACPerRoute{})))},
	{name: "RBAC of nobody that gRPC knows", broken: "RBAC allows or denies by permissions and principals that gRPC knows, and has audit loggers that it knows", resource: onServer(httpFilterWith("rbac", rbac(&rbacconfigv3.Policy{
		Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_Any{Any: true}}}, Principals: []*rbacconfigv3.Principal{{}},
	})))},
	{name: "a chain that gRPC leaves out replaces the others", broken: "there is a default_filter_chain, or a filter chain that gRPC supports", resource: matching(
		&listenerv3.FilterChainMatch{}, &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: []string{"h2"}},
	)},
	{name: "only chains that gRPC leaves out", broken: "there is a default_filter_chain, or a filter chain that gRPC supports", resource: matching(&listenerv3.FilterChainMatch{ApplicationProtocols: []string{"h2"}}, &listenerv3.FilterChainMatch{DestinationPort: uint32Value(1)})},
	{name: "two chains for all", broken: "no two filter chains match the same connections", resource: matching(&listenerv3.FilterChainMatch{}, &listenerv3.FilterChainMatch{SourcePrefixRanges: prefixes("10.0.0.0", 8)}, &listenerv3.FilterChainMatch{})},
	{name: "two chains for a prefix", broken: "no two filter chains match the same connections", resource: matching(&listenerv3.FilterChainMatch{PrefixRanges: prefixes("10.0.0.1", 8)}, &listenerv3.FilterChainMatch{PrefixRanges: prefixes("10.2.0.0", 8)})},
	{name: "a network filter without a name", broken: "network filters have distinct names", resource: filterChain(func(c *listenerv3.FilterChain) { c.Filters[0].Name = "" })},
	{name: "another network filter", broken: "each network filter is an HttpConnectionManager", resource: filterChain(func(c *listenerv3.FilterChain) {
		c.Filters = []*listenerv3.Filter{networkFilter("tcp", pack(&tcpproxyv3.TcpProxy{}))}
	})},
	{name: "no network filter", broken: "there is a network filter", resource: filterChain(func(c *listenerv3.FilterChain) { c.Filters = nil })},
	{name: "a default of nothing", broken: "in default_filter_chain, it requires that there is a network filter", resource: serverListener(func(l *listenerv3.Listener) { l.DefaultFilterChain = &listenerv3.FilterChain{} })},
	{name: "a network filter that is garbage", broken: "in filter_chains[0].filters[0], it requires that an Any is a message of its type", resource: filterChain(func(c *listenerv3.FilterChain) {
		c.Filters = []*listenerv3.Filter{networkFilter("hcm", garbage(&hcmv3.HttpConnectionManager{}))}
	})},
	{name: "a second network filter with bad filters", broken: "in filter_chains[0].filters[1], it requires that the last HTTP filter is the only router", resource: filterChain(func(c *listenerv3.FilterChain) {
		c.Filters = append(c.Filters, networkFilter("more", pack(&hcmv3.HttpConnectionManager{})))
	})},
	{name: "a filter for clients", broken: "gRPC supports each HTTP filter that is not optional on this side", resource: onServer(httpFilterWith("fault", pack(&faultv3.HTTPFault{})))},
	{name: "RBAC by a header of gRPC's", broken: "an RBAC policy has no condition, and no matcher for grpc- headers or :scheme", resource: onServer(httpFilterWith("rbac", rbac(onHeader("grpc-x"))))},
	{name: "RBAC by a condition", broken: "an RBAC policy has no condition, and no matcher for grpc- headers or :scheme", resource: onServer(httpFilterWith("rbac", rbac(func() *rbacconfigv3.Policy {
		p := onHeader("x")
		p.Condition = &expr.Expr{}
		return p
	}())))},
	{name: "a socket of another type", broken: "typed_config is a DownstreamTlsContext", resource: filterChain(func(c *listenerv3.FilterChain) {
		c.TransportSocket = socketWith(pack(&quicv3.QuicDownstreamTransport{}))
	})},
	{name: "a server without a certificate", broken: "the server's certificate comes from a tls_certificate_provider_instance", resource: downstreamSocket(func(d *tlsv3.DownstreamTlsContext) { d.CommonTlsContext.TlsCertificateProviderInstance = nil })},
	{name: "names of clients", broken: "match_subject_alt_names is empty", resource: downstreamSocket(func(d *tlsv3.DownstreamTlsContext) {
		d.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			CaCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{InstanceName: "roots"},
			MatchSubjectAltNames:          []*matcherv3.StringMatcher{{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "a"}}},
		}}
	})},
	{name: "roots in the resource", broken: "a validation context of a server has a ca_certificate_provider_instance", resource: downstreamSocket(func(d *tlsv3.DownstreamTlsContext) {
		d.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{}}
	})},
	{name: "SNI", broken: "require_sni is not true", resource: downstreamSocket(func(d *tlsv3.DownstreamTlsContext) { d.RequireSni = wrapperspb.Bool(true) })},
	{name: "OCSP", broken: "ocsp_staple_policy is LENIENT_STAPLING", resource: downstreamSocket(func(d *tlsv3.DownstreamTlsContext) { d.OcspStaplePolicy = tlsv3.DownstreamTlsContext_MUST_STAPLE })},
	{name: "certificates of clients, and no roots", broken: "with require_client_certificate, root certificates come from a provider instance", resource: downstreamSocket(func(d *tlsv3.DownstreamTlsContext) { d.RequireClientCertificate = wrapperspb.Bool(true) })},
}
