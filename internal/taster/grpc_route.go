package taster

import (
	"maps"
	"math"
	"regexp/syntax"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file checks RouteConfigurations as gRPC does.

// mostRegexps is how many bytes of regular expressions are parsed for one resource. Those beyond it pass.
const mostRegexps = 256 << 10

// lookupPlugin is the cluster specifier plugin that gRPC has. It rejects others if they are not optional.
const lookupPlugin = xdstype.Prefix + "grpc.lookup.v1.RouteLookupClusterSpecifier"

var routesRules = rules[*routev3.RouteConfiguration]{
	{"grpc-specifier-plugin-known", "A28", "each cluster_specifier_plugin that is not optional is a RouteLookupClusterSpecifier", func(_ *tasting, r *routev3.RouteConfiguration) bool {
		for _, p := range r.GetClusterSpecifierPlugins() {
			if !p.GetIsOptional() && p.GetExtension().GetTypedConfig().GetTypeUrl() != lookupPlugin {
				return false
			}
		}
		return true
	}},
}

var routesNameRules = rules[*routev3.RouteConfiguration]{
	{"grpc-routes-name", "A27", "name is set", func(_ *tasting, r *routev3.RouteConfiguration) bool { return r.GetName() != "" }},
}

var routeRules = rules[*routev3.Route]{
	{"grpc-route-match", "A28", "match is set", func(_ *tasting, r *routev3.Route) bool { return r.GetMatch() != nil }},
	{"grpc-path-matcher", "A28", "match has a prefix, a path or a safe_regex", func(_ *tasting, r *routev3.Route) bool {
		switch r.GetMatch().GetPathSpecifier().(type) {
		case *routev3.RouteMatch_Prefix, *routev3.RouteMatch_Path, *routev3.RouteMatch_SafeRegex:
			return true
		}
		return false
	}},
	{"grpc-path-regex", "A28", "match.safe_regex is a regular expression", func(t *tasting, r *routev3.Route) bool {
		return t.regexpIsValid(r.GetMatch().GetSafeRegex().GetRegex())
	}},
}

var headerRules = rules[*routev3.HeaderMatcher]{
	{"grpc-header-matcher", "A28", "gRPC supports the header matcher", func(_ *tasting, h *routev3.HeaderMatcher) bool {
		switch h.GetHeaderMatchSpecifier().(type) {
		case *routev3.HeaderMatcher_ExactMatch, *routev3.HeaderMatcher_SafeRegexMatch, *routev3.HeaderMatcher_RangeMatch,
			*routev3.HeaderMatcher_PresentMatch, *routev3.HeaderMatcher_PrefixMatch, *routev3.HeaderMatcher_SuffixMatch,
			*routev3.HeaderMatcher_ContainsMatch, *routev3.HeaderMatcher_StringMatch:
			return true
		}
		return false
	}},
	{"grpc-header-regex", "A28", "safe_regex_match is a regular expression", func(t *tasting, h *routev3.HeaderMatcher) bool {
		return t.regexpIsValid(h.GetSafeRegexMatch().GetRegex())
	}},
	{"grpc-header-string-match", "A63", "string_match has a matcher that is not empty, or a regular expression", func(t *tasting, h *routev3.HeaderMatcher) bool {
		m, ok := h.GetHeaderMatchSpecifier().(*routev3.HeaderMatcher_StringMatch)
		return !ok || m.StringMatch != nil && t.matcherIsValid(m.StringMatch)
	}},
	{"grpc-header-not-empty", "A28", "prefix_match, suffix_match and contains_match are not empty", func(_ *tasting, h *routev3.HeaderMatcher) bool {
		switch m := h.GetHeaderMatchSpecifier().(type) {
		case *routev3.HeaderMatcher_PrefixMatch:
			return m.PrefixMatch != ""
		case *routev3.HeaderMatcher_SuffixMatch:
			return m.SuffixMatch != ""
		case *routev3.HeaderMatcher_ContainsMatch:
			return m.ContainsMatch != ""
		}
		return true
	}},
}

var actionRules = rules[*routev3.RouteAction]{
	{"grpc-cluster-weights", "A28", "the weights of weighted_clusters add up to at least 1 and at most 4294967295", func(_ *tasting, a *routev3.RouteAction) bool {
		weighted, ok := a.GetClusterSpecifier().(*routev3.RouteAction_WeightedClusters)
		if !ok {
			return true
		}
		var sum uint64
		for _, c := range weighted.WeightedClusters.GetClusters() {
			sum += uint64(c.GetWeight().GetValue())
		}
		return sum > 0 && sum <= math.MaxUint32
	}},
	{"grpc-hash-policy-regex", "A42", "regex_rewrite of a hash_policy has a regular expression", func(t *tasting, a *routev3.RouteAction) bool {
		for _, p := range a.GetHashPolicy() {
			if !t.regexpIsValid(p.GetHeader().GetRegexRewrite().GetPattern().GetRegex()) {
				return false
			}
		}
		return true
	}},
}

var retryRules = rules[*routev3.RetryPolicy]{
	{"grpc-retries", "A44", "num_retries is at least 1", func(_ *tasting, r *routev3.RetryPolicy) bool {
		return r.GetNumRetries() == nil || r.GetNumRetries().GetValue() >= 1
	}},
	{"grpc-retry-back-off", "A44", "retry_back_off has a base_interval above 0, and a max_interval above 0 if set", func(_ *tasting, r *routev3.RetryPolicy) bool {
		b := r.GetRetryBackOff()
		return b == nil || positive(b.GetBaseInterval()) && (b.GetMaxInterval() == nil || positive(b.GetMaxInterval()))
	}},
}

func positive(d *durationpb.Duration) bool { return d.AsDuration() > 0 }

func checkRoutes(t *tasting, r *routev3.RouteConfiguration) *violation {
	if v := routesNameRules.check(t, r); v != nil {
		return v
	}
	return checkInlineRoutes(t, r)
}

// checkInlineRoutes checks a RouteConfiguration that does not need a name.
func checkInlineRoutes(t *tasting, r *routev3.RouteConfiguration) *violation {
	if v := routesRules.check(t, r); v != nil {
		return v
	}
	plugins := map[string]bool{}
	for _, p := range r.GetClusterSpecifierPlugins() {
		plugins[p.GetExtension().GetName()] = true
	}
	return eachOf("virtual_hosts", r.GetVirtualHosts(), func(h *routev3.VirtualHost) *violation {
		return first(
			func() *violation {
				return eachOf("routes", h.GetRoutes(), func(route *routev3.Route) *violation { return checkRoute(t, route, plugins) })
			},
			func() *violation { return retryRules.check(t, h.GetRetryPolicy()).in("retry_policy") },
			func() *violation { return checkOverrides(t, h.GetTypedPerFilterConfig()) },
		)
	})
}

func checkRoute(t *tasting, r *routev3.Route, plugins map[string]bool) *violation {
	match := r.GetMatch()
	if len(match.GetQueryParameters()) != 0 {
		return nil // gRPC ignores the route
	}
	return first(
		func() *violation { return routeRules.check(t, r) },
		func() *violation {
			return eachOf("match.headers", match.GetHeaders(), func(h *routev3.HeaderMatcher) *violation { return headerRules.check(t, h) })
		},
		func() *violation { return checkAction(t, r.GetRoute(), plugins).in("route") },
		func() *violation {
			if ignored(r, plugins) {
				return nil
			}
			return checkOverrides(t, r.GetTypedPerFilterConfig())
		},
	)
}

// ignored reports whether gRPC ignores a route because of its action.
func ignored(r *routev3.Route, plugins map[string]bool) bool {
	a, ok := r.GetAction().(*routev3.Route_Route)
	if !ok {
		return false
	}
	switch of := a.Route.GetClusterSpecifier().(type) {
	case *routev3.RouteAction_Cluster, *routev3.RouteAction_WeightedClusters:
		return false
	case *routev3.RouteAction_ClusterSpecifierPlugin:
		return plugins[of.ClusterSpecifierPlugin] // perhaps
	}
	return true
}

func checkAction(t *tasting, a *routev3.RouteAction, plugins map[string]bool) *violation {
	if a == nil {
		return nil
	}
	if v := actionRules.check(t, a); v != nil {
		return v
	}
	switch of := a.GetClusterSpecifier().(type) {
	case *routev3.RouteAction_Cluster:
	case *routev3.RouteAction_WeightedClusters:
		v := eachOf("weighted_clusters.clusters", of.WeightedClusters.GetClusters(), func(c *routev3.WeightedCluster_ClusterWeight) *violation {
			if c.GetWeight().GetValue() == 0 {
				return nil
			}
			return checkOverrides(t, c.GetTypedPerFilterConfig())
		})
		if v != nil {
			return v
		}
	case *routev3.RouteAction_ClusterSpecifierPlugin:
		if !plugins[of.ClusterSpecifierPlugin] {
			return pluginRules.check(t, of)
		}
		return nil
	default:
		return nil // gRPC ignores the route
	}
	return retryRules.check(t, a.GetRetryPolicy()).in("retry_policy")
}

var pluginRules = rules[*routev3.RouteAction_ClusterSpecifierPlugin]{
	{"grpc-specifier-plugin-named", "A28", "cluster_specifier_plugin names one of the cluster_specifier_plugins", func(*tasting, *routev3.RouteAction_ClusterSpecifierPlugin) bool { return false }},
}

// regexpIsValid reports whether gRPC can use a regular expression. An empty expression counts as missing.
func (t *tasting) regexpIsValid(expr string) bool {
	if expr == "" || t.regexps < len(expr) {
		return true
	}
	t.regexps -= len(expr)
	_, err := syntax.Parse(expr, syntax.Perl)
	return err == nil
}

// checkOverrides checks typed_per_filter_config.
func checkOverrides(t *tasting, configs map[string]*anypb.Any) *violation {
	for _, filter := range slices.Sorted(maps.Keys(configs)) { // sorted, so that the first violation is always the same
		if v := checkOverride(t, configs[filter]); v != nil {
			return v.in("typed_per_filter_config")
		}
	}
	return nil
}

func checkOverride(t *tasting, config *anypb.Any) *violation {
	optional := false
	if v := t.undecodableFilter(config); v != nil {
		return v
	}
	if wrapped, ok := openAs[*routev3.FilterConfig](t, config); ok {
		config, optional = wrapped.GetConfig(), wrapped.GetIsOptional()
		if v := t.undecodableFilter(config); v != nil {
			return v
		}
	}
	return overrideRules.check(t, override{config, optional})
}

// override is an HTTP filter's configuration for a part of the routes.
type override struct {
	config   *anypb.Any
	optional bool
}

var overrideRules = rules[override]{
	{"grpc-override-known", "A39", "each configuration that is not optional is of an HTTP filter that gRPC supports", func(t *tasting, o override) bool {
		_, known := filterOf(t, o.config)
		return known || o.optional
	}},
	{"grpc-override-router", "A39", "there is no configuration of the router", func(t *tasting, o override) bool {
		f, known := filterOf(t, o.config)
		return !known || !f.terminal
	}},
	{"grpc-rbac-matchers", "A41", "an RBAC policy has no condition, and no matcher for grpc- headers or :scheme", func(t *tasting, o override) bool {
		return rbacIsAllowed(rbacIn(t, o.config))
	}},
	{"grpc-override-config", "A39", "the configuration of an HTTP filter has the type for a part of the routes", func(t *tasting, o override) bool {
		return isFor(t, o.config, ofRoutes)
	}},
	{"grpc-rbac-per-route", "A41", "an RBACPerRoute has an rbac, without which gRPC's Go servers panic", func(t *tasting, o override) bool {
		p, ok := openAs[*rbacv3.RBACPerRoute](t, o.config)
		return !ok || p.GetRbac() != nil
	}},
	{"grpc-rbac-policies", "A41, A59", "RBAC allows or denies by permissions and principals that gRPC knows, and has audit loggers that it knows", func(t *tasting, o override) bool {
		return t.rbacIsKnown(rbacIn(t, o.config))
	}},
}
