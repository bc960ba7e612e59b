package integration

// Istio's NameTable (NDS): a resource without a name. istiod sends it as the answer to the wildcard of its
// agents, for their DNS proxy.

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const nameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"

// nameTable encodes a NameTable: table is a map, field 1, from hosts to NameInfos, of
// which ips is field 1 and registry field 2.
func nameTable(hosts ...string) *discoveryv3.Resource {
	text := func(b []byte, num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
	}
	var table []byte
	for _, host := range hosts {
		info := text(text(nil, 1, "240.240.0.1"), 2, "Kubernetes")
		entry := text(text(nil, 1, host), 2, string(info))
		table = text(table, 1, string(entry))
	}
	return &discoveryv3.Resource{Resource: &anypb.Any{TypeUrl: nameTableType, Value: table}}
}

func TestAResourceWithoutANameIsTheAnswerToItsWildcard(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run(string(upstream), func(t *testing.T) {
			cp := startHandmade(t)
			r := startRelay(t, relayTo(cp.address, string(upstream)))
			conn := connect(t, r.address)
			ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)

			deltas, err := ads.DeltaAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := deltas.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: nameTableType, Node: node("agent", "")}); err != nil {
				t.Fatal(err)
			}
			states, err := ads.StreamAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := states.Send(&discoveryv3.DiscoveryRequest{TypeUrl: nameTableType, Node: node("agent", "")}); err != nil {
				t.Fatal(err)
			}

			stream := cp.stream(t)
			stream.awaitAsked(t, nameTableType, wildcard)
			tables := []*discoveryv3.Resource{
				nameTable("reviews.default.svc.cluster.local"),
				nameTable("reviews.default.svc.cluster.local", "ratings.default.svc.cluster.local"),
			}
			for i, table := range tables {
				if nack := stream.respond(t, nameTableType, string(rune('1'+i)), table); nack != "" {
					t.Errorf("the relay rejected a NameTable: %s", nack)
				}
				d, err := deltas.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if got := d.GetResources(); len(got) != 1 || got[0].GetName() != "" || !proto.Equal(got[0].GetResource(), table.GetResource()) {
					t.Errorf("the delta client received %v, want %v without a name", got, table)
				}
				if err := deltas.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: nameTableType, ResponseNonce: d.GetNonce()}); err != nil {
					t.Fatal(err)
				}
				s, err := states.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if got := s.GetResources(); len(got) != 1 || !proto.Equal(got[0], table.GetResource()) {
					t.Errorf("the SotW client received %v, want %v", got, table)
				}
				if err := states.Send(&discoveryv3.DiscoveryRequest{TypeUrl: nameTableType, VersionInfo: s.GetVersionInfo(), ResponseNonce: s.GetNonce()}); err != nil {
					t.Fatal(err)
				}
			}
			for _, protocol := range []string{"delta", "sotw"} {
				stdout, stderr, status := run(t, "get", "--server", r.address, "--protocol", protocol, "--type", nameTableType)
				if status != 0 || !strings.Contains(stdout, nameTableType) {
					t.Errorf("get in %s ended with exit status %d: %s%s", protocol, status, stdout, stderr)
				}
			}
		})
	}
}
