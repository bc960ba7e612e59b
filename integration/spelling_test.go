package integration

import (
	"slices"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
)

// Three spellings of one name. gRPC keeps colons, Envoy encodes them, and the order of the parameters does
// not matter.
const (
	nameBegins    = "xdstp://cp.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/"
	grpcSpelling  = nameBegins + "team:shop/cart?env=live&zone=eu"
	envoySpelling = nameBegins + "team%3Ashop/cart?env=live&zone=eu"
	otherOrder    = nameBegins + "team:shop/cart?zone=eu&env=live"
)

// TestSpellingsShareASubscriptionAndClientsGetTheirOwn checks that several spellings of one name are one
// resource, and that each client receives it under its own spelling, in SotW inside the resource. TP1:
// "Normalization".
func TestSpellingsShareASubscriptionAndClientsGetTheirOwn(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cp := startControlPlane(t, upstream)
			cp.set(plainEndpoints(grpcSpelling, 1))
			r := startRelay(t, relayTo(cp.address, string(upstream)))

			type spelt struct {
				*client
				name string
			}
			var clients []spelt
			for _, f := range []form{delta, sotw} {
				for _, name := range []string{grpcSpelling, envoySpelling, otherOrder} {
					c := newClient(t, r, f, node(string(f)+" client", ""))
					c.subscribe(endpointType, name)
					clients = append(clients, spelt{c, name})
				}
			}
			check := func(content uint32) {
				t.Helper()
				want := plainEndpoints("", content)
				for _, c := range clients {
					c.await(t, "each client holds the resource under its own spelling", func(v *view) bool {
						return v.ended != nil || sameButName(v.held[topic{endpointType, c.name}].value, want)
					})
					c.mustLive(t)
					c.read(func(v *view) {
						if names := v.names(endpointType); !slices.Equal(names, []string{c.name}) {
							t.Errorf("the %s client requested %s and received %q", c.form, c.name, names)
						}
						want := c.name
						if c.form == delta {
							want = grpcSpelling // the control plane's: the name beside the resource is enough
						}
						if inner := v.held[topic{endpointType, c.name}].inner; inner != want {
							t.Errorf("the %s client requested %s and received a resource with the name %s inside, want %s", c.form, c.name, inner, want)
						}
					})
				}
			}
			check(1)
			cp.set(plainEndpoints(grpcSpelling, 2))
			check(2)

			cp.read(func(s *seen) {
				if got := s.wanted(endpointType); s.opened != 1 || !slices.Equal(got, []string{grpcSpelling}) || s.requested[topic{endpointType, grpcSpelling}] != 1 {
					t.Errorf("want one stream with one subscription, to %s; the control plane has seen %s", grpcSpelling, s)
				}
				if stream := s.only(); stream != nil && stream.node.GetId() != "the-relay" {
					t.Errorf("the relay requests xdstp names with the Node id %q, want its own Node", stream.node.GetId())
				}
			})
		})
	}
}

// TestOriginMaySpellANameItsOwnWay checks that the relay recognizes a resource if the control plane answers
// with another spelling than the one that was requested.
func TestOriginMaySpellANameItsOwnWay(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			h := startHandmade(t)
			r := startRelay(t, relayTo(h.address, string(upstream)))
			c := newClient(t, r, delta, node("client", ""))
			c.subscribe(endpointType, otherOrder)
			s := h.stream(t)
			s.awaitAsked(t, endpointType, grpcSpelling)
			if nack := s.respond(t, endpointType, "first", versioned(t, "1", plainEndpoints(envoySpelling, 1))); nack != "" {
				t.Errorf("the relay rejected a name in another spelling: %s", nack)
			}
			c.await(t, "the client has the endpoints under its own spelling", func(v *view) bool {
				return sameButName(v.held[topic{endpointType, otherOrder}].value, plainEndpoints("", 1))
			})
		})
	}
}

// sameButName reports whether value differs from want in nothing but its name.
func sameButName(value string, want *endpointv3.ClusterLoadAssignment) bool {
	var got endpointv3.ClusterLoadAssignment
	if err := proto.Unmarshal([]byte(value), &got); err != nil {
		return false
	}
	got.ClusterName = want.GetClusterName()
	return proto.Equal(&got, want)
}
