package upstream

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// TestRequestsShareTheNode: a stream encodes its Node once, and what it sends is the request with the Node.
func TestRequestsShareTheNode(t *testing.T) {
	node := &corev3.Node{Id: "relay", Cluster: "c", Locality: &corev3.Locality{Zone: "z"}}
	for _, f := range []struct {
		form    *form
		request func(node *corev3.Node, nonce string) proto.Message
	}{
		{deltaForm, func(node *corev3.Node, nonce string) proto.Message {
			return &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURLs["cds"], ResponseNonce: nonce, ResourceNamesSubscribe: []string{"a"}}
		}},
		{sotwForm, func(node *corev3.Node, nonce string) proto.Message {
			return &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURLs["cds"], ResponseNonce: nonce, ResourceNames: []string{"a"}, VersionInfo: "1"}
		}},
	} {
		s, c := &Stream{node: node}, &call{form: f.form}
		var shared *byte
		for _, nonce := range []string{"", "1", "2"} {
			m, err := s.withNode(c, f.request(nil, nonce))
			if err != nil {
				t.Fatal(err)
			}
			out, err := codec{}.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			got, want := f.request(nil, ""), f.request(node, nonce)
			proto.Reset(got)
			if err := proto.Unmarshal(out.Materialize(), got); err != nil || !proto.Equal(got, want) {
				t.Errorf("%s sends %v, %v, want %v", f.form.name, got, err, want)
			}
			first := &out[0].ReadOnlyData()[0]
			if shared != nil && first != shared {
				t.Errorf("%s: the Node of request %q is encoded again", f.form.name, nonce)
			}
			shared = first
		}
	}
}
