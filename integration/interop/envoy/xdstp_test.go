package envoy

// Names with an authority.

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
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

// Names with the authority whose resources have no config source next to them: Envoy gets them from the bootstrap's
// config_sources, over a second stream.
func TestNamesWithAuthorityOfASecondStream(t *testing.T) {
	play(t, scenario{
		// The second stream is aggregated, whatever the first is.
		forms: aggregatedForms,
		flags: []string{"--xdstp"},
		bootstrap: func(s *side, bootstrap object) {
			if !s.form.delta {
				bootstrap["config_sources"].([]any)[0].(object)["api_config_source"].(object)["api_type"] = "AGGREGATED_GRPC"
			}
		},
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) {
				w.set("shop", listenerOf("shop", s.address, s.manager(&hcmv3.HttpConnectionManager{
					RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: xdstpRoutes + "routes"}},
				})))
				w.set(xdstpRoutes+"routes", routesTo(xdstpRoutes+"routes", "one"))
				c := s.cluster("one", xdstpEndpoints+"one")
				c.EdsClusterConfig.EdsConfig = nil
				w.set("one", c)
				w.set(xdstpEndpoints+"one", endpoints(xdstpEndpoints+"one", first))
			})
			s.step("requests reach the backend", s.reaches(first))
			s.push(func(w world) { w.set(xdstpEndpoints+"one", endpoints(xdstpEndpoints+"one", second)) })
			s.step("endpoints change", s.reaches(second))
			s.push(func(w world) {
				s.clusterWith(w, "two", first)
				w.set(xdstpRoutes+"routes", routesTo(xdstpRoutes+"routes", "two"))
			})
			s.step("routes change", s.reaches(first))
		},
	})
}

// Envoy adds its Node's id to the globs that it requests. The relay drops it. Directly, the control plane has the members
// under names with it. Inside them, and where they refer to each other, are the names without it.
func TestNamesHaveParametersOfTheNode(t *testing.T) {
	play(t, scenario{
		globs: true,
		// In SotW, Envoy knows a member by the name inside, which has to have the parameter.
		forms: []form{{delta: true, aggregated: true}, {delta: true, aggregated: false}},
		relay: func(_ *side, config peers.Config) {
			config["authorities"].([]any)[0].(peers.Config)["context_parameters"] = peers.Config{"drop": []any{"xds.node.id"}}
		},
		bootstrap: func(_ *side, bootstrap object) { bootstrap["node_context_params"] = []any{"id"} },
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			push := func(b *backend) {
				s.push(func(w world) {
					s.globs(w, b)
					if s.relay != nil {
						return
					}
					for typeURL, name := range map[string]string{
						resource.ListenerType: xdstpListeners + "shop",
						resource.ClusterType:  xdstpClusters + "one",
					} {
						w.setAs(typeURL, name+"?xds.node.id="+nodeID, w[typeURL][name])
						delete(w[typeURL], name)
					}
				})
			}
			push(first)
			s.step("requests reach the backend", s.reaches(first))
			push(second)
			s.step("endpoints change", s.reaches(second))
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

// Members of the globs are removed while Envoy's connection is cut. In delta, Envoy does not say what it has of a glob
// when it connects again, and a control plane that has forgotten its stream does not tell it. The relay does.
func TestMembersOfAGlobGoWhileEnvoyIsAway(t *testing.T) {
	play(t, scenario{
		globs: true, forms: globForms, linked: true,
		differs: func(_ row, line string) bool { return strings.HasPrefix(line, "- ") && ofGoneMember(line) },
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) { s.members(w, first) })
			s.step("both listeners are there", all(s.reaches(first), s.shows(activeListener, xdstpListeners+"more")))
			s.link.Cut()
			s.push(func(w world) { s.fewerMembers(w, second) })
			s.link.Mend()
			s.step("requests reach other endpoints, and what is gone is gone", all(s.reaches(second), func() error {
				if s.relay == nil && s.form.delta {
					return nil
				}
				return s.lackGoneMembers()
			}))
		},
	})
}

// Members of the globs are removed while the relay is away. An Envoy that is connected directly notices nothing of that.
// With a store, the relay knows what was there before.
func TestMembersOfAGlobGoWhileTheRelayIsAway(t *testing.T) {
	play(t, scenario{
		globs: true, forms: globForms,
		relay: func(s *side, config peers.Config) {
			config["store"] = peers.Config{"path": filepath.Join(s.TempDir(), "store.db")}
		},
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.push(func(w world) { s.members(w, first) })
			s.step("both listeners are there", all(s.reaches(first), s.shows(activeListener, xdstpListeners+"more")))
			if s.relay != nil {
				s.relay.AwaitStored()
			}
			s.killRelay()
			s.push(func(w world) { s.fewerMembers(w, second) })
			s.startRelay()
			s.step("requests reach other endpoints, and what is gone is gone", all(s.reaches(second), s.lackGoneMembers))
		},
	})
}

func (s *side) lackGoneMembers() error {
	return all(s.lacks(activeListener, xdstpListeners+"more"), s.lacks(activeCluster, xdstpClusters+"two"))()
}

// ofGoneMember reports whether a line of a summary is about what fewerMembers removes.
func ofGoneMember(line string) bool {
	for _, name := range []string{xdstpListeners + "more", xdstpClusters + "two", xdstpEndpoints + "two"} {
		if strings.Contains(line, name) {
			return true
		}
	}
	return false
}

// members puts two Listeners and two Clusters in a world.
func (s *side) members(w world, b *backend) {
	s.globs(w, b)
	w.set(xdstpListeners+"more", s.listener(xdstpListeners+"more", s.newAddress(), xdstpRoutes+"routes"))
	w.set(xdstpClusters+"two", s.cluster(xdstpClusters+"two", xdstpEndpoints+"two"))
	w.set(xdstpEndpoints+"two", endpoints(xdstpEndpoints+"two", b))
}

// fewerMembers removes one of each from a world, and changes the other's endpoints.
func (s *side) fewerMembers(w world, b *backend) {
	w.drop(xdstpListeners+"more", xdstpClusters+"two", xdstpEndpoints+"two")
	w.set(xdstpEndpoints+"one", endpoints(xdstpEndpoints+"one", b))
}

// Endpoints whose name leads elsewhere. Envoy knows neither redirects nor alternatives: the relay follows them. Directly,
// the control plane has the endpoints under the name that Envoy requests. Inside them Envoy wants the name as the Cluster
// has it.
func TestNamesLeadElsewhere(t *testing.T) {
	const alternative = "xdstp://control-plane/envoy.config.endpoint.v3.ClusterLoadAssignment/elsewhere/n"
	for _, lead := range []struct {
		name               string
		written, requested string
		redirect           bool
	}{
		{name: "redirect", written: "r1", requested: "r1", redirect: true},
		{name: "redirect, not in normal form", written: "r2?b=1&a=2", requested: "r2?a=2&b=1", redirect: true},
		{name: "alternative", written: "gone#alt=" + alternative},
		{name: "alternative, escaped for gRPC", written: "gone%23alt=xdstp%3A" + strings.TrimPrefix(alternative, "xdstp:")},
		{name: "alternative, as Envoy escapes it", written: "gone%23alt=" + alternative},
	} {
		t.Run(lead.name, func(t *testing.T) {
			if lead.requested == "" {
				lead.requested = "gone%23alt=" + alternative
			}
			play(t, scenario{
				// A stream for each type, and the other form, request the same names.
				forms: aggregatedForms,
				relay: func(_ *side, config peers.Config) {
					config["authorities"].([]any)[0].(peers.Config)["failover"] = peers.Config{"not_found": true}
				},
				run: func(s *side) {
					first, second := s.backend("first"), s.backend("second")
					put := func(w world, b *backend) {
						if s.relay == nil {
							w.set(xdstpEndpoints+lead.requested, endpoints(xdstpEndpoints+lead.written, b))
							return
						}
						w.set(alternative, endpoints(alternative, b))
						if lead.redirect {
							w.setAs(resource.EndpointType, xdstpEndpoints+lead.requested, &xdscorev3.ResourceLocator{
								Scheme: xdscorev3.ResourceLocator_XDSTP, Authority: "control-plane",
								ResourceType: "envoy.config.endpoint.v3.ClusterLoadAssignment", Id: "elsewhere/n",
							})
						}
					}
					s.push(func(w world) {
						s.shop(w, "one", first)
						w.drop("one")
						w.set("one", s.cluster("one", xdstpEndpoints+lead.written))
						put(w, first)
					})
					s.step("requests reach the backend", s.reaches(first))
					s.push(func(w world) { put(w, second) })
					s.step("endpoints change", s.reaches(second))
				},
			})
		})
	}
}
