package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// fetchEyes are the eyes of a server that also has the Fetch methods.
type fetchEyes struct{ eyes }

// OnFetchRequest implements serverv3.Callbacks.
func (fetchEyes) OnFetchRequest(context.Context, *discoveryv3.DiscoveryRequest) error { return nil }

// OnFetchResponse implements serverv3.Callbacks.
func (fetchEyes) OnFetchResponse(*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {}

// separatePlane is a control plane with a discovery service for each type, but without ADS.
type separatePlane struct {
	*port
	*recorder
	linear map[string]*cachev3.LinearCache
	end    func()
	start  func()
}

// startSeparate starts a separatePlane that answers UNIMPLEMENTED to some methods.
func startSeparate(t testing.TB, unimplemented ...string) *separatePlane {
	t.Helper()
	cp := &separatePlane{port: openPort(t), recorder: newRecorder(), linear: map[string]*cachev3.LinearCache{}}
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]cachev3.Cache{},
	}
	for _, typeURL := range []string{listenerType, routeType, clusterType, endpointType} {
		cp.linear[typeURL] = cachev3.NewLinearCache(typeURL)
		mux.Caches[typeURL] = cp.linear[typeURL]
	}
	cp.start = func() {
		ctx, cancel := context.WithCancel(context.Background())
		s := grpc.NewServer(grpc.WaitForHandlers(true), grpc.StreamInterceptor(
			func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
				if slices.Contains(unimplemented, info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]) {
					return status.Error(codes.Unimplemented, "unknown method")
				}
				return handle(srv, stream)
			}))
		all := serverv3.NewServer(ctx, mux, fetchEyes{eyes{cp.recorder}})
		listenerservice.RegisterListenerDiscoveryServiceServer(s, all)
		routeservice.RegisterRouteDiscoveryServiceServer(s, all)
		clusterservice.RegisterClusterDiscoveryServiceServer(s, all)
		endpointservice.RegisterEndpointDiscoveryServiceServer(s, all)
		cp.end = func() {
			cancel()
			s.Stop()
		}
		serve(s, cp.listen())
	}
	cp.start()
	t.Cleanup(func() { cp.end() })
	return cp
}

func (cp *separatePlane) set(t testing.TB, resources ...proto.Message) {
	t.Helper()
	for _, r := range resources {
		if err := cp.linear[typeOf(r)].UpdateResource(nameOf(r), r); err != nil {
			t.Fatal(err)
		}
	}
}

// separateFrom returns the configuration for a control plane without ADS.
func separateFrom(address, protocol string) string {
	return prelude + fmt.Sprintf(`
authorities:
  - name: cp.example.com
    servers:
      - address: %s
        protocol: %s
        aggregated: false
        backoff: {base: 20ms, max: 200ms}
old_style_names:
  - authority: cp.example.com
`, address, protocol)
}

// TestControlPlaneWithoutAggregatedService checks that ADS clients are served from a control plane that has
// only discovery services of single types, also after an outage. The relay speaks to each service the form
// that it supports.
func TestControlPlaneWithoutAggregatedService(t *testing.T) {
	t.Parallel()
	cp := startSeparate(t, "DeltaEndpoints")
	before := []proto.Message{plainCluster("a", "1"), plainCluster("b", "1"), plainEndpoints("at-a", 1), plainListener("l", "1")}
	cp.set(t, before...)
	r := startRelay(t, separateFrom(cp.address, "auto"))
	var clients []*client
	for _, f := range []form{delta, sotw} {
		c := newClient(t, r, f, node(string(f), ""))
		c.subscribe(clusterType, wildcard)
		c.subscribe(endpointType, "at-a")
		c.subscribe(listenerType, wildcard)
		clients = append(clients, c)
	}
	for _, c := range clients {
		c.awaitHas(t, "all resources", before...)
	}
	cp.read(func(s *seen) {
		for id, stream := range s.streams {
			types := map[string]bool{}
			for topic := range stream.wanted {
				types[topic.typeURL] = true
			}
			if len(types) != 1 || types[endpointType] != (id.form == sotw) {
				t.Errorf("a %s stream requests the types %v", id.form, types)
			}
		}
		if len(s.streams) != 3 || len(s.nacks) > 0 {
			t.Errorf("want 3 streams without NACKs; the control plane has seen %s", s)
		}
	})
	for _, want := range []string{`"type": "cluster"`, `"protocol": "sotw"`} {
		if body := fetch(t, "http://"+r.admin+"/authorities"); !strings.Contains(body, want) {
			t.Errorf("/authorities has no %s:\n%s", want, body)
		}
	}

	cp.end()
	cp.turnedAway.await(t, "the relay tries to connect again", func(n *int) bool { return *n > 0 })
	after := []proto.Message{plainCluster("a", "2"), plainCluster("b", "1"), plainEndpoints("at-a", 2), plainListener("l", "1")}
	cp.set(t, after[0], after[2])
	for _, c := range clients {
		c.mustLive(t)
	}
	cp.start()
	for _, c := range clients {
		c.awaitHas(t, "the changed resources", after...)
	}
}

// TestTypeWithoutAServiceIsAnError checks that a client that requests a type without a discovery service
// receives an error, and receives the resources of other types.
func TestTypeWithoutAServiceIsAnError(t *testing.T) {
	t.Parallel()
	const unheard = "type.googleapis.com/example.Unheard"
	cp := startSeparate(t)
	cp.set(t, plainCluster("a", "1"))
	r := startRelay(t, separateFrom(cp.address, "delta"))
	for _, f := range []form{delta, sotw} {
		c := newClient(t, r, f, node(string(f), ""))
		c.subscribe(unheard, "x")
		c.subscribe(clusterType, wildcard)
		c.awaitHas(t, "the cluster", plainCluster("a", "1"))
		c.await(t, "the client receives an error with the reason", func(v *view) bool {
			return strings.Contains(v.errors[topic{unheard, "x"}], "has no discovery service of its own")
		})
		c.read(func(v *view) {
			if v.gone[topic{unheard, "x"}] {
				t.Errorf("the %s client learned that the resource does not exist", f)
			}
		})
	}
}
