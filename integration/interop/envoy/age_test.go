package envoy

// Time: lifetimes of resources, timeouts of first answers, and connections that become too old.

import (
	"fmt"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// asObject returns a config source as a part of a bootstrap.
func asObject(s *side, source *corev3.ConfigSource) object {
	s.Helper()
	text, err := protojson.Marshal(source)
	if err != nil {
		s.Fatal(err)
	}
	var o object
	if err := yaml.Unmarshal(text, &o); err != nil {
		s.Fatal(err)
	}
	return o
}

// withRuntimeLayer adds a runtime layer "settings" from the control plane to a bootstrap.
func withRuntimeLayer(s *side, bootstrap object) {
	bootstrap["layered_runtime"] = object{"layers": []any{
		object{"name": "base", "static_layer": object{}},
		object{"name": "settings", "rtds_layer": object{"name": "settings", "rtds_config": asObject(s, s.source())}},
	}}
}

func settings(s *side, value float64) *runtimev3.Runtime {
	s.Helper()
	layer, err := structpb.NewStruct(map[string]any{"test.setting": value})
	if err != nil {
		s.Fatal(err)
	}
	return &runtimev3.Runtime{Name: "settings", Layer: layer}
}

// setting returns a condition: the setting has a value; -1 if it has none.
func (s *side) setting(want float64) func() error {
	return func() error {
		page, err := s.envoy.page("/runtime")
		if err != nil {
			return err
		}
		value := "-1"
		entries, _ := page["entries"].(object)
		if entry, ok := entries["test.setting"].(object); ok {
			value = fmt.Sprint(entry["final_value"])
		}
		if value != fmt.Sprint(want) {
			return fmt.Errorf("the setting is %s, want %v", value, want)
		}
		return nil
	}
}

// heartbeats sends heartbeats of all resources with a TTL until stop is called.
func (s *side) heartbeats(interval time.Duration) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.plane.script.beat()
			case <-done:
				return
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(done); <-ended })
	s.Cleanup(stop)
	return stop
}

// A runtime layer and the endpoints of a cluster have a TTL. Heartbeats keep both. Without them, the layer expires;
// Envoy keeps endpoints in any case.
func TestResourcesExpireWithoutHeartbeats(t *testing.T) {
	const ttl = 3 * time.Second
	play(t, scenario{
		// In SotW, Envoy 1.40 takes no notice of heartbeats, and with ADS it crashes when endpoints expire.
		forms:     []form{{delta: true, aggregated: true}, {delta: true, aggregated: false}},
		bootstrap: withRuntimeLayer,
		run: func(s *side) {
			first, second := s.backend("first"), s.backend("second")
			s.plane.script.change(func() {
				s.plane.script.ttls["settings"], s.plane.script.ttls["one"] = ttl, ttl
			})
			stop := s.heartbeats(ttl / 10)
			s.push(func(w world) {
				s.shop(w, "one", first)
				delete(w[resourceType(&clusterv3.Cluster{})], "one")
				w.set("shop-cluster", s.cluster("shop-cluster", "one"))
				w.set("routes", routesTo("routes", "shop-cluster"))
				w.set("settings", settings(s, 7))
			})
			s.step("the resources are there", all(s.reaches(first), s.setting(7)))
			before := s.plane.script.due()
			s.step("they are still there after more than the TTL", all(s.reaches(first), s.setting(7), func() error {
				if beats := s.plane.script.due() - before; beats < 15 {
					return fmt.Errorf("there were %d heartbeats", beats)
				}
				return nil
			}))
			stop()
			s.step("the runtime layer has expired", all(s.reaches(first), s.setting(-1)))
			s.push(func(w world) {
				w.set("settings", settings(s, 8))
				w.set("one", endpoints("one", second))
			})
			s.await("the next version is there", all(s.reaches(second), s.setting(8)))
		},
	})
}

// In SotW a runtime layer expires, too.
func TestARuntimeLayerExpiresInSotW(t *testing.T) {
	const ttl = 3 * time.Second
	play(t, scenario{
		forms:     []form{{delta: false, aggregated: true}, {delta: false, aggregated: false}},
		bootstrap: withRuntimeLayer,
		run: func(s *side) {
			s.plane.script.change(func() { s.plane.script.ttls["settings"] = ttl })
			s.push(func(w world) { w.set("settings", settings(s, 7)) })
			s.await("the layer is there", s.setting(7))
			s.step("the layer has expired", s.setting(-1))
		},
	})
}

// all returns the condition that several hold.
func all(conditions ...func() error) func() error {
	return func() error {
		for _, holds := range conditions {
			if err := holds(); err != nil {
				return err
			}
		}
		return nil
	}
}

// Endpoints and routes that never come hold up Envoy for as long as initial_fetch_timeout says, and are used when
// they come later.
func TestEnvoyWaitsForAFirstAnswerAsLongAsItIsConfigured(t *testing.T) {
	play(t, scenario{
		// Of names that do not exist these control planes say nothing, so the timeout decides.
		planes: []kind{snapshots, linear},
		late:   true,
		run: func(s *side) {
			first := s.backend("first")
			timeout := durationpb.New(time.Second)
			s.push(func(w world) {
				waiting := s.cluster("waiting", "")
				waiting.EdsClusterConfig.EdsConfig.InitialFetchTimeout = timeout
				w.set("waiting", waiting)
				l := s.listener("shop", s.address, "routes")
				w.set("shop", withTimeout(s, l, timeout))
			})
			s.plane.start()
			s.envoy.start()
			s.step("Envoy is live without them", s.envoy.live)
			s.push(func(w world) {
				w.set("routes", routesTo("routes", "waiting"))
				w.set("waiting", endpoints("waiting", first))
			})
			s.step("requests reach the backend", s.reaches(first))
		},
	})
}

// A hundred reconnects while clusters change: Envoy keeps what it has, and no request fails.
func TestEnvoySurvivesAHundredReconnects(t *testing.T) {
	const age = 200 * time.Millisecond
	play(t, scenario{
		// The reconnects of all types at once are those of ADS.
		forms: aggregatedForms,
		relay: func(s *side, config peers.Config) {
			config["listeners"] = []any{peers.Config{"address": peers.Address(s), "max_connection_age": age.String()}}
		},
		// Direct, the control plane ends the connections.
		maxConnectionAge: age,
		bootstrap: func(_ *side, bootstrap object) {
			// Otherwise Envoy waits for half a second and more between its attempts.
			services := bootstrap["dynamic_resources"].(object)["ads_config"].(object)["grpc_services"].([]any)
			services[0].(object)["envoy_grpc"].(object)["retry_policy"] = object{"retry_back_off": object{"base_interval": "0.01s", "max_interval": "0.02s"}}
		},
		run: func(s *side) {
			backends := []*backend{s.backend("first"), s.backend("second")}
			s.push(func(w world) { s.shop(w, "one", backends[0]) })
			s.step("requests reach the backend", s.reaches(backends[0]))
			s.send()
			const rounds = 10
			for round := 1; round <= rounds; round++ {
				s.push(func(w world) {
					w.set("one", endpoints("one", backends[round%2]))
					w.set(fmt.Sprint("more-", round), s.cluster(fmt.Sprint("more-", round), "one"))
				})
				s.step(fmt.Sprint("round ", round), all(s.reaches(backends[round%2]), func() error {
					opened, err := s.envoy.stat(`^cluster\.xds-relay\.upstream_cx_total$`)
					if err == nil && opened < float64(round*100/rounds) {
						err = fmt.Errorf("Envoy has opened %v connections", opened)
					}
					return err
				}))
			}
		},
	})
}
