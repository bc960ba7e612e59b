package taster

import (
	"math"
	"testing"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Resources that break the same gRPC rule at the same path may share a verdict. Others do not.
func TestOnlyTheSameVerdictIsShared(t *testing.T) {
	good := func() []byte { return encode(t, endpoints(locality("a", 0, lbEndpoint("10.0.0.1", 80)))) }
	heavy := locality("b", 0, weighted(lbEndpoint("10.0.0.2", 80), math.MaxUint32), weighted(lbEndpoint("10.0.0.3", 80), 1))
	light := locality("c", 0, lbEndpoint("10.0.0.4", 80))
	broken := [][]byte{
		encode(t, endpoints(heavy)),
		encode(t, endpoints(light, heavy)),                                 // the same rule in another place
		encode(t, endpoints(light, light)),                                 // another rule
		encode(t, endpoints(locality("a", 1, lbEndpoint("10.0.0.1", 80)))), // and another
	}
	of := Of(xdstype.EndpointsV3)
	want := make([]Verdict, len(broken))
	seen := map[Verdict]bool{}
	for i, value := range broken {
		v := of.Taste(value)
		if v == nil || v.GRPC == "" || v.Envoy != "" || seen[*v] {
			t.Fatalf("resource %d: got %+v, want what gRPC alone rejects, and no other", i, v)
		}
		want[i] = *v
		seen[*v] = true
	}
	for i := range broken {
		for j := range broken {
			for _, k := range []int{i, j, j} {
				if v := of.Taste(broken[k]); v == nil || *v != want[k] {
					t.Errorf("resource %d after others: got %+v, want %+v", k, v, want[k])
				}
			}
			if v := of.Taste(good()); v != nil {
				t.Errorf("a good resource: got %+v", v)
			}
		}
	}
}
