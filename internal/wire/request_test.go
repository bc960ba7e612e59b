package wire

import (
	"bytes"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Peek returns the same for two requests exactly if they differ only in nonce and version.
func TestPeekDistinguishesRequests(t *testing.T) {
	base := func() *discoveryv3.DiscoveryRequest {
		return &discoveryv3.DiscoveryRequest{
			TypeUrl: "type", VersionInfo: "1", ResponseNonce: "1",
			Node: &corev3.Node{Id: "a"}, ResourceNames: []string{"a", "b"},
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*discoveryv3.DiscoveryRequest)
		same   bool
	}{
		{"nothing", func(*discoveryv3.DiscoveryRequest) {}, true},
		{"nonce", func(r *discoveryv3.DiscoveryRequest) { r.ResponseNonce = "2" }, true},
		{"version", func(r *discoveryv3.DiscoveryRequest) { r.VersionInfo = "2" }, true},
		{"no version", func(r *discoveryv3.DiscoveryRequest) { r.VersionInfo = "" }, true},
		{"a name more", func(r *discoveryv3.DiscoveryRequest) { r.ResourceNames = append(r.ResourceNames, "c") }, false},
		{"a name less", func(r *discoveryv3.DiscoveryRequest) { r.ResourceNames = r.ResourceNames[:1] }, false},
		{"no names", func(r *discoveryv3.DiscoveryRequest) { r.ResourceNames = nil }, false},
		{"names that are the same together", func(r *discoveryv3.DiscoveryRequest) { r.ResourceNames = []string{"ab", ""} }, false},
		{"a locator", func(r *discoveryv3.DiscoveryRequest) {
			r.ResourceLocators = []*discoveryv3.ResourceLocator{{Name: "a"}}
		}, false},
		{"node", func(r *discoveryv3.DiscoveryRequest) { r.Node.Id = "b" }, false},
		{"no node", func(r *discoveryv3.DiscoveryRequest) { r.Node = nil }, false},
		{"an error", func(r *discoveryv3.DiscoveryRequest) { r.ErrorDetail = &statuspb.Status{Message: "bad"} }, false},
	} {
		is := base()
		tt.change(is)
		a, b := SotWRequest.Peek(encoded(base())), SotWRequest.Peek(encoded(is))
		same := a.State == b.State && a.Node == b.Node && !b.More
		if same != tt.same {
			t.Errorf("%s: got %t, want %t", tt.name, same, tt.same)
		}
		if string(b.Nonce) != is.GetResponseNonce() || string(b.TypeURL) != is.GetTypeUrl() {
			t.Errorf("%s: got nonce %q and type %q", tt.name, b.Nonce, b.TypeURL)
		}
	}
}

// In delta, only an ACK has no other fields.
func TestPeekSeesAnACKInDelta(t *testing.T) {
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type", ResponseNonce: "7"}
	if g := DeltaRequest.Peek(encoded(ack)); g.More || string(g.Nonce) != "7" {
		t.Errorf("got %+v", g)
	}
	for name, change := range map[string]func(*discoveryv3.DeltaDiscoveryRequest){
		"subscribe":   func(r *discoveryv3.DeltaDiscoveryRequest) { r.ResourceNamesSubscribe = []string{"a"} },
		"unsubscribe": func(r *discoveryv3.DeltaDiscoveryRequest) { r.ResourceNamesUnsubscribe = []string{"a"} },
		"versions":    func(r *discoveryv3.DeltaDiscoveryRequest) { r.InitialResourceVersions = map[string]string{"a": "1"} },
		"NACK":        func(r *discoveryv3.DeltaDiscoveryRequest) { r.ErrorDetail = &statuspb.Status{Message: "bad"} },
	} {
		is := proto.CloneOf(ack)
		change(is)
		if g := DeltaRequest.Peek(encoded(is)); !g.More {
			t.Errorf("%s: taken for an ACK", name)
		}
	}
	if g := DeltaRequest.Peek([]byte{0xff}); !g.More {
		t.Error("what cannot be read is taken for an ACK")
	}
}

func encoded(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func TestOutlineOfARequest(t *testing.T) {
	names := &discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "bc"}}
	node := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "id"}}
	typed := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type"}
	join := func(parts ...*discoveryv3.DeltaDiscoveryRequest) (all []byte) {
		for _, part := range parts {
			all = append(all, encoded(part)...)
		}
		return all
	}
	for name, tt := range map[string]struct {
		request []byte
		want    Outline
	}{
		"empty":              {nil, Outline{}},
		"in order":           {join(node, typed, names), Outline{Node: Run{0, 6, 1}, Names: Run{12, 19, 2}, Cost: RequestCost{TypeURL: 4, Node: 4}}},
		"names first":        {join(names, node), Outline{Names: Run{0, 7, 2}, Node: Run{7, 13, 1}, Cost: RequestCost{Node: 4}}},
		"names that go on":   {join(names, names), Outline{Names: Run{0, 14, 4}}},
		"names in two parts": {join(names, typed, names), Outline{Names: Run{0, 7, 0}, Cost: RequestCost{TypeURL: 4}}},
		"names in three":     {join(names, typed, names, typed, names), Outline{Names: Run{0, 7, 0}, Cost: RequestCost{TypeURL: 4}}},
		"two nodes":          {join(node, node), Outline{Cost: RequestCost{Node: 8}}},
		"two nodes apart":    {join(node, names, node), Outline{Names: Run{6, 13, 2}, Node: Run{0, 6, 0}, Cost: RequestCost{Node: 8}}},
		"cut":                {join(node, names)[:12], Outline{Cost: RequestCost{Node: 4}}},
	} {
		if got := DeltaRequest.Outline(tt.request); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
		if got, want := DeltaRequest.Outline(tt.request).Cost, DeltaRequest.Cost(tt.request, NodeLimits{}); got != want {
			t.Errorf("%s: costs %+v, want %+v", name, got, want)
		}
	}
}

// NextBytes reads fields of any number and length like protobuf, and nothing of an incomplete field.
func TestNextBytesReadsAsProtobuf(t *testing.T) {
	for _, num := range []protowire.Number{1, 15, 16, 2047, 2048} {
		for _, size := range []int{0, 1, 127, 128, 16384} {
			value := bytes.Repeat([]byte{7}, size)
			field := protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), value)
			gotNum, got, n := NextBytes(append(slices.Clone(field), 1, 2, 3))
			if gotNum != num || !bytes.Equal(got, value) || n != len(field) {
				t.Errorf("field %d of %d bytes: got field %d of %d bytes, %d in all", num, size, gotNum, len(got), n)
			}
			if size > 0 {
				if _, _, n := NextBytes(field[:len(field)-1]); n != 0 {
					t.Errorf("field %d of %d bytes without its last byte: read %d bytes", num, size, n)
				}
			}
		}
	}
	for name, message := range map[string][]byte{
		"empty":           {},
		"a tag alone":     {0x0a},
		"a field 0":       {0x02, 0x00},
		"a varint":        {0x08, 0x01},
		"a group":         {0x0b, 0x0c},
		"an endless tag":  bytes.Repeat([]byte{0xff}, 12),
		"a length beyond": {0x0a, 0x05, 1, 2},
	} {
		if num, value, n := NextBytes(message); num != 0 || value != nil || n != 0 {
			t.Errorf("%s: got field %d, %d bytes, %d in all", name, num, len(value), n)
		}
	}
}
