package client

import (
	"maps"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// FuzzResponses has a server send any two responses. Each is answered with its nonce, and with a NACK if something in it was
// rejected. The events, one after the other, lead from nothing to what the client holds.
func FuzzResponses(f *testing.F) {
	content, err := anypb.New(&clusterv3.Cluster{Name: "a"})
	if err != nil {
		f.Fatal(err)
	}
	const name = "xdstp://a/envoy.config.cluster.v3.Cluster/x"
	wrapped, err := anypb.New(&discoveryv3.Resource{Name: name, Version: "2", Resource: content, Ttl: durationpb.New(1)})
	if err != nil {
		f.Fatal(err)
	}
	broken := &anypb.Any{TypeUrl: xdstype.ClusterV3, Value: []byte{0xff}}
	for delta, responses := range map[bool][2]proto.Message{
		true: {
			&discoveryv3.DeltaDiscoveryResponse{TypeUrl: xdstype.ClusterV3, Nonce: "1", Resources: []*discoveryv3.Resource{{Name: "a", Version: "1", Resource: content}, {Name: name, Resource: content, Aliases: []string{"a"}}}},
			&discoveryv3.DeltaDiscoveryResponse{TypeUrl: xdstype.ClusterV3, Nonce: "2", RemovedResources: []string{"a", "b"}, Resources: []*discoveryv3.Resource{{Name: name}, {Name: "a", Resource: broken}}},
		},
		false: {
			&discoveryv3.DiscoveryResponse{TypeUrl: xdstype.ClusterV3, Nonce: "1", VersionInfo: "1", Resources: []*anypb.Any{content, wrapped}},
			&discoveryv3.DiscoveryResponse{TypeUrl: xdstype.ClusterV3, Nonce: "2", VersionInfo: "2", Resources: []*anypb.Any{content, broken}},
		},
	} {
		var texts [2][]byte
		for i, r := range responses {
			if texts[i], err = proto.Marshal(r); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(delta, true, texts[0], texts[1])
		f.Add(delta, false, texts[1], texts[0])
	}
	f.Fuzz(func(t *testing.T, delta, all bool, first, second []byte) {
		q := Query{TypeURL: xdstype.ClusterV3, Protocol: SotW, Names: []string{"a", "b", name}}
		if delta {
			q.Protocol = Delta
		}
		if all {
			q.Names = append(q.Names, wildcard)
		}
		run := newQueryRun(Server{}, q)
		opened(run)
		held := map[string]*discoveryv3.Resource{}
		for _, text := range [][]byte{first, second} {
			var reply interface {
				GetResponseNonce() string
				proto.Message
			}
			var nonce string
			var nacked bool
			var events []Event
			if delta {
				resp := new(discoveryv3.DeltaDiscoveryResponse)
				if proto.Unmarshal(text, resp) != nil {
					return
				}
				req, changes := deltaSession{run.state}.receive(resp)
				reply, nonce, nacked, events = req, resp.GetNonce(), req.GetErrorDetail() != nil, changes
			} else {
				resp := new(discoveryv3.DiscoveryResponse)
				if proto.Unmarshal(text, resp) != nil {
					return
				}
				req, changes := run.sotw.receive(resp)
				reply, nonce, nacked, events = req, resp.GetNonce(), req.GetErrorDetail() != nil, changes
			}
			rejected := false
			for _, e := range events {
				key := canonical(e.Name)
				_, there := held[key]
				switch e.Kind {
				case Added, Changed:
					if there != (e.Kind == Changed) {
						t.Fatalf("%q: %v, and it was there: %t", e.Name, e.Kind, there)
					}
					held[key] = e.Resource
				case Removed:
					if !there {
						t.Fatalf("%q is removed, and was not there", e.Name)
					}
					delete(held, key)
				case Missing:
					if there {
						t.Fatalf("%q is missing, and is there", e.Name)
					}
				case Rejected:
					rejected = true
				default:
				}
			}
			if !maps.EqualFunc(held, run.state.held, func(a, b *discoveryv3.Resource) bool { return sameContent(a, b) }) {
				t.Fatalf("the events lead to %v, and the client holds %v", held, run.state.held)
			}
			if reply.GetResponseNonce() != nonce || nacked != rejected {
				t.Fatalf("%q, with something rejected: %t, is answered with %v", nonce, rejected, reply)
			}
			if _, err := proto.Marshal(reply); err != nil {
				t.Fatal(err)
			}
		}
	})
}
