package envoy

// Names with an authority.

import (
	"fmt"
	"net/http"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

const (
	xdstpListeners = "xdstp://control-plane/envoy.config.listener.v3.Listener/"
	xdstpClusters  = "xdstp://control-plane/envoy.config.cluster.v3.Cluster/"
	xdstpEndpoints = "xdstp://control-plane/envoy.config.endpoint.v3.ClusterLoadAssignment/"
	xdstpRoutes    = "xdstp://control-plane/envoy.config.route.v3.RouteConfiguration/"
)

// globForms are the forms in which Envoy requests globs: it refuses a bootstrap with a SotW stream for each type.
var globForms = []form{{delta: true, aggregated: true}, {delta: false, aggregated: true}, {delta: true, aggregated: false}}

// globs puts a Listener, its routes, its cluster and endpoints in a world, under names with the authority.
func (s *side) globs(w world, b *backend) {
	w.set(xdstpListeners+"shop", s.listener(xdstpListeners+"shop", s.address, xdstpRoutes+"routes"))
	w.set(xdstpRoutes+"routes", routesTo(xdstpRoutes+"routes", xdstpClusters+"one"))
	w.set(xdstpClusters+"one", s.cluster(xdstpClusters+"one", xdstpEndpoints+"one"))
	w.set(xdstpEndpoints+"one", endpoints(xdstpEndpoints+"one", b))
}

// An Envoy gets all Listeners and Clusters of an authority by globs, as the printed bootstrap says.
func TestListenersAndClustersByGlob(t *testing.T) {
	play(t, scenario{
		globs: true,
		forms: globForms,
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) { s.globs(w, first) })
			s.step("requests reach the backend", s.reaches(first))
			s.push(func(w world) {
				w.set(xdstpClusters+"two", s.cluster(xdstpClusters+"two", xdstpEndpoints+"two"))
				w.set(xdstpEndpoints+"two", endpoints(xdstpEndpoints+"two", second))
				w.set(xdstpRoutes+"routes", routesTo(xdstpRoutes+"routes", xdstpClusters+"two"))
			})
			s.step("there is another cluster", s.reaches(second))
			s.push(func(w world) { w.drop(xdstpClusters+"one", xdstpEndpoints+"one") })
			s.step("a cluster is gone", s.lacks(activeCluster, xdstpClusters+"one"))
			s.push(func(w world) {
				w.set(xdstpListeners+"more", s.listener(xdstpListeners+"more", s.newAddress(), xdstpRoutes+"routes"))
				// Neither is a member.
				w.set(xdstpClusters+"deep/down", s.cluster(xdstpClusters+"deep/down", ""))
				w.set("old", s.cluster("old", ""))
			})
			s.step("there is another listener", s.reachesAt(s.shared.addresses[1], second))
			s.push(func(w world) { w.drop(xdstpListeners + "more") })
			s.step("it is gone", s.lacks(activeListener, xdstpListeners+"more"))
		},
	})
}

// Routes and endpoints have names with the authority, which Envoy requests from its control plane because the resource
// that refers to them says so.
func TestRoutesAndEndpointsByNamesWithAuthority(t *testing.T) {
	play(t, scenario{
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) {
				w.set("shop", s.listener("shop", s.address, xdstpRoutes+"routes?env=prod&zone=a"))
				w.set(xdstpRoutes+"routes?env=prod&zone=a", routesTo(xdstpRoutes+"routes?env=prod&zone=a", "one"))
				w.set("one", s.cluster("one", xdstpEndpoints+"one?zone=a"))
				w.set(xdstpEndpoints+"one?zone=a", endpoints(xdstpEndpoints+"one?zone=a", first))
				w.set(xdstpEndpoints+"one?zone=b", endpoints(xdstpEndpoints+"one?zone=b", second))
			})
			s.step("requests reach the backend", s.reaches(first))
			s.push(func(w world) { w.set("one", s.cluster("one", xdstpEndpoints+"one?zone=b")) })
			s.step("a parameter changes", s.reaches(second))
			s.push(func(w world) {
				w.set(xdstpEndpoints+"one?zone=b", endpoints(xdstpEndpoints+"one?zone=b", first))
			})
			s.step("endpoints change", s.reaches(first))
			s.push(func(w world) {
				w.set(xdstpRoutes+"routes?env=prod&zone=a", &routev3.RouteConfiguration{Name: xdstpRoutes + "routes?env=prod&zone=a"})
			})
			s.step("routes change", s.answers(call{}, http.StatusNotFound, ""))
		},
	})
}

// spellings are names that are not in normal form, and how Envoy requests them.
var spellings = []struct{ written, requested string }{
	{"n1?zone=a&env=b", "n1?env=b&zone=a"},
	{"n%2D2", "n-2"},
	{"a%3Ab", "a:b"},
	{"n3?env=a%2Fb", "n3?env=a/b"},
}

// The resources that refer to others write names that are not in normal form. Envoy requests the normal form, and
// compares the name in the resource with what is written.
func TestNamesAreNotInNormalForm(t *testing.T) {
	play(t, scenario{
		unversioned: severalNames,
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			addresses := make([]string, len(spellings))
			for i := range spellings {
				addresses[i] = s.newAddress()
			}
			reach := func(b *backend) func() error {
				var conditions []func() error
				for _, address := range addresses {
					conditions = append(conditions, s.reachesAt(address, b))
				}
				return all(conditions...)
			}
			push := func(b *backend) {
				s.push(func(w world) {
					for i, name := range spellings {
						id := fmt.Sprint("n", i)
						w.set(id, s.listener(id, addresses[i], xdstpRoutes+name.written))
						w.set(xdstpRoutes+name.requested, routesTo(xdstpRoutes+name.written, id))
						w.set(id, s.cluster(id, xdstpEndpoints+name.written))
						w.set(xdstpEndpoints+name.requested, endpoints(xdstpEndpoints+name.written, b))
					}
				})
			}
			push(first)
			s.step("requests reach the backend", reach(first))
			push(second)
			s.step("endpoints change", reach(second))
		},
	})
}
