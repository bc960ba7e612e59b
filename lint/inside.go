package lint

import (
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file checks requirements that Envoy's code adds to the constraints of its API, and finds routes that no
// request reaches.

// mostDecoded is the length of the longest resource that these checks decode, in bytes.
const mostDecoded = 16 << 20

// inside adds the findings for one resource that no client reports before it uses the resource.
func (c *checker) inside(i int, r Resource) {
	switch r.TypeURL {
	case xdstype.RouteV3:
		if m := (&routev3.RouteConfiguration{}); decode(r, m) {
			c.domains(i, m)
			for h, host := range m.GetVirtualHosts() {
				c.unreachable(i, fmt.Sprintf("virtual_hosts[%d].", h), host)
				c.routesOfGRPC(i, fmt.Sprintf("virtual_hosts[%d].", h), host)
			}
		}
	case xdstype.VirtualHostV3:
		if m := (&routev3.VirtualHost{}); decode(r, m) {
			c.unreachable(i, "", m)
			c.routesOfGRPC(i, "", m)
		}
	case xdstype.EndpointsV3:
		if m := (&endpointv3.ClusterLoadAssignment{}); decode(r, m) {
			c.localities(i, m)
		}
	case xdstype.ClusterV3:
		if m := (&clusterv3.Cluster{}); decode(r, m) {
			c.upstreamConfig(i, m)
		}
	case xdstype.ListenerV3:
		if m := (&listenerv3.Listener{}); decode(r, m) {
			c.address(i, m)
		}
	}
}

func decode(r Resource, m proto.Message) bool {
	return len(r.Value) <= mostDecoded && proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true, RecursionLimit: 100}.Unmarshal(r.Value, m) == nil
}

// domains adds findings for domains that a RouteConfiguration has twice. Envoy compares domains in lower case.
func (c *checker) domains(i int, m *routev3.RouteConfiguration) {
	seen := map[string]string{}
	for h, host := range m.GetVirtualHosts() {
		for d, domain := range host.GetDomains() {
			at := fmt.Sprintf("virtual_hosts[%d].domains[%d]", h, d)
			key := strings.ToLower(domain)
			if first, ok := seen[key]; ok {
				c.broken(sameDomain, i, at, fmt.Sprintf("domain %s is also %s", quoted(domain), first))
				return
			}
			seen[key] = at
		}
	}
}

// unreachable adds a finding for the first route after one that matches every request.
func (c *checker) unreachable(i int, path string, host *routev3.VirtualHost) {
	for r, route := range host.GetRoutes() {
		if r+1 < len(host.GetRoutes()) && matchesAll(route.GetMatch()) {
			c.broken(unreachableRoute, i, fmt.Sprintf("%sroutes[%d]", path, r+1), fmt.Sprintf("routes[%d] before it matches every request", r))
			return
		}
	}
}

// matchesAll reports whether a match accepts every request.
func matchesAll(m *routev3.RouteMatch) bool {
	prefix, ok := m.GetPathSpecifier().(*routev3.RouteMatch_Prefix)
	if !ok || prefix.Prefix != "/" && prefix.Prefix != "" {
		return false
	}
	only := &routev3.RouteMatch{PathSpecifier: m.GetPathSpecifier(), CaseSensitive: m.GetCaseSensitive()}
	return proto.Equal(m, only)
}

// address adds a finding if an earlier listener has the same address.
func (c *checker) address(i int, m *listenerv3.Listener) {
	if m.GetApiListener() != nil || m.GetInternalListener() != nil {
		return
	}
	if first, ok := c.addresses[addressOf(m.GetAddress())]; ok {
		c.broken(sameAddress, i, "address", fmt.Sprintf("Listener %s has the same address", quoted(c.resources[first].Name)))
		return
	}
	if at := addressOf(m.GetAddress()); at != "" {
		c.addresses[at] = i
	}
}

// addressOf returns a text that is equal for listeners with conflicting addresses. It is empty if the address cannot
// conflict.
func addressOf(a *corev3.Address) string {
	if pipe := a.GetPipe().GetPath(); pipe != "" {
		return "pipe " + pipe
	}
	socket := a.GetSocketAddress()
	if socket.GetPortValue() == 0 {
		return "" // any free port
	}
	return fmt.Sprintf("%s %s %d %s", socket.GetProtocol(), socket.GetAddress(), socket.GetPortValue(), socket.GetNetworkNamespaceFilepath())
}
