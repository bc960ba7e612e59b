package envoy

// What takes the place of something else in one push. Envoy takes the old one away before it adds the new one.

import (
	"fmt"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// replace replaces a resource by another, again and again, and changes something else in the same push. put takes the
// old one away and adds the new one, which refers to a RouteConfiguration. warms says that the new one waits for its
// routes before it takes the place; otherwise requests fail meanwhile, with and without the relay.
func (s *side) replace(warms bool, format string, put func(w world, from, to, routes string)) {
	first, second := s.backend("first"), s.backend("second")
	n := 0
	name := func(n int) string { return fmt.Sprintf(format, n) }
	next := func(w world, routes string) { put(w, name(n-1), name(n), routes) }
	s.push(func(w world) {
		// All clusters that are used are there from the beginning, so that no request has to wait for one.
		for name, b := range map[string]*backend{"one": first, "two": second, "spare": first, "more": first} {
			s.clusterWith(w, name, b)
		}
		w.set("routes", routesTo("routes", "one"))
		next(w, "routes")
	})
	s.step("requests reach the first backend", s.reaches(first))
	s.send()
	for _, change := range []struct {
		name    string
		renamed bool // its routes
		more    func(w world) (routes string)
		to      *backend
	}{
		{"alone", false, func(world) string { return "routes" }, first},
		{"while a Cluster goes", false, func(w world) string {
			w.drop("spare")
			return "routes"
		}, first},
		{"while its routes change", false, func(w world) string {
			w.set("routes", routesTo("routes", "two"))
			return "routes"
		}, second},
		{"while its routes are renamed", true, func(w world) string {
			w.drop("routes")
			w.set("others", routesTo("others", "one"))
			return "others"
		}, first},
		{"while its routes are renamed and a Cluster goes", true, func(w world) string {
			w.drop("others", "more")
			w.set("routes", routesTo("routes", "two"))
			return "routes"
		}, second},
	} {
		if change.renamed && !warms {
			s.load.end()
		}
		n++
		s.push(func(w world) { next(w, change.more(w)) })
		s.step("it is replaced "+change.name, all(s.mentions(name(n)), s.reaches(change.to)))
	}
}

// A Listener is replaced by one with the same address.
func TestAListenerIsReplaced(t *testing.T) {
	play(t, scenario{unversioned: severalNames, run: func(s *side) {
		s.replace(true, "shop-%d", func(w world, from, to, routes string) {
			w.drop(from)
			w.set(to, s.listener(to, s.address, routes))
		})
	}})
}

// A scope is replaced by one with the same key, in one response. Envoy removes the one and adds the other in two steps,
// and answers 404 in between, also if it is connected directly. It requests nothing meanwhile. So how many requests fail
// depends on how busy the machine is.
func TestAScopeIsReplaced(t *testing.T) {
	play(t, scenario{unversioned: severalNames, slack: func(direct int) int { return 8 }, run: func(s *side) {
		s.replace(false, "scope-%d", func(w world, from, to, routes string) {
			w.set("shop", listenerOf("shop", s.address, s.manager(&hcmv3.HttpConnectionManager{
				RouteSpecifier: &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: s.scopedByHost()},
			})))
			w.drop(from)
			w.set(to, &routev3.ScopedRouteConfiguration{
				Name: to, RouteConfigurationName: routes,
				Key: &routev3.ScopedRouteConfiguration_Key{Fragments: []*routev3.ScopedRouteConfiguration_Key_Fragment{{
					Type: &routev3.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: s.address},
				}}},
			})
		})
	}})
}

// scopedByHost returns scoped routes whose keys are values of the header Host.
func (s *side) scopedByHost() *hcmv3.ScopedRoutes {
	type (
		fragment  = hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder
		extractor = hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor
	)
	return &hcmv3.ScopedRoutes{
		Name: "scopes", RdsConfigSource: s.source(),
		ScopeKeyBuilder: &hcmv3.ScopedRoutes_ScopeKeyBuilder{Fragments: []*fragment{{
			Type: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_{HeaderValueExtractor: &extractor{
				Name: ":authority", ExtractType: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_Index{Index: 0},
			}},
		}}},
		ConfigSpecifier: &hcmv3.ScopedRoutes_ScopedRds{ScopedRds: &hcmv3.ScopedRds{ScopedRdsConfigSource: s.source()}},
	}
}

// A virtual host, which comes by VHDS, is replaced by one with the same domain. Only delta clients have VHDS.
func TestAVirtualHostIsReplaced(t *testing.T) {
	play(t, scenario{
		forms: []form{{true, true}, {true, false}},
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			// Envoy removes a virtual host only if its name is that of its resource.
			host := func(n int) string { return fmt.Sprint("routes/host-", n) }
			s.push(func(w world) {
				s.shop(w, "one", first)
				w.set("routes", &routev3.RouteConfiguration{Name: "routes", Vhds: &routev3.Vhds{ConfigSource: s.source()}})
				s.clusterWith(w, "two", second)
				s.clusterWith(w, "spare", first)
				w.set(host(0), hostTo(host(0), "one", "*"))
			})
			s.step("requests reach the first backend", s.reaches(first))
			s.send()
			for n, more := range []func(w world){
				func(world) {},
				func(w world) { w.drop("spare") },
				func(w world) { w.set("shop", s.listener("shop", s.address, "routes")) },
			} {
				to := []*backend{second, first}[n%2]
				s.push(func(w world) {
					more(w)
					w.drop(host(n))
					w.set(host(n+1), hostTo(host(n+1), map[*backend]string{first: "one", second: "two"}[to], "*"))
				})
				s.step(fmt.Sprint("it is replaced, ", n+1), s.reaches(to))
			}
		},
	})
}

// A control plane restarts as a release that names its Listeners differently.
func TestListenersAreRenamedByARestart(t *testing.T) {
	const count = 12
	play(t, scenario{run: func(s *side) {
		first := s.backend("first")
		addresses := []string{s.address}
		for len(addresses) < count {
			addresses = append(addresses, s.newAddress())
		}
		put := func(w world, format string) (names []string) {
			for i, address := range addresses {
				names = append(names, fmt.Sprintf(format, i))
				w.set(names[i], s.listener(names[i], address, "routes"))
			}
			return names
		}
		var before, after []string
		s.push(func(w world) {
			s.shop(w, "one", first)
			w.drop("shop")
			before = put(w, "old-%d")
		})
		s.step("the Listeners are there", all(s.shows(activeListener, before...), s.reaches(first)))
		s.send()
		s.plane.stop()
		s.push(func(w world) {
			w.drop(before...)
			after = put(w, "new-%d")
		})
		s.plane.start()
		s.step("Envoy has heard of their new names", s.mentions(after...))
	}})
}

// A Listener is replaced by one with the same address while the relay rolls changes out.
func TestAListenerIsReplacedInARollout(t *testing.T) {
	play(t, scenario{
		relay: func(_ *side, config peers.Config) {
			config["authorities"].([]any)[0].(peers.Config)["rollout"] = peers.Config{"soak": "300ms"}
		},
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) {
				s.shop(w, "one", first)
				s.clusterWith(w, "two", second)
			})
			s.step("requests reach the first backend", s.reaches(first))
			s.send()
			s.push(func(w world) { w.set("routes", routesTo("routes", "two")) })
			s.step("a change of its routes arrives", s.reaches(second))
			s.push(func(w world) {
				w.drop("shop")
				w.set("store", s.listener("store", s.address, "routes"))
			})
			s.step("Envoy has taken the new Listener, or refused it", s.tried("store"))
		},
	})
}

// A Listener is replaced by one with the same address while the relay is away.
func TestAListenerIsReplacedDuringARestart(t *testing.T) {
	play(t, scenario{run: func(s *side) {
		first := s.backend("first")
		s.push(func(w world) { s.shop(w, "one", first) })
		s.step("requests reach the backend", s.reaches(first))
		s.send()
		s.killRelay()
		s.push(func(w world) {
			w.drop("shop")
			w.set("store", s.listener("store", s.address, "routes"))
		})
		s.startRelay()
		s.step("Envoy has taken the new Listener, or refused it", s.tried("store"))
	}})
}

// tried returns a condition: Envoy has a Listener, or has refused one.
func (s *side) tried(listener string) func() error {
	return func() error {
		if s.shows(activeListener, listener)() == nil {
			return nil
		}
		return s.counts(`^listener_manager\.lds\.update_rejected$`, 1)()
	}
}
