package envoy

// Resources that Envoy requests when a request needs them.

import (
	"net/http"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// onDemand returns the filter that lets requests wait for what they need.
func onDemand(clusters *ondemandv3.OnDemandCds) *hcmv3.HttpFilter {
	return filter("envoy.filters.http.on_demand", &ondemandv3.OnDemand{Odcds: clusters})
}

// filter returns an HTTP filter.
func filter(name string, m proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: anyOf(m)}}
}

// byHeader returns a route to the cluster that a header names.
func byHeader(header string) *routev3.Route {
	return &routev3.Route{
		Match: &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"},
			Headers: []*routev3.HeaderMatcher{{
				Name: header, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
			}},
		},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: header},
		}},
	}
}

// onDemandForms are the forms in which Envoy requests clusters on demand. In SotW with a stream for each type,
// Envoy 1.40 ends with "panic: not supported".
var onDemandForms = []form{{true, true}, {false, true}, {true, false}}

// A request for a cluster that no wildcard gives Envoy waits until Envoy has requested it by its name: one that
// exists, one that does not, one that is created after the first request for it (which the wildcard gives then,
// too), and the removal of both.
func TestClustersOnDemandBesideAWildcard(t *testing.T) {
	play(t, scenario{forms: onDemandForms, unversioned: severalNames, run: func(s *side) {
		first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
		s.plane.script.change(func() {
			s.plane.script.hidden = func(typeURL, name string) bool {
				return typeURL == resource.ClusterType && name == "present"
			}
		})
		to := func(cluster string) call { return call{header: map[string]string{"x-cluster": cluster}} }
		s.push(func(w world) {
			s.shop(w, "one", first)
			w.set("shop", listenerOf("shop", s.address, s.manager(&hcmv3.HttpConnectionManager{
				RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "routes", ConfigSource: s.source()}},
				HttpFilters: []*hcmv3.HttpFilter{onDemand(&ondemandv3.OnDemandCds{
					Source: s.source(), Timeout: durationpb.New(2 * time.Second),
				})},
			})))
			routes := routesTo("routes", "one")
			routes.VirtualHosts[0].Routes = append([]*routev3.Route{byHeader("x-cluster")}, routes.VirtualHosts[0].Routes...)
			w.set("routes", routes)
			w.set("present", s.cluster("present", ""))
			w.set("present", endpoints("present", second))
		})
		s.step("requests reach a cluster of the wildcard", s.answers(call{}, http.StatusOK, "first"))
		s.step("requests reach a cluster that exists", s.answers(to("present"), http.StatusOK, "second"))
		s.step("requests for a cluster that does not exist fail", s.answers(to("absent"), http.StatusServiceUnavailable, ""))
		s.push(func(w world) {
			w.set("absent", s.cluster("absent", ""))
			w.set("absent", endpoints("absent", third))
		})
		s.step("requests reach the cluster that exists now", s.answers(to("absent"), http.StatusOK, "third"))
		s.push(func(w world) { w.remove("present", &clusterv3.Cluster{}) })
		s.step("requests for the cluster that is gone fail", s.answers(to("present"), http.StatusServiceUnavailable, ""))
		s.step("requests still reach a cluster of the wildcard", s.answers(call{}, http.StatusOK, "first"))
		s.push(func(w world) { w.remove("absent", &clusterv3.Cluster{}) })
		s.step("requests for the other cluster that is gone fail", s.answers(to("absent"), http.StatusServiceUnavailable, ""))
	}})
}

// A request for a domain that no virtual host has waits until Envoy has requested it, by an alias: a domain of a
// virtual host that exists, one of no virtual host, one that is created after the first request for it, and one
// that is removed.
func TestVirtualHostsOnDemand(t *testing.T) {
	// VHDS, and aliases, are for delta only.
	play(t, scenario{forms: []form{{true, true}, {true, false}}, upstream: []string{delta}, run: func(s *side) {
		first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
		alias := func(host string, domains ...string) {
			s.plane.script.change(func() {
				for _, domain := range domains {
					key := [2]string{resource.VirtualHostType, host}
					s.plane.script.alias[key] = append(s.plane.script.alias[key], "routes/"+domain)
				}
			})
		}
		s.plane.script.change(func() {
			s.plane.script.hidden = func(typeURL, _ string) bool { return typeURL == resource.VirtualHostType }
			s.plane.script.bodiless = true
		})
		alias("routes/present", "present.example", "also.example")
		alias("routes/later", "later.example")
		at := func(domain string) call { return call{host: domain} }
		s.push(func(w world) {
			s.shop(w, "one", first)
			w.set("shop", listenerOf("shop", s.address, s.manager(&hcmv3.HttpConnectionManager{
				RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "routes", ConfigSource: s.source()}},
				HttpFilters:    []*hcmv3.HttpFilter{onDemand(nil)},
			})))
			w.set("routes", &routev3.RouteConfiguration{
				Name:         "routes",
				VirtualHosts: []*routev3.VirtualHost{hostTo("known", "one", "known.example")},
				// Envoy waits for a first virtual host, and there is none.
				Vhds: &routev3.Vhds{ConfigSource: patient(s.source(), time.Second)},
			})
			for i, b := range []*backend{second, third} {
				name := []string{"two", "three"}[i]
				w.set(name, s.cluster(name, ""))
				w.set(name, endpoints(name, b))
			}
			w.set("routes/present", hostTo("routes/present", "two", "present.example", "also.example"))
		})
		s.step("requests for the domain of the route configuration", s.answers(at("known.example"), http.StatusOK, "first"))
		s.step("requests for the domain of a virtual host that exists", s.answers(at("present.example"), http.StatusOK, "second"))
		s.step("requests for another domain of it", s.answers(at("also.example"), http.StatusOK, "second"))
		s.step("requests for the domain of none fail", s.answers(at("later.example"), http.StatusNotFound, ""))
		s.step("requests for the domain of none fail again", s.answers(at("later.example"), http.StatusNotFound, ""))
		s.push(func(w world) { w.set("routes/later", hostTo("routes/later", "three", "later.example")) })
		s.step("requests for the domain of the virtual host that exists now", s.answers(at("later.example"), http.StatusOK, "third"))
		s.push(func(w world) { w.set("routes/later", hostTo("routes/later", "two", "later.example")) })
		s.step("it changes", s.answers(at("later.example"), http.StatusOK, "second"))
		s.push(func(w world) { w.remove("routes/present", &routev3.VirtualHost{}) })
		s.step("requests for the domain of the virtual host that is gone fail", s.answers(at("present.example"), http.StatusNotFound, ""))
	}})
}

// A request in a scope whose routes are on demand waits until Envoy has them: routes that exist, and ones that are
// created only while the request waits. A scope is added, and one is removed.
func TestScopedRoutesOnDemand(t *testing.T) {
	play(t, scenario{unversioned: severalNames, run: func(s *side) {
		first, second, third := s.backend("first"), s.backend("second"), s.backend("third")
		in := func(scope string) call { return call{header: map[string]string{"x-scope": scope}} }
		scope := func(w world, name string, onDemand bool) {
			w.set("scope-"+name, &routev3.ScopedRouteConfiguration{
				Name: "scope-" + name, OnDemand: onDemand, RouteConfigurationName: "routes-" + name,
				Key: &routev3.ScopedRouteConfiguration_Key{Fragments: []*routev3.ScopedRouteConfiguration_Key_Fragment{{
					Type: &routev3.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: name},
				}}},
			})
		}
		s.push(func(w world) {
			s.shop(w, "one", first)
			w.remove("routes", &routev3.RouteConfiguration{})
			for i, b := range []*backend{second, third} {
				name := []string{"two", "three"}[i]
				w.set(name, s.cluster(name, ""))
				w.set(name, endpoints(name, b))
			}
			w.set("shop", listenerOf("shop", s.address, s.manager(&hcmv3.HttpConnectionManager{
				HttpFilters: []*hcmv3.HttpFilter{onDemand(nil)},
				RouteSpecifier: &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmv3.ScopedRoutes{
					Name: "scopes",
					ScopeKeyBuilder: &hcmv3.ScopedRoutes_ScopeKeyBuilder{
						Fragments: []*hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder{{
							Type: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_{
								HeaderValueExtractor: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor{
									Name:        "x-scope",
									ExtractType: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_Index{},
								},
							},
						}},
					},
					RdsConfigSource: patient(s.source(), time.Second),
					ConfigSpecifier: &hcmv3.ScopedRoutes_ScopedRds{ScopedRds: &hcmv3.ScopedRds{ScopedRdsConfigSource: s.source()}},
				}},
			})))
			scope(w, "always", false)
			w.set("routes-always", routesTo("routes-always", "one"))
			scope(w, "present", true)
			w.set("routes-present", routesTo("routes-present", "two"))
			scope(w, "absent", true)
		})
		s.step("requests in a scope that is not on demand", s.answers(in("always"), http.StatusOK, "first"))
		s.step("requests in a scope with routes", s.answers(in("present"), http.StatusOK, "second"))
		s.step("requests in no scope fail", s.answers(in("none"), http.StatusNotFound, ""))
		waiting := s.begin(in("absent"))
		s.step("requests in a scope without routes wait", s.waits)
		s.push(func(w world) { w.set("routes-absent", routesTo("routes-absent", "three")) })
		s.step("the request that has waited", waiting.answers(http.StatusOK, "third"))
		s.step("requests in the scope that has routes now", s.answers(in("absent"), http.StatusOK, "third"))
		s.push(func(w world) { scope(w, "later", true); w.set("routes-later", routesTo("routes-later", "two")) })
		s.step("requests in the scope that exists now", s.answers(in("later"), http.StatusOK, "second"))
		s.push(func(w world) {
			w.remove("scope-present", &routev3.ScopedRouteConfiguration{})
			w.remove("routes-present", &routev3.RouteConfiguration{})
		})
		s.step("requests in the scope that is gone fail", s.answers(in("present"), http.StatusNotFound, ""))
	}})
}
