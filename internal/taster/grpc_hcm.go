package taster

import (
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

	udpatypev1 "github.com/cncf/xds/go/udpa/type/v1"
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file checks HttpConnectionManagers as gRPC does.

// side is the side that uses a listener: client or server.
type side bool

const (
	client side = false
	server side = true
)

var hcmRules = rules[*hcmv3.HttpConnectionManager]{
	{"grpc-xff-hops", "A41", "xff_num_trusted_hops is 0", func(_ *tasting, h *hcmv3.HttpConnectionManager) bool { return h.GetXffNumTrustedHops() == 0 }},
	{"grpc-no-ip-detection", "A41", "original_ip_detection_extensions is empty", func(_ *tasting, h *hcmv3.HttpConnectionManager) bool {
		return len(h.GetOriginalIpDetectionExtensions()) == 0
	}},
	{"grpc-routes-given", "A27", "there is rds or a route_config", func(_ *tasting, h *hcmv3.HttpConnectionManager) bool {
		return h.GetRds() != nil || h.GetRouteConfig() != nil
	}},
	{"grpc-rds-source", "A27", "rds.config_source is ads or self", func(_ *tasting, h *hcmv3.HttpConnectionManager) bool {
		return h.GetRds() == nil || adsOrSelf(h.GetRds().GetConfigSource())
	}},
	{"grpc-rds-name", "A27", "rds.route_config_name is set", func(_ *tasting, h *hcmv3.HttpConnectionManager) bool {
		return h.GetRds() == nil || h.GetRds().GetRouteConfigName() != ""
	}},
}

// serverHCMRules hold for servers.
var serverHCMRules = rules[*hcmv3.HttpConnectionManager]{
	{"grpc-server-rds-source", "A36", "rds.config_source of a server is ads", func(_ *tasting, h *hcmv3.HttpConnectionManager) bool {
		return h.GetRds() == nil || h.GetRds().GetConfigSource().GetAds() != nil
	}},
}

func checkHCM(t *tasting, h *hcmv3.HttpConnectionManager, on side) *violation {
	return first(
		func() *violation { return hcmRules.check(t, h) },
		func() *violation {
			if on == client {
				return nil
			}
			return serverHCMRules.check(t, h)
		},
		func() *violation { return checkInlineRoutes(t, h.GetRouteConfig()).in("route_config") },
		func() *violation { return checkFilters(t, h.GetHttpFilters(), on) },
	)
}

// httpFilter is an HTTP filter that gRPC supports.
type httpFilter struct {
	client, server, terminal bool
	// not is the usage that the message is not for: the filter itself, or a part of the routes.
	not usage
}

// usage is the purpose of a filter's configuration.
type usage uint8

const (
	ofFilter usage = iota + 1
	ofRoutes
)

func (f httpFilter) on(s side) bool { return s == client && f.client || s == server && f.server }

const httpFilterPrefix = xdstype.Prefix + "envoy.extensions.filters.http."

// httpFilters are the HTTP filters that gRPC supports, by the types of their configurations. The last ones are
// experimental features of some clients.
var httpFilters = map[string]httpFilter{
	httpFilterPrefix + "router.v3.Router":                            {client: true, server: true, terminal: true},
	httpFilterPrefix + "fault.v3.HTTPFault":                          {client: true},
	httpFilterPrefix + "rbac.v3.RBAC":                                {server: true, not: ofRoutes},
	httpFilterPrefix + "rbac.v3.RBACPerRoute":                        {server: true, not: ofFilter},
	httpFilterPrefix + "stateful_session.v3.StatefulSession":         {client: true, not: ofRoutes},
	httpFilterPrefix + "stateful_session.v3.StatefulSessionPerRoute": {client: true, not: ofFilter},
	httpFilterPrefix + "gcp_authn.v3.GcpAuthnFilterConfig":           {client: true},
	httpFilterPrefix + "ext_proc.v3.ExternalProcessor":               {client: true, server: true, not: ofRoutes},
	httpFilterPrefix + "ext_proc.v3.ExtProcPerRoute":                 {client: true, server: true, not: ofFilter},
	httpFilterPrefix + "ext_authz.v3.ExtAuthz":                       {client: true, server: true, not: ofRoutes},
	httpFilterPrefix + "ext_authz.v3.ExtAuthzPerRoute":               {client: true, server: true, not: ofFilter},
}

// filterOf returns the HTTP filter of a configuration, which may be a TypedStruct.
func filterOf(t *tasting, config *anypb.Any) (f httpFilter, known bool) {
	url := config.GetTypeUrl()
	if typedStructs[url] {
		switch s := t.open(config).message.(type) {
		case *xdstypev3.TypedStruct:
			url = s.GetTypeUrl()
		case *udpatypev1.TypedStruct:
			url = s.GetTypeUrl()
		}
	}
	f, known = httpFilters[url]
	return f, known
}

// isFor reports whether gRPC reads a supported filter's configuration for this usage. It reads none from a
// TypedStruct.
func isFor(t *tasting, config *anypb.Any, purpose usage) bool {
	f, known := filterOf(t, config)
	return !known || f.not != purpose && !typedStructs[config.GetTypeUrl()]
}

// undecodableFilter is like undecodable, for the configurations of filters that gRPC supports.
func (t *tasting) undecodableFilter(config *anypb.Any) *violation {
	if _, known := httpFilters[config.GetTypeUrl()]; !known && config.GetTypeUrl() != perFilterConfig && !typedStructs[config.GetTypeUrl()] {
		return nil
	}
	return t.undecodable("A39", config)
}

// perFilterConfig wraps a configuration for a part of the routes.
const perFilterConfig = xdstype.Prefix + "envoy.config.route.v3.FilterConfig"

// filterOn is an HTTP filter of a client or of a server.
type filterOn struct {
	*hcmv3.HttpFilter
	on side
}

// ignored reports whether gRPC ignores an unsupported filter because it is optional.
func (f filterOn) ignored(t *tasting) bool {
	filter, known := filterOf(t, f.GetTypedConfig())
	return f.GetIsOptional() && (!known || !filter.on(f.on))
}

var filterRules = rules[filterOn]{
	{"grpc-http-filter-known", "A39", "gRPC supports each HTTP filter that is not optional", func(t *tasting, f filterOn) bool {
		_, known := filterOf(t, f.GetTypedConfig())
		return known || f.GetIsOptional()
	}},
	{"grpc-http-filter-side", "A39", "gRPC supports each HTTP filter that is not optional on this side", func(t *tasting, f filterOn) bool {
		filter, known := filterOf(t, f.GetTypedConfig())
		return !known || filter.on(f.on) || f.GetIsOptional()
	}},
	{"grpc-http-filter-config", "A39", "the configuration of an HTTP filter has the type for the filter itself", func(t *tasting, f filterOn) bool {
		return isFor(t, f.GetTypedConfig(), ofFilter)
	}},
	{"grpc-rbac-matchers", "A41", "an RBAC policy has no condition, and no matcher for grpc- headers or :scheme", func(t *tasting, f filterOn) bool {
		return rbacIsAllowed(rbacIn(t, f.GetTypedConfig()))
	}},
	{"grpc-rbac-policies", "A41, A59", "RBAC allows or denies by permissions and principals that gRPC knows, and has audit loggers that it knows", func(t *tasting, f filterOn) bool {
		return t.rbacIsKnown(rbacIn(t, f.GetTypedConfig()))
	}},
}

// chain has the HTTP filters of a client or of a server.
type chain []filterOn

var filtersRules = rules[chain]{
	{"grpc-http-filter-names", "A39", "HTTP filters have distinct names", func(_ *tasting, c chain) bool {
		seen := map[string]bool{"": true}
		for _, f := range c {
			if seen[f.GetName()] {
				return false
			}
			seen[f.GetName()] = true
		}
		return true
	}},
	{"grpc-router-last", "A39", "the last HTTP filter is the only router", func(t *tasting, c chain) bool {
		terminal := false
		for _, f := range c {
			if f.ignored(t) {
				continue
			}
			if terminal {
				return false
			}
			filter, _ := filterOf(t, f.GetTypedConfig())
			terminal = filter.terminal
		}
		return terminal
	}},
}

func checkFilters(t *tasting, filters []*hcmv3.HttpFilter, on side) *violation {
	all := make(chain, len(filters))
	for i, f := range filters {
		all[i] = filterOn{f, on}
	}
	return first(
		func() *violation {
			return eachOf("http_filters", all, func(f filterOn) *violation {
				if v := t.undecodableFilter(f.GetTypedConfig()); v != nil {
					return v
				}
				return filterRules.check(t, f)
			})
		},
		func() *violation { return filtersRules.check(t, all) },
	)
}
