package integration

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// TestGarbageIsRejectedAndWhatIsGoodIsServed checks that the relay NACKs a response with resources that it
// cannot store, with the reason, and serves the good resources of the same response. xDS: "ACK and NACK".
func TestGarbageIsRejectedAndWhatIsGoodIsServed(t *testing.T) {
	for _, garbage := range []struct {
		name string
		bad  []*discoveryv3.Resource
		want []string // parts of the NACK's error message
	}{ // In delta the name of a resource is next to it, in SotW only inside.
		{"an undecodable Any", []*discoveryv3.Resource{undecodable("bad", endpointType)}, []string{"resources[1]", "cannot parse"}},
		{"an empty name", []*discoveryv3.Resource{versioned(t, "1", plainEndpoints("", 9))}, []string{"resources[1]", "no name"}},
		{
			"a name twice",
			[]*discoveryv3.Resource{versioned(t, "1", plainEndpoints("bad", 9)), versioned(t, "1", plainEndpoints("bad", 8))},
			[]string{"resources[2]", `"bad"`, "twice"},
		},
		{"a resource of another type", []*discoveryv3.Resource{versioned(t, "1", plainCluster("bad", ""))}, []string{"resources[1]", clusterType, endpointType}},
	} {
		for _, upstream := range []form{delta, sotw} {
			t.Run(garbage.name+" over "+string(upstream), func(t *testing.T) {
				t.Parallel()
				h := startHandmade(t)
				r := startRelay(t, relayTo(h.address, string(upstream)))
				var clients []*client
				for _, f := range []form{delta, sotw} {
					c := newClient(t, r, f, node("client", ""))
					c.subscribe(endpointType, "good-1", "bad", "good-2")
					clients = append(clients, c)
				}
				s := h.stream(t)
				if s.form != upstream {
					t.Fatalf("the relay speaks %s, want %s", s.form, upstream)
				}
				s.awaitAsked(t, endpointType, "good-1", "bad", "good-2")

				response := []*discoveryv3.Resource{versioned(t, "1", plainEndpoints("good-1", 1))}
				response = append(response, garbage.bad...)
				response = append(response, versioned(t, "1", plainEndpoints("good-2", 2)))
				nack := s.respond(t, endpointType, "first", response...)
				for _, want := range garbage.want {
					if !strings.Contains(nack, want) {
						t.Errorf("the control plane received the NACK %q, want %q in it", nack, want)
					}
				}
				for _, good := range []string{"good-1", "good-2"} {
					if strings.Contains(nack, good) {
						t.Errorf("the control plane received the NACK %q, which blames %s", nack, good)
					}
				}
				// If the relay knows the name of the bad resource, clients receive the error, too.
				received := strings.Contains(nack, `"bad"`)
				for _, c := range clients {
					c.awaitHas(t, "the good resources", plainEndpoints("good-1", 1), plainEndpoints("good-2", 2))
					c.await(t, "the client receives an error for the bad resource", func(v *view) bool {
						return !received || v.errors[topic{endpointType, "bad"}] != ""
					})
					c.read(func(v *view) {
						if bad, held := v.held[topic{endpointType, "bad"}]; held {
							t.Errorf("the %s client received the bad resource: %q", c.form, bad.value)
						}
						if v.gone[topic{endpointType, "bad"}] {
							t.Errorf("the %s client received a removal of the bad resource", c.form)
						}
					})
				}

				// The relay accepts and serves a corrected response.
				if nack := s.respond(t, endpointType, "second",
					versioned(t, "2", plainEndpoints("good-1", 3)), versioned(t, "2", plainEndpoints("bad", 4))); nack != "" {
					t.Errorf("the relay rejected a good response: %s", nack)
				}
				for _, c := range clients {
					c.awaitHas(t, "the corrected resources", plainEndpoints("good-1", 3), plainEndpoints("bad", 4), plainEndpoints("good-2", 2))
				}
			})
		}
	}
}
