package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
)

// TestTheControlPlaneHearsWhatClientsReject tests that the control plane is sent a NACK of what the relay has
// acknowledged and clients reject: in the words of the client if it is alone, and otherwise with how many reject it.
// The answers of some clients do not change what others get.
func TestTheControlPlaneHearsWhatClientsReject(t *testing.T) {
	t.Parallel()
	inEachForm(t, func(t *testing.T, f form) {
		for _, tt := range []struct {
			clients, rejecting int
			want               []string // one of them
		}{
			{1, 1, []string{"no such filter: bad"}},
			{3, 1, []string{"1 of 3 clients reject it (envoy-0): no such filter: bad"}},
			{3, 2, []string{
				"2 of 3 clients reject it (envoy-0, envoy-1): no such filter: bad",
				"2 of 3 clients reject it (envoy-1, envoy-0): no such filter: bad",
			}},
		} {
			t.Run(fmt.Sprintf("%d of %d", tt.rejecting, tt.clients), func(t *testing.T) {
				t.Parallel()
				h := startHandmade(t)
				r := startRelay(t, relayTo(h.address, string(f)))
				fl := newFleet(t, f, func() *grpc.ClientConn { return connect(t, r.address) })
				for i := range tt.clients {
					is := temper{}
					if i < tt.rejecting {
						is.rejects = "bad"
					}
					fl.join(fmt.Sprintf("envoy-%d", i), "envoy", is, listenerType)
				}
				s := h.stream(t)
				s.awaitAsked(t, listenerType, wildcard)
				s.respond(t, listenerType, "1", versioned(t, "1", plainListener("l", "content-l1")))
				fl.await(t, "all clients have the first state", func(s *fleetState) bool { return len(s.who("l1")) == tt.clients })
				s.send(t, listenerType, "2", versioned(t, "2", plainListener("l", "content-bad")))
				s.requests.await(t, "the relay rejects the response for its clients", func(all *requests) bool {
					last := (*all)[len(*all)-1]
					return last.nonce == "2" && slices.Contains(tt.want, last.nack.GetMessage()) && (f == delta || last.version == "version 1")
				})
				fl.await(t, "the others have the change", func(s *fleetState) bool { return len(s.who("bad")) == tt.clients-tt.rejecting })

				// The control plane sends the same state again. The relay acknowledges it.
				if nack := s.respond(t, listenerType, "3", versioned(t, "2", plainListener("l", "content-bad"))); nack != "" {
					t.Errorf("the relay rejected the same state twice: %s", nack)
				}
				if nack := s.respond(t, listenerType, "4", versioned(t, "3", plainListener("l", "content-good"))); nack != "" {
					t.Errorf("the relay rejected a good response: %s", nack)
				}
				fl.await(t, "all clients have the good state", func(s *fleetState) bool { return len(s.who("good")) == tt.clients })
				if all := s.nacks(); len(all) != 1 {
					t.Errorf("the control plane was sent %d NACKs, want 1:\n%s", len(all), strings.Join(all, "\n"))
				}
			})
		}
	})
}
