package envoy

// Resources that Envoy refuses.

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// refused returns a Listener with a filter that Envoy does not have.
func (s *side) refused(name, address, routes string) *listenerv3.Listener {
	return listenerOf(name, address, s.manager(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: routes, ConfigSource: s.source()}},
		HttpFilters:    []*hcmv3.HttpFilter{{Name: "unknown", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: anyOf(&structpb.Struct{})}}},
	}))
}

// Envoy takes the good Listeners of a response, and refuses the bad one, whether it is new or was good before.
func TestOneListenerIsBad(t *testing.T) {
	play(t, scenario{
		planes: []kind{scripted, linear},
		only:   func(k kind, f form) bool { return k == scripted || f.aggregated },
		// In SotW, Envoy has a stream for each RouteConfiguration, and the relay one for both; and on ADS the relay
		// requests other names at other times. The versions are those of their responses.
		unversioned: severalNames,
		// A SotW control plane sends the refused Listener with each response, in a new version, so it is tried again.
		differs: func(r row, line string) bool {
			return r.form.delta && r.upstream == sotw && strings.HasPrefix(line, "+ dynamic_listeners error_state ")
		},
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			other, bad := s.newAddress(), s.newAddress()
			s.push(func(w world) {
				s.shop(w, "one", first)
				s.clusterWith(w, "two", second)
				w.set("to-two", routesTo("to-two", "two"))
				w.set("other", s.listener("other", other, "routes"))
			})
			s.step("requests reach the first backend", all(s.reaches(first), s.reachesAt(other, first)))
			s.send()
			s.push(func(w world) {
				w.set("bad", s.refused("bad", bad, "routes"))
				w.set("other", s.listener("other", other, "to-two"))
			})
			s.step("a bad Listener does not keep a good one from changing", all(s.shows(refusedListener, "bad"), s.reachesAt(other, second)))
			s.push(func(w world) { w.set("other", s.listener("other", other, "routes")) })
			s.step("the good one changes again", s.reachesAt(other, first))
			s.push(func(w world) { w.set("bad", s.listener("bad", bad, "to-two")) })
			s.step("the bad one is good now", s.reachesAt(bad, second))
			s.push(func(w world) {
				w.set("shop", s.refused("shop", s.address, "to-two"))
				w.set("other", s.listener("other", other, "to-two"))
			})
			s.step("a Listener that becomes bad stays as it was", all(s.shows(refusedListener, "shop"), s.reaches(first), s.reachesAt(other, second)))
			s.push(func(w world) { w.set("one", endpoints("one", second)) })
			s.step("changes of other types arrive", s.reaches(second))
			s.push(func(w world) { w.drop("other") })
			s.step("a Listener goes beside one that is refused", s.lacks(activeListener, "other"))
			s.push(func(w world) { w.set("shop", s.listener("shop", s.address, "to-two")) })
			s.step("the Listener is good again", s.lacks(refusedListener, "shop"))
		},
	})
}

// occupied pushes a Listener whose address is in use, and frees the address when Envoy has refused it.
func (s *side) occupied() (name, address string) {
	s.push(func(w world) { s.shop(w, "one", s.backend("first")) })
	s.step("requests reach the backend", s.reaches(s.backend("first")))
	address = s.newAddress()
	occupant := peers.Listen(s, address)
	s.Cleanup(func() { _ = occupant.Close() })
	s.push(func(w world) { w.set("late", s.listener("late", address, "routes")) })
	s.step("a Listener is refused, as its address is in use", s.shows(refusedListener, "late"))
	_ = occupant.Close()
	return "late", address
}

// A Listener whose reason to be refused has passed is accepted when it changes.
func TestARefusedListenerChanges(t *testing.T) {
	play(t, scenario{run: func(s *side) {
		name, address := s.occupied()
		s.push(func(w world) {
			l := s.listener(name, address, "routes")
			l.PerConnectionBufferLimitBytes = wrapperspb.UInt32(1 << 16)
			w.set(name, l)
		})
		s.step("the changed Listener is accepted", s.reachesAt(address, s.backend("first")))
	}})
}

// It is accepted, too, when the control plane sends it again as it is, with another version.
func TestARefusedListenerIsSentAgain(t *testing.T) {
	play(t, scenario{
		// The relay does not send a resource of which only the version has changed to those who have accepted it.
		unversioned: func(form) bool { return true },
		run: func(s *side) {
			_, address := s.occupied()
			s.plane.script.change(func() { s.plane.script.push = "again" })
			if s.expected == nil {
				s.await("the Listener is accepted", s.reachesAt(address, s.backend("first")))
			}
			s.push(func(w world) { s.clusterWith(w, "more", s.backend("first")) })
			s.step("something else arrives", s.shows(activeCluster, "more"))
		},
	})
}

// The control plane hears what Envoy refuses, and why.
func TestTheControlPlaneHearsRefusals(t *testing.T) {
	play(t, scenario{run: func(s *side) {
		s.push(func(w world) { s.shop(w, "one", s.backend("first")) })
		s.step("requests reach the backend", s.reaches(s.backend("first")))
		address := s.newAddress()
		s.push(func(w world) {
			w.set("bad-listener", s.refused("bad-listener", address, "routes"))
			bad := s.cluster("bad-cluster", "")
			bad.TransportSocket = &corev3.TransportSocket{
				Name: "unknown", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: anyOf(&structpb.Struct{})},
			}
			w.set("bad-cluster", bad)
		})
		s.step("Envoy has refused a Listener and a Cluster", all(
			s.counts(`^listener_manager\.lds\.update_rejected$`, 1), s.counts(`^cluster_manager\.cds\.update_rejected$`, 1)))
		nacks := func() []string {
			all := s.plane.nacks()
			slices.Sort(all)
			return slices.Compact(all)
		}
		if s.expected == nil {
			s.await("the control plane has heard of both", func() error { return equal("refusals", len(nacks()), 2) })
		} else {
			_ = peers.Within(2*time.Second, func() error {
				if !slices.Equal(nacks(), s.expected[len(s.steps)].summary) {
					return errors.New("the control plane has not heard the same")
				}
				return nil
			})
		}
		s.compare("what the control plane has heard", nacks())
	}})
}
