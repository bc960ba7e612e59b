package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// TestThousandClientsCostOneStreamAndOneSubscriptionPerName checks the purpose of the relay: the load on the
// control plane does not grow with the number of clients.
func TestThousandClientsCostOneStreamAndOneSubscriptionPerName(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			const (
				clients = 1000
				alone   = 40 // clients with their own connections
				shared  = 20 // connections that the other clients share
				linger  = time.Second
			)
			var names []string
			var resources []proto.Message
			for i := range 100 {
				names = append(names, fmt.Sprintf("endpoints-%03d", i))
				resources = append(resources, plainEndpoints(names[i], uint32(1000+i)))
			}
			cp := startControlPlane(t, upstream)
			cp.set(append(resources, plainCluster("kept", ""))...)
			config := relayTo(cp.address, string(upstream)) + fmt.Sprintf("cache: {linger: %v}\n", linger)
			if upstream == sotw { // otherwise names linger only once the relay has seen that
				config = strings.Replace(config, "protocol: sotw", "protocol: sotw\n        sotw_answers: all", 1)
			}
			r := startRelay(t, config)

			// One client with another resource keeps the relay's stream open to the end, so that the relay
			// can send unsubscriptions on it.
			keeper := newClient(t, r, delta, node("keeper", ""))
			keeper.subscribe(clusterType, "kept")
			keeper.awaitHas(t, "its cluster", plainCluster("kept", ""))

			var conns []*grpc.ClientConn
			for range shared {
				conns = append(conns, connect(t, r.address))
			}
			var all []*client
			began := time.Now()
			for i := range clients {
				f := []form{delta, sotw}[i%2]
				n := node(fmt.Sprintf("client-%d", i), "")
				if i < alone {
					all = append(all, newClient(t, r, f, n))
				} else {
					all = append(all, newClientOn(t, conns[i%shared], f, n))
				}
				all[i].subscribe(endpointType, names...)
			}
			everything := contents(resources...)
			for _, c := range all {
				c.awaitContents(t, "all resources", everything)
			}
			t.Logf("%d clients have %d resources each after %v", clients, len(names), time.Since(began).Round(time.Millisecond))
			cp.read(func(s *seen) {
				if s.opened != 1 {
					t.Errorf("the control plane saw %d streams, want 1", s.opened)
				}
				if got := s.wanted(endpointType); !slices.Equal(got, names) {
					t.Errorf("the control plane sees subscriptions to %d names, want %d: %v", len(got), len(names), got)
				}
				for _, name := range names {
					if requested := s.requested[topic{endpointType, name}]; requested != 1 {
						t.Errorf("the control plane received %d requests for %s, want 1", requested, name)
					}
				}
				if got := s.sentOf(endpointType, 0); !slices.Equal(got, names) {
					t.Errorf("the control plane sent %d resources, want each of %d once: %v", len(got), len(names), got)
				}
			})

			// An update reaches all clients, and nothing else does: the next resource that a client receives
			// is the next update.
			marks := make([]int, clients)
			for i, c := range all {
				marks[i] = c.mark()
			}
			began = time.Now()
			for _, next := range []proto.Message{plainEndpoints(names[42], 42), plainEndpoints(names[43], 43)} {
				cp.set(next)
				for _, c := range all {
					c.awaitHas(t, "the update", next)
				}
			}
			t.Logf("two updates reached all clients after %v", time.Since(began).Round(time.Millisecond))
			for i, c := range all {
				c.read(func(v *view) {
					if got, want := v.received(endpointType, marks[i]), names[42:44]; !slices.Equal(got, want) {
						t.Fatalf("client %d (%s) received %v, want %v", i, c.form, got, want)
					}
				})
			}

			// The relay unsubscribes only when the linger time has passed after the last client has left.
			last := all[clients-1]
			for _, c := range all[:clients-1] {
				c.leave()
			}
			left := time.Now() // before the call, because the relay may notice the end before the call returns
			last.leave()
			cp.await(t, "the control plane sees the unsubscriptions", func(s *seen) bool { return len(s.wanted(endpointType)) == 0 })
			if after := time.Since(left); after < linger {
				t.Errorf("the relay unsubscribed %v after the last client had left, want at least %v", after, linger)
			}
			cp.read(func(s *seen) {
				stream := s.only()
				if stream == nil || s.opened != 1 || !stream.wanted[topic{clusterType, "kept"}] {
					t.Errorf("want that only the first stream is open, with the keeper's cluster; the control plane has seen %s", s)
				}
			})
			keeper.mustLive(t)
			keeper.leave()
			cp.await(t, "the relay's stream ends", func(s *seen) bool { return len(s.streams) == 0 })
		})
	}
}
