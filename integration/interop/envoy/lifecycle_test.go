package envoy

// Starts, restarts, and connections that are lost: of Envoy, of the relay, and of the control plane.

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// Envoy is there first, then the relay, then the control plane.
func TestEnvoyStartsBeforeItsControlPlane(t *testing.T) {
	play(t, scenario{
		late: true,
		run: func(s *side) {
			s.killRelay()
			s.envoy.start()
			s.await("Envoy has found nobody", s.counts(`^cluster\.xds-relay\.upstream_cx_connect_fail$`, 1))
			s.startRelay()
			if s.relay != nil {
				s.await("Envoy is connected to the relay", s.counts(`control_plane\.connected_state$`, 1))
			}
			s.push(func(w world) { s.shop(w, "one", s.backend("first")) })
			s.plane.start()
			s.step("requests reach the backend", s.reaches(s.backend("first")))
			s.step("Envoy is live", s.envoy.live)
		},
	})
}

// A control plane restarts: as it was, with changes, with less.
func TestTheControlPlaneRestarts(t *testing.T) {
	play(t, scenario{
		planes: []kind{scripted, snapshots, linear},
		only:   func(k kind, f form) bool { return k == scripted || f.aggregated },
		run: func(s *side) {
			first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
			other := s.newAddress()
			s.push(func(w world) {
				s.shop(w, "one", first)
				w.set("other", s.listener("other", other, "routes"))
			})
			s.step("requests reach the first backend by both Listeners", all(s.reaches(first), s.reachesAt(other, first)))
			s.send()

			s.plane.stop()
			s.plane.start()
			s.push(func(w world) { w.set("one", endpoints("one", second)) })
			s.step("a change after the restart arrives", s.reaches(second))

			s.plane.stop()
			s.push(func(w world) {
				w.set("one", endpoints("one", third))
				s.clusterWith(w, "two", first)
				w.drop("other")
			})
			s.plane.start()
			s.step("changes during the restart arrive", all(s.reaches(third),
				s.shows(activeCluster, "two"), s.lacks(activeListener, "other")))
		},
	})
}

// The relay is killed and comes back, and it drains. An Envoy that is connected directly notices nothing.
func TestTheRelayRestarts(t *testing.T) {
	play(t, scenario{
		run: func(s *side) {
			first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
			other := s.newAddress()
			s.push(func(w world) {
				s.shop(w, "one", first)
				w.set("other", s.listener("other", other, "routes"))
			})
			s.step("requests reach the first backend by both Listeners", all(s.reaches(first), s.reachesAt(other, first)))
			s.send()

			s.killRelay()
			s.startRelay()
			s.push(func(w world) { w.set("one", endpoints("one", second)) })
			s.step("a change after the restart arrives", s.reaches(second))

			s.killRelay()
			s.push(func(w world) {
				w.set("one", endpoints("one", third))
				s.clusterWith(w, "two", first)
				w.drop("other")
			})
			s.startRelay()
			s.step("changes during the restart arrive", all(s.reaches(third),
				s.shows(activeCluster, "two"), s.lacks(activeListener, "other")))

			if s.relay != nil {
				s.relay.Drain()
				<-s.relay.Process().Ended()
			}
			s.startRelay()
			s.push(func(w world) { w.set("one", endpoints("one", first)) })
			s.step("a change after the drain arrives", s.reaches(first))
		},
	})
}

// The relay to which Envoy is connected is killed, and Envoy moves to another one. When that one drains, it returns to
// the first.
func TestEnvoyMovesToAnotherRelay(t *testing.T) {
	play(t, scenario{
		relay: func(s *side, config peers.Config) { s.another = peers.StartRelay(s, maps.Clone(config)) },
		bootstrapFlags: func(s *side) []string {
			return []string{"--server", s.another.Address}
		},
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) { s.shop(w, "one", first) })
			s.step("requests reach the first backend", s.reaches(first))
			s.send()
			s.killRelay()
			s.push(func(w world) { w.set("one", endpoints("one", second)) })
			s.step("a change arrives by the other relay", s.reaches(second))
			s.startRelay()
			if s.relay != nil {
				s.another.Drain()
				<-s.another.Process().Ended()
			}
			s.push(func(w world) { w.set("one", endpoints("one", first)) })
			s.step("a change arrives by the first relay", s.reaches(first))
		},
	})
}

// Envoy's connection is cut while something changes, and Envoy is restarted.
func TestEnvoyConnectsAgain(t *testing.T) {
	play(t, scenario{
		linked: true,
		run: func(s *side) {
			backends := []*backend{s.backend("first"), s.backend("second")}
			s.push(func(w world) {
				s.shop(w, "one", backends[0])
				s.clusterWith(w, "two", backends[0])
			})
			s.step("requests reach the first backend", s.reaches(backends[0]))
			s.send()
			s.link.Cut()
			s.push(func(w world) {
				w.set("one", endpoints("one", backends[1]))
				s.clusterWith(w, "three", backends[1])
				w.drop("two")
			})
			s.link.Mend()
			s.step("changes while the connection was cut arrive", all(s.reaches(backends[1]),
				s.shows(activeCluster, "one", "three"), s.lacks(activeCluster, "two")))
			for i := range 6 {
				more := fmt.Sprint("more-", i)
				s.push(func(w world) {
					w.set("one", endpoints("one", backends[i%2]))
					s.clusterWith(w, more, backends[0])
				})
				s.link.Cut()
				s.link.Mend()
				s.step(fmt.Sprint("changes that were under way arrive, ", i+1), all(s.reaches(backends[i%2]), s.shows(activeCluster, more)))
			}
			s.load.end()
			s.envoy.kill()
			s.envoy.start()
			s.step("Envoy has everything after a restart", s.reaches(backends[1]))
		},
	})
}

// Each time that Envoy reconnects it waits longer, until it hears something. A delta control plane that has
// nothing new answers all the same.
func TestEnvoyHearsThatNothingChanged(t *testing.T) {
	play(t, scenario{
		forms:  []form{{true, true}, {true, false}},
		linked: true,
		run: func(s *side) {
			s.push(func(w world) { s.shop(w, "one", s.backend("first")) })
			s.step("requests reach the backend", s.reaches(s.backend("first")))
			for i := range 2 {
				answers, err := s.envoy.stat(updates)
				if err != nil {
					s.Fatal(err)
				}
				s.link.Cut()
				s.link.Mend()
				s.step(fmt.Sprint("Envoy is answered, ", i+1), s.counts(updates, answers+1))
			}
		},
	})
}

// updates are the statistics of the updates of Clusters and Listeners.
const updates = `^(cluster_manager\.cds|listener_manager\.lds)\.update_success$`

// A control plane that is far away.
func TestTheControlPlaneIsFarAway(t *testing.T) {
	play(t, scenario{
		distance: 50 * time.Millisecond,
		linked:   true,
		run: func(s *side) {
			first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
			s.push(func(w world) { s.shop(w, "one", first) })
			s.step("requests reach the first backend", s.reaches(first))
			s.send()
			s.push(func(w world) { w.set("one", endpoints("one", second)) })
			s.step("requests reach other endpoints", s.reaches(second))
			s.push(func(w world) { s.clusterWith(w, "two", third) })
			s.step("there is another Cluster", s.shows(activeCluster, "two"))
			s.push(func(w world) { w.set("routes", routesTo("routes", "two")) })
			s.step("requests reach the other Cluster", s.reaches(third))
			s.push(func(w world) { w.drop("one") })
			s.step("what is gone is gone", s.lacks(activeCluster, "one"))
			s.link.Cut()
			s.push(func(w world) { w.set("two", endpoints("two", first)) })
			s.link.Mend()
			s.step("a change while the connection was cut arrives", s.reaches(first))
			s.plane.stop()
			s.plane.start()
			s.push(func(w world) { w.set("two", endpoints("two", second)) })
			s.step("a change after a restart of the control plane arrives", s.reaches(second))
		},
	})
}

func (s *side) killRelay() {
	if s.relay != nil {
		s.relay.Kill()
	}
}

func (s *side) startRelay() {
	if s.relay != nil {
		s.relay.Start()
	}
}
