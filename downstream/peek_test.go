package downstream

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// Two requests look the same exactly if nothing but nonce and version tells them
// apart.
func TestGlanceTellsRequestsApart(t *testing.T) {
	base := func() *discoveryv3.DiscoveryRequest {
		return &discoveryv3.DiscoveryRequest{
			TypeUrl: endpointType, VersionInfo: "1", ResponseNonce: "1",
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
		a, b := sotwFields.peek(encoded(base())), sotwFields.peek(encoded(is))
		same := a.asks == b.asks && a.node == b.node && !b.more
		if same != tt.same {
			t.Errorf("%s: got %t, want %t", tt.name, same, tt.same)
		}
		if string(b.nonce) != is.GetResponseNonce() || string(b.typeURL) != is.GetTypeUrl() {
			t.Errorf("%s: got nonce %q and type %q", tt.name, b.nonce, b.typeURL)
		}
	}
}

// Of a delta request only an ACK says nothing new.
func TestGlanceSeesAnACKInDelta(t *testing.T) {
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: "7"}
	if g := deltaFields.peek(encoded(ack)); g.more || string(g.nonce) != "7" {
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
		if g := deltaFields.peek(encoded(is)); !g.more {
			t.Errorf("%s: taken for an ACK", name)
		}
	}
	if g := deltaFields.peek([]byte{0xff}); !g.more {
		t.Error("what cannot be read is taken for an ACK")
	}
}
