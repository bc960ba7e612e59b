package envoy

// Types of resources beside those of every Envoy: configurations of extensions, runtime layers, single endpoints.

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// The configurations of two filters of a Listener change, and are refused.
func TestExtensionsFollowChanges(t *testing.T) {
	play(t, scenario{late: true, unversioned: severalNames, run: func(s *side) {
		first := s.backend("first")
		s.push(func(w world) {
			s.filtered(w, first, discovered("needed", s.source(), faultType), discovered("optional", s.source(), faultType))
			w.set("needed", idle("needed"))
			w.set("optional", idle("optional"))
		})
		s.launch()
		s.step("both filters let requests pass", s.answers(call{}, http.StatusOK, "first"))
		s.push(func(w world) { w.set("optional", aborting("optional", http.StatusTeapot)) })
		s.step("one filter answers", s.answers(call{}, http.StatusTeapot, ""))
		s.push(func(w world) { w.set("needed", aborting("needed", http.StatusGone)) })
		s.step("the other one answers", s.answers(call{}, http.StatusGone, ""))

		s.push(func(w world) {
			w.set("needed", &corev3.TypedExtensionConfig{Name: "needed", TypedConfig: anyOf(&hcmv3.HttpConnectionManager{})})
		})
		s.step("a configuration of another type is refused", s.counts(`\.needed\.(config_fail|config_reload_rejected|update_rejected)$`, 1))
		s.step("the last one stays", s.answers(call{}, http.StatusGone, ""))

		s.push(func(w world) { w.set("needed", idle("needed")) })
		s.step("a good one takes its place", s.answers(call{}, http.StatusTeapot, ""))
	}})
}

// The configuration of a filter is removed, so that Envoy uses the default of the Listener, and comes back.
func TestAnExtensionIsRemoved(t *testing.T) {
	play(t, scenario{
		// SotW has no removals of this type.
		forms:    []form{{delta: true, aggregated: true}, {delta: true, aggregated: false}},
		upstream: []string{delta},
		late:     true,
		run: func(s *side) {
			first := s.backend("first")
			s.push(func(w world) {
				filter := discovered("filter", s.source(), faultType)
				filter.GetConfigDiscovery().DefaultConfig = aborting("", http.StatusConflict).TypedConfig
				s.filtered(w, first, filter)
				w.set("filter", idle("filter"))
			})
			s.launch()
			s.step("the filter lets requests pass", s.answers(call{}, http.StatusOK, "first"))
			s.push(func(w world) { w.drop("filter") })
			s.step("the default takes its place", s.answers(call{}, http.StatusConflict, ""))
			s.push(func(w world) { w.set("filter", aborting("filter", http.StatusTeapot)) })
			s.step("it is back", s.answers(call{}, http.StatusTeapot, ""))
		},
	})
}

// filtered puts a Listener with filters, and a cluster, in a world.
func (s *side) filtered(w world, b *backend, filters ...*hcmv3.HttpFilter) {
	w.set("shop", listenerOf("shop", s.address, s.manager(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routesTo("static", "one")},
		HttpFilters:    filters,
	})))
	s.clusterWith(w, "one", b)
}

// idle returns the configuration of a filter that lets every request pass.
func idle(name string) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: anyOf(&faultv3.HTTPFault{})}
}

// Two runtime layers change, and what one of them no longer has is gone.
func TestRuntimeLayersFollowChanges(t *testing.T) {
	play(t, scenario{
		unversioned: severalNames,
		bootstrap: func(s *side, bootstrap object) {
			withRuntimeLayer(s, bootstrap)
			layers := bootstrap["layered_runtime"].(object)
			layers["layers"] = append(layers["layers"].([]any),
				object{"name": "overrides", "rtds_layer": object{"name": "overrides", "rtds_config": asObject(s, s.source())}})
		},
		run: func(s *side) {
			overrides := func(value float64) *runtimev3.Runtime {
				layer := settings(s, value)
				layer.Name = "overrides"
				return layer
			}
			empty := &runtimev3.Runtime{Name: "overrides", Layer: &structpb.Struct{}}
			s.push(func(w world) {
				w.set("settings", settings(s, 1))
				w.set("overrides", empty)
			})
			s.step("the setting is that of the first layer", s.setting(1))
			s.push(func(w world) { w.set("overrides", overrides(2)) })
			s.step("the second layer overrides it", s.setting(2))
			s.push(func(w world) { w.set("settings", settings(s, 3)) })
			s.push(func(w world) { w.set("overrides", overrides(4)) })
			s.step("both have changed", s.setting(4))
			s.push(func(w world) { w.set("overrides", empty) })
			s.step("the second layer has nothing any more", s.setting(3))
		},
	})
}

const (
	localityEndpointType = "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint"
	// localityEndpoints is a collection of endpoints.
	localityEndpoints = "xdstp://control-plane/envoy.config.endpoint.v3.LbEndpoint/shop/"
)

// The endpoints of a locality are a glob collection, whose members come and go.
func TestTheEndpointsOfALocalityAreACollection(t *testing.T) {
	play(t, scenario{
		// Envoy gets collections in delta only; in SotW per type, the others come in SotW.
		forms: []form{{delta: true, aggregated: true}, {delta: true, aggregated: false}, {delta: false, aggregated: false}},
		// Envoy has the members in the order of a hash table. The hosts are compared.
		differs: func(_ row, line string) bool { return strings.HasPrefix(line[2:], "dynamic_endpoint_configs one") },
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			members := *s
			members.form.delta = true
			s.push(func(w world) {
				s.shop(w, "one", first)
				w.set("one", &endpointv3.ClusterLoadAssignment{ClusterName: "one", Endpoints: []*endpointv3.LocalityLbEndpoints{{
					LbConfig: &endpointv3.LocalityLbEndpoints_LedsClusterLocalityConfig{LedsClusterLocalityConfig: &endpointv3.LedsClusterLocalityConfig{
						LedsConfig: members.source(), LedsCollectionName: localityEndpoints + "*",
					}},
				}}})
				w.set(localityEndpoints+"a", endpoints("", first).Endpoints[0].LbEndpoints[0])
			})
			s.step("requests reach the member", s.reaches(first))
			s.push(func(w world) { w.set(localityEndpoints+"b", endpoints("", second).Endpoints[0].LbEndpoints[0]) })
			s.step("there is a second member", s.hasHost("one", second))
			s.push(func(w world) { w.drop(localityEndpoints + "a") })
			s.step("the first member is gone", s.lacksHost("one", first))
			s.step("requests reach the second member", s.reaches(second))
			s.push(func(w world) { w.set(localityEndpoints+"b", endpoints("", first).Endpoints[0].LbEndpoints[0]) })
			s.step("a member changes", s.reaches(first))
		},
	})
}

// lacksHost returns a condition: a cluster of Envoy does not have a backend.
func (s *side) lacksHost(cluster string, b *backend) func() error {
	has := s.hasHost(cluster, b)
	return func() error {
		lines, err := s.envoy.hosts()
		switch {
		case err != nil:
			return err
		case !hasLine(lines, "hosts of "+cluster+":"):
			return fmt.Errorf("there is no cluster %s", cluster)
		case has() == nil:
			return fmt.Errorf("%s still has the host %s", cluster, b.host())
		}
		return nil
	}
}
