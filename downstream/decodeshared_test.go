package downstream

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// Requests whose Nodes and names other clients have sent are decoded to the same messages as by the protobuf library,
// and refused when the library refuses them, whatever their bytes. Only the details of an error are left out.
func TestRequestsThatShareTheirParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Server{}
		text := rapid.SampledFrom([]string{"", "a", "b", "type", "a longer name"})
		nodes := rapid.SampledFrom([]*corev3.Node{nil, {}, {Id: "a"}, fullNode("a"), fullNode("b"), fullNode("")})
		names := rapid.SampledFrom([][]string{nil, {"a"}, {"a", "b"}, {"b", "a", "c"}})
		for range rapid.IntRange(2, 20).Draw(t, "requests") {
			if rapid.Bool().Draw(t, "delta") {
				checkShared(t, s, deltaForm, &discoveryv3.DeltaDiscoveryRequest{
					Node: nodes.Draw(t, "node"), TypeUrl: text.Draw(t, "type"), ResponseNonce: text.Draw(t, "nonce"),
					ResourceNamesSubscribe: names.Draw(t, "subscribe"), ResourceNamesUnsubscribe: names.Draw(t, "unsubscribe"),
				}, new(discoveryv3.DeltaDiscoveryRequest))
			} else {
				checkShared(t, s, sotwForm, &discoveryv3.DiscoveryRequest{
					Node: nodes.Draw(t, "node"), TypeUrl: text.Draw(t, "type"), ResponseNonce: text.Draw(t, "nonce"),
					ResourceNames: names.Draw(t, "names"), VersionInfo: text.Draw(t, "version"),
				}, new(discoveryv3.DiscoveryRequest))
			}
		}
	})
}

func checkShared[R request, S typeSession](t *rapid.T, s *Server, f form[R, S], req, want R) {
	data := encoded(req)
	switch rapid.IntRange(0, 4).Draw(t, "harm") {
	case 0:
		data = data[:rapid.IntRange(0, len(data)).Draw(t, "at")]
	case 1:
		if len(data) > 0 {
			data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
	case 2: // fields may come in any order, and more than once
		more := encoded(req)
		data = append(data, more[:rapid.IntRange(0, len(more)).Draw(t, "of them")]...)
	}
	before := string(data)
	wantErr := proto.Unmarshal(data, want)
	got, _, used, gotErr := decodeLimited(s, f, data, &unlimited)
	for i := range data { // nothing may be kept of them
		data[i] = 'x'
	}
	if (wantErr == nil) != (gotErr == nil) {
		t.Fatalf("%q: error %v, want %v", before, gotErr, wantErr)
	}
	if e := any(want).(interface{ GetErrorDetail() *statuspb.Status }).GetErrorDetail(); e != nil {
		e.Details = nil // nobody reads them
	}
	if wantErr == nil && !proto.Equal(got, want) {
		t.Fatalf("%q is decoded as\n%v, want\n%v", before, got, want)
	}
	used.recycle()
}
