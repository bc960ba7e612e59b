package wire

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// Two requests look the same exactly if nothing but nonce and version tells them
// apart.
func TestPeekTellsRequestsApart(t *testing.T) {
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

// Of a delta request only an ACK says nothing new.
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
