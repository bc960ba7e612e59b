package taster

import (
	"math"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// This file checks ClusterLoadAssignments as gRPC does.

var endpointsRules = rules[*endpointv3.ClusterLoadAssignment]{
	{"grpc-endpoints-name", "A27", "cluster_name is set", func(_ *tasting, e *endpointv3.ClusterLoadAssignment) bool { return e.GetClusterName() != "" }},
	{"grpc-locality-id", "A27", "each locality has an id", func(_ *tasting, e *endpointv3.ClusterLoadAssignment) bool {
		for _, l := range e.GetEndpoints() {
			if l.GetLocality() == nil {
				return false
			}
		}
		return true
	}},
	{"grpc-locality-once", "A27", "no locality occurs twice in one priority", func(_ *tasting, e *endpointv3.ClusterLoadAssignment) bool {
		type id struct {
			region, zone, subZone string
			priority              uint32
		}
		seen := make(map[id]bool, len(e.GetEndpoints()))
		for _, l := range used(e) {
			locality := id{l.GetLocality().GetRegion(), l.GetLocality().GetZone(), l.GetLocality().GetSubZone(), l.GetPriority()}
			if seen[locality] {
				return false
			}
			seen[locality] = true
		}
		return true
	}},
	{"grpc-locality-weights", "A27", "the weights of the localities of one priority add up to at most 4294967295", func(_ *tasting, e *endpointv3.ClusterLoadAssignment) bool {
		sums := map[uint32]uint64{}
		for _, l := range used(e) {
			sums[l.GetPriority()] += uint64(l.GetLoadBalancingWeight().GetValue())
			if sums[l.GetPriority()] > math.MaxUint32 {
				return false
			}
		}
		return true
	}},
	{"grpc-priorities", "A27", "priorities start at 0 and have no gaps", func(_ *tasting, e *endpointv3.ClusterLoadAssignment) bool {
		seen, highest := map[uint32]bool{}, -1
		for _, l := range used(e) {
			seen[l.GetPriority()] = true
			highest = max(highest, int(l.GetPriority()))
		}
		return len(seen) == highest+1
	}},
	{"grpc-address-once", "A27", "no address occurs twice", func(_ *tasting, e *endpointv3.ClusterLoadAssignment) bool {
		n := 0
		for _, l := range used(e) {
			n += len(l.GetLbEndpoints())
		}
		seen := make(map[socket]bool, n)
		add := func(a *corev3.Address) (again bool) {
			// Addresses that are not socket_addresses have no host and port, so they count as the same address.
			address := socket{a.GetSocketAddress().GetAddress(), a.GetSocketAddress().GetPortValue()}
			again, seen[address] = seen[address], true
			return again
		}
		for _, l := range used(e) {
			for _, lb := range l.GetLbEndpoints() {
				if add(lb.GetEndpoint().GetAddress()) {
					return false
				}
				for _, more := range lb.GetEndpoint().GetAdditionalAddresses() { // A61
					if add(more.GetAddress()) {
						return false
					}
				}
			}
		}
		return true
	}},
}

// socket is the address of an endpoint.
type socket struct {
	host string
	port uint32
}

// used returns the localities that gRPC uses: those with a weight above 0.
func used(e *endpointv3.ClusterLoadAssignment) []*endpointv3.LocalityLbEndpoints {
	all := e.GetEndpoints()
	for i, l := range all {
		if l.GetLoadBalancingWeight().GetValue() != 0 {
			continue
		}
		some := append([]*endpointv3.LocalityLbEndpoints(nil), all[:i]...)
		for _, l := range all[i+1:] {
			if l.GetLoadBalancingWeight().GetValue() != 0 {
				some = append(some, l)
			}
		}
		return some
	}
	return all
}

var localityRules = rules[*endpointv3.LocalityLbEndpoints]{
	{"grpc-endpoint-weight", "A27", "the load_balancing_weight of an endpoint is not 0", func(_ *tasting, l *endpointv3.LocalityLbEndpoints) bool {
		for _, lb := range l.GetLbEndpoints() {
			if w := lb.GetLoadBalancingWeight(); w != nil && w.GetValue() == 0 {
				return false
			}
		}
		return true
	}},
	{"grpc-endpoint-weights", "A27", "the weights of the endpoints of a locality add up to at most 4294967295", func(_ *tasting, l *endpointv3.LocalityLbEndpoints) bool {
		var sum uint64
		for _, lb := range l.GetLbEndpoints() {
			weight := uint64(1)
			if w := lb.GetLoadBalancingWeight(); w != nil {
				weight = uint64(w.GetValue())
			}
			if sum += weight; sum > math.MaxUint32 {
				return false
			}
		}
		return true
	}},
}

var dropRules = rules[*endpointv3.ClusterLoadAssignment_Policy_DropOverload]{
	{"grpc-drop-denominator", "A27", "drop_percentage.denominator is HUNDRED, TEN_THOUSAND or MILLION", func(_ *tasting, d *endpointv3.ClusterLoadAssignment_Policy_DropOverload) bool {
		_, known := typev3.FractionalPercent_DenominatorType_name[int32(d.GetDropPercentage().GetDenominator())]
		return known
	}},
}

func checkEndpoints(t *tasting, e *endpointv3.ClusterLoadAssignment) *violation {
	return first(
		func() *violation { return endpointsRules.check(t, e) },
		func() *violation {
			return eachOf("policy.drop_overloads", e.GetPolicy().GetDropOverloads(), func(d *endpointv3.ClusterLoadAssignment_Policy_DropOverload) *violation {
				return dropRules.check(t, d)
			})
		},
		func() *violation {
			return eachOf("endpoints", e.GetEndpoints(), func(l *endpointv3.LocalityLbEndpoints) *violation {
				if l.GetLoadBalancingWeight().GetValue() == 0 {
					return nil
				}
				return localityRules.check(t, l)
			})
		},
	)
}
