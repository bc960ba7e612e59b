package integration

import (
	"fmt"
	"strings"
	"testing"
)

// TestNamesBeyondARequestCostTheirClientAlone checks that one client with very many names cannot make the
// relay's request too large for the control plane, which would end the stream for all clients. Nor can it use
// all bytes of that request for itself.
func TestNamesBeyondARequestCostTheirClientAlone(t *testing.T) {
	for _, tt := range []struct {
		name         string
		names, bytes int
	}{{"long names", 1500, 4000}, {"many names", 100_000, 42}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cp := startControlPlane(t, sotw)
			cp.set(plainEndpoints("canary", 1), plainEndpoints("late", 1))
			r := startRelay(t, relayTo(cp.address, "sotw")+"cache: {linger: 50ms}\n")
			canary := newClient(t, r, sotw, node("canary", ""))
			canary.subscribe(endpointType, "canary")
			canary.awaitHas(t, "its endpoints", plainEndpoints("canary", 1))

			hog := newClient(t, r, delta, node("hog", ""))
			names := make([]string, tt.names)
			for i := range names {
				names[i] = fmt.Sprintf("%0*d", tt.bytes, i)
			}
			const parts = 2 // because the hog's own requests are limited, too
			for i := range parts {
				hog.subscribe(endpointType, names[i*len(names)/parts:(i+1)*len(names)/parts]...)
			}
			refused := func(v *view) (n int) {
				for _, err := range v.errors {
					if strings.Contains(err, "max_request_bytes") {
						n++
					}
				}
				return n
			}
			hog.await(t, "the relay refuses names", func(v *view) bool { return refused(v) > 0 })
			cp.set(plainEndpoints("canary", 2))
			canary.awaitHas(t, "a change", plainEndpoints("canary", 2))

			late := newClient(t, r, delta, node("late", ""))
			late.subscribe(endpointType, "late")
			late.awaitHas(t, "its endpoints, although the hog uses as many bytes as it may", plainEndpoints("late", 1))

			// The relay may leave out names for a while if the control plane takes seconds for an answer.
			cp.await(t, "most of the bytes of the relay's request are names", func(s *seen) bool {
				requested, most := len(s.wanted(endpointType))*tt.bytes, 4<<20
				return requested >= most/2 && requested <= most
			})
			if n := look(cp.recorder, func(s *seen) int { return s.opened }); n != 1 {
				t.Errorf("the relay opened %d streams to the control plane, want 1", n)
			}

			hog.leave()
			next := newClient(t, r, delta, node("next", ""))
			more := names[len(names)-len(names)/4:] // the relay refused these
			next.subscribe(endpointType, more...)
			cp.await(t, "the relay requests the refused names when there is room", func(s *seen) bool {
				stream := s.only()
				return stream != nil && stream.wanted[topic{endpointType, more[0]}] && stream.wanted[topic{endpointType, more[len(more)-1]}]
			})
		})
	}
}
