package taster

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// This file checks Listeners as gRPC does: with an api_listener for clients, otherwise for servers.

const hcmType = xdstype.Prefix + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"

var listenerRules = rules[*listenerv3.Listener]{
	{"grpc-listener-name", "A27", "name is set", func(_ *tasting, l *listenerv3.Listener) bool { return l.GetName() != "" }},
	{"grpc-api-listener-type", "A27", "api_listener is an HttpConnectionManager", func(_ *tasting, l *listenerv3.Listener) bool {
		return l.GetApiListener() == nil || l.GetApiListener().GetApiListener().GetTypeUrl() == hcmType
	}},
}

// serverRules hold for the listeners of servers.
var serverRules = rules[*listenerv3.Listener]{
	{"grpc-no-listener-filters", "A36", "listener_filters is empty", func(_ *tasting, l *listenerv3.Listener) bool { return len(l.GetListenerFilters()) == 0 }},
	{"grpc-no-original-dst", "A36", "use_original_dst is not true", func(_ *tasting, l *listenerv3.Listener) bool { return !l.GetUseOriginalDst().GetValue() }},
	{"grpc-socket-address", "A36", "address is a socket_address", func(_ *tasting, l *listenerv3.Listener) bool { return l.GetAddress().GetSocketAddress() != nil }},
	{"grpc-match-prefixes", "A36", "filter_chain_match has valid address prefixes", func(_ *tasting, l *listenerv3.Listener) bool {
		for _, c := range l.GetFilterChains() {
			m := c.GetFilterChainMatch()
			if isUnsupported(m, false) {
				continue
			}
			if !prefixesAreValid(m.GetPrefixRanges()) || !isUnsupported(m, true) && !prefixesAreValid(m.GetSourcePrefixRanges()) {
				return false
			}
		}
		return true
	}},
	{"grpc-source-type", "A36", "source_type of a filter_chain_match is a known value", func(_ *tasting, l *listenerv3.Listener) bool {
		for _, c := range l.GetFilterChains() {
			m := c.GetFilterChainMatch()
			if _, known := listenerv3.FilterChainMatch_ConnectionSourceType_name[int32(m.GetSourceType())]; !known && !isUnsupported(m, true) {
				return false
			}
		}
		return true
	}},
	{"grpc-some-filter-chain", "A36", "there is a default_filter_chain, or a filter chain that gRPC supports", func(_ *tasting, l *listenerv3.Listener) bool {
		if l.GetDefaultFilterChain() != nil {
			return true
		}
		budget := mostMatches
		_, some := matchesOf(l.GetFilterChains(), &budget)
		return some
	}},
	{"grpc-chains-overlap", "A36", "no two filter chains match the same connections", func(t *tasting, l *listenerv3.Listener) bool {
		overlap, _ := matchesOf(l.GetFilterChains(), &t.matches)
		return !overlap
	}},
}

// isUnsupported reports whether gRPC ignores a filter chain because of its match. With all false, it considers only
// destination_port, which gRPC checks first.
func isUnsupported(m *listenerv3.FilterChainMatch, all bool) bool {
	if m.GetDestinationPort().GetValue() != 0 || !all {
		return m.GetDestinationPort().GetValue() != 0
	}
	transport := m.GetTransportProtocol()
	return len(m.GetServerNames()) != 0 || transport != "" && transport != rawBuffer || len(m.GetApplicationProtocols()) != 0
}

// rawBuffer is the transport_protocol of connections without TLS.
const rawBuffer = "raw_buffer"

func prefixesAreValid(ranges []*corev3.CidrRange) bool {
	for _, r := range ranges {
		if _, ok := prefixOf(r); !ok {
			return false
		}
	}
	return true
}

func prefixOf(r *corev3.CidrRange) (p netip.Prefix, ok bool) {
	addr, err := netip.ParseAddr(r.GetAddressPrefix())
	if err != nil {
		return p, false
	}
	p = netip.PrefixFrom(addr.Unmap(), int(r.GetPrefixLen().GetValue())).Masked()
	return p, p.IsValid()
}

// mostMatches bounds the filter chain matches that are compared for one listener. A chain has one for each
// combination of its prefixes, source prefixes and source ports. Matches beyond the bound pass.
const mostMatches = 100_000

// match describes the connections of one of a filter chain's matches.
type match struct {
	destination netip.Prefix
	source      listenerv3.FilterChainMatch_ConnectionSourceType
	from        netip.Prefix
	port        uint32
}

// matchesOf reports whether two filter chains match the same connections for gRPC, and whether any chain matches
// some. A chain for raw_buffer replaces earlier chains for the same destination and any transport, even if gRPC
// ignores it because of its application_protocols.
func matchesOf(chains []*listenerv3.FilterChain, budget *int) (overlap, some bool) {
	seen := map[match]bool{}
	raw := map[netip.Prefix]bool{}
	for _, c := range chains {
		m := c.GetFilterChainMatch()
		transport := m.GetTransportProtocol()
		if m.GetDestinationPort().GetValue() != 0 || len(m.GetServerNames()) != 0 || transport != "" && transport != rawBuffer {
			continue
		}
		from, ports := prefixesOf(m.GetSourcePrefixRanges()), m.GetSourcePorts()
		if len(ports) == 0 {
			ports = []uint32{0}
		}
		for _, destination := range prefixesOf(m.GetPrefixRanges()) {
			if *budget < 0 {
				return false, true
			}
			switch isRaw := transport == rawBuffer; {
			case !isRaw && raw[destination]:
				continue
			case isRaw && !raw[destination]:
				raw[destination] = true
				for k := range seen {
					if *budget--; k.destination == destination {
						delete(seen, k)
					}
				}
			}
			if len(m.GetApplicationProtocols()) != 0 {
				continue
			}
			for _, source := range from {
				if *budget < 0 {
					return false, true
				}
				for _, port := range ports {
					*budget--
					k := match{destination, m.GetSourceType(), source, port}
					if seen[k] {
						return true, true
					}
					seen[k] = true
				}
			}
		}
	}
	return false, len(seen) > 0
}

// prefixesOf returns the valid prefixes of ranges, or the prefix that matches everything.
func prefixesOf(ranges []*corev3.CidrRange) []netip.Prefix {
	if len(ranges) == 0 {
		return []netip.Prefix{{}}
	}
	all := make([]netip.Prefix, 0, len(ranges))
	for _, r := range ranges {
		p, _ := prefixOf(r)
		all = append(all, p)
	}
	return all
}

func checkListener(t *tasting, l *listenerv3.Listener) *violation {
	if v := listenerRules.check(t, l); v != nil {
		return v
	}
	if api := l.GetApiListener().GetApiListener(); api != nil {
		return first(
			func() *violation { return t.undecodable("A27", api) },
			func() *violation {
				hcm, ok := openAs[*hcmv3.HttpConnectionManager](t, api)
				if !ok {
					return nil
				}
				return checkHCM(t, hcm, client)
			},
		).in("api_listener")
	}
	return first(
		func() *violation { return serverRules.check(t, l) },
		func() *violation {
			if l.GetDefaultFilterChain() == nil {
				return nil
			}
			return checkChain(t, l.GetDefaultFilterChain()).in("default_filter_chain")
		},
		func() *violation {
			return eachOf("filter_chains", l.GetFilterChains(), func(c *listenerv3.FilterChain) *violation {
				if isUnsupported(c.GetFilterChainMatch(), true) {
					return nil
				}
				return checkChain(t, c)
			})
		},
	)
}

var chainRules = rules[*listenerv3.FilterChain]{
	{"grpc-network-filter-names", "A36", "network filters have distinct names", func(_ *tasting, c *listenerv3.FilterChain) bool {
		seen := map[string]bool{"": true}
		for _, f := range c.GetFilters() {
			if seen[f.GetName()] {
				return false
			}
			seen[f.GetName()] = true
		}
		return true
	}},
	{"grpc-network-filter-type", "A36", "each network filter is an HttpConnectionManager", func(_ *tasting, c *listenerv3.FilterChain) bool {
		for _, f := range c.GetFilters() {
			if f.GetTypedConfig().GetTypeUrl() != hcmType {
				return false
			}
		}
		return true
	}},
	{"grpc-some-network-filter", "A36", "there is a network filter", func(_ *tasting, c *listenerv3.FilterChain) bool { return len(c.GetFilters()) > 0 }},
}

func checkChain(t *tasting, c *listenerv3.FilterChain) *violation {
	first := 0 // the filter whose routes gRPC uses
	return firstOf(
		chainRules.check(t, c),
		eachOf("filters", c.GetFilters(), func(f *listenerv3.Filter) *violation {
			if v := t.undecodable("A36", f.GetTypedConfig()); v != nil {
				return v
			}
			hcm, ok := openAs[*hcmv3.HttpConnectionManager](t, f.GetTypedConfig())
			if first++; !ok {
				return nil
			}
			if first > 1 {
				return checkFilters(t, hcm.GetHttpFilters(), server)
			}
			return checkHCM(t, hcm, server)
		}),
		checkDownstreamTLS(t, c.GetTransportSocket()).in("transport_socket"),
	)
}

// firstOf returns the first violation.
func firstOf(all ...*violation) *violation {
	for _, v := range all {
		if v != nil {
			return v
		}
	}
	return nil
}
