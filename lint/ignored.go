package lint

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"

	"github.com/xds-relay/xds-relay/internal/taster"
)

// This file checks what gRPC ignores in silence, and what its designs refuse and not every implementation does.

// routesOfGRPC adds the findings for the routes of a virtual host.
func (c *checker) routesOfGRPC(i int, path string, host *routev3.VirtualHost) {
	for r, route := range host.GetRoutes() {
		at := fmt.Sprintf("%sroutes[%d].", path, r)
		match, action := route.GetMatch(), route.GetRoute()
		if len(match.GetQueryParameters()) > 0 {
			c.broken(ignoredRoute, i, at+"match.query_parameters", "gRPC ignores the whole route")
		}
		if action.GetClusterHeader() != "" {
			c.broken(ignoredRoute, i, at+"route.cluster_header", "gRPC ignores the whole route")
		}
		if match.GetCaseSensitive() != nil && !match.GetCaseSensitive().GetValue() {
			c.broken(caseSensitive, i, at+"match.case_sensitive", "it is false, and gRFC A28 wants a NACK; gRPC-Go takes it")
		}
		split := action.GetWeightedClusters()
		sum := uint64(0)
		for _, cluster := range split.GetClusters() {
			sum += uint64(cluster.GetWeight().GetValue())
		}
		//nolint:staticcheck // it is deprecated in Envoy, which ignores it
		if total := split.GetTotalWeight(); total != nil && uint64(total.GetValue()) != sum {
			c.broken(totalWeight, i, at+"route.weighted_clusters.total_weight", fmt.Sprintf("the weights add up to %d, and it is %d", sum, total.GetValue()))
		}
	}
}

// localities adds a finding for the first locality that gRPC ignores.
func (c *checker) localities(i int, m *endpointv3.ClusterLoadAssignment) {
	for e, locality := range m.GetEndpoints() {
		if len(locality.GetLbEndpoints()) > 0 && locality.GetLoadBalancingWeight().GetValue() == 0 {
			c.broken(localityWeight, i, fmt.Sprintf("endpoints[%d].load_balancing_weight", e), fmt.Sprintf("gRPC ignores the locality and its %d endpoints", len(locality.GetLbEndpoints())))
			return
		}
	}
}

// upstreamConfig adds a finding if a Cluster has options that gRPC refuses.
func (c *checker) upstreamConfig(i int, m *clusterv3.Cluster) {
	config := m.GetUpstreamConfig().GetTypedConfig()
	if config == nil {
		return
	}
	options := new(httpv3.HttpProtocolOptions)
	if !config.MessageIs(options) {
		c.broken(upstreamConfig, i, "upstream_config.typed_config", "it is no envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
		return
	}
	if config.UnmarshalTo(options) != nil {
		return // the taster reports why
	}
	if idle := options.GetCommonHttpProtocolOptions().GetIdleTimeout(); idle != nil && (idle.CheckValid() != nil || idle.AsDuration() < 0) {
		c.broken(upstreamConfig, i, "upstream_config.typed_config.common_http_protocol_options.idle_timeout", "it is no duration from 0 on")
	}
}

// isAggregateByA75 reports whether a Cluster is an aggregate one with the policy of gRFC A75.
func isAggregateByA75(r Resource) bool {
	m := new(clusterv3.Cluster)
	return decode(r, m) && m.GetClusterType().GetName() == "envoy.clusters.aggregate" && m.GetLbPolicy() == clusterv3.Cluster_CLUSTER_PROVIDED
}

// providedPolicy adds the finding for such a Cluster. It is a warning also if all clients are of gRPC, as not all of those refuse it.
func (c *checker) providedPolicy(i int) {
	if c.For != taster.Envoy {
		rule := rules[aggregatePolicy]
		c.found = append(c.found, Finding{Rule: rule, Severity: rule.Severity, Resource: i, Path: "lb_policy", Text: "CLUSTER_PROVIDED is right by gRFC A75, and gRPC-Go refuses it"})
	}
}
