package downstream

import (
	"strings"
	"testing"
	"time"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// call opens a stream by its method's name.
func call(t *testing.T, conn *grpc.ClientConn, method string) grpc.ClientStream {
	t.Helper()
	g, err := conn.NewStream(testContext(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// typedMethods are the methods of the API's services of single types, as its
// generated code has them, and the type URLs that they imply.
var typedMethods = []struct{ typeURL, sotw, delta string }{
	{"type.googleapis.com/envoy.config.listener.v3.Listener", listenerservice.ListenerDiscoveryService_StreamListeners_FullMethodName, listenerservice.ListenerDiscoveryService_DeltaListeners_FullMethodName},
	{"type.googleapis.com/envoy.config.route.v3.RouteConfiguration", routeservice.RouteDiscoveryService_StreamRoutes_FullMethodName, routeservice.RouteDiscoveryService_DeltaRoutes_FullMethodName},
	{"type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration", routeservice.ScopedRoutesDiscoveryService_StreamScopedRoutes_FullMethodName, routeservice.ScopedRoutesDiscoveryService_DeltaScopedRoutes_FullMethodName},
	{"type.googleapis.com/envoy.config.route.v3.VirtualHost", "", routeservice.VirtualHostDiscoveryService_DeltaVirtualHosts_FullMethodName},
	{"type.googleapis.com/envoy.config.cluster.v3.Cluster", clusterservice.ClusterDiscoveryService_StreamClusters_FullMethodName, clusterservice.ClusterDiscoveryService_DeltaClusters_FullMethodName},
	{"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", endpointservice.EndpointDiscoveryService_StreamEndpoints_FullMethodName, endpointservice.EndpointDiscoveryService_DeltaEndpoints_FullMethodName},
	{"type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint", "", endpointservice.LocalityEndpointDiscoveryService_DeltaLocalityEndpoints_FullMethodName},
	{"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", secretservice.SecretDiscoveryService_StreamSecrets_FullMethodName, secretservice.SecretDiscoveryService_DeltaSecrets_FullMethodName},
	{"type.googleapis.com/envoy.service.runtime.v3.Runtime", runtimeservice.RuntimeDiscoveryService_StreamRuntime_FullMethodName, runtimeservice.RuntimeDiscoveryService_DeltaRuntime_FullMethodName},
	{"type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", extensionservice.ExtensionConfigDiscoveryService_StreamExtensionConfigs_FullMethodName, extensionservice.ExtensionConfigDiscoveryService_DeltaExtensionConfigs_FullMethodName},
}

// xDS: "API flow": on a service of a single type the type URL is implied.
func TestServicesOfSingleTypesImplyTheirType(t *testing.T) {
	r := newRelay(t)
	conn := r.dial()
	// answer has the name "a" sent, once it is requested.
	answer := func(t *testing.T, typeURL string) {
		t.Helper()
		if k := <-r.started; k.TypeURL != typeURL || k.Name != "a" {
			t.Fatalf("%v was asked for, want a of %s", k, typeURL)
		}
		r.cache.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL, Changes: []cache.Change{
			{Name: "a", Resource: newTestResource(typeURL, "a", "v1", "one")},
		}})
	}
	for _, m := range typedMethods {
		if m.sotw != "" {
			t.Run(m.sotw, func(t *testing.T) {
				g := call(t, conn, m.sotw)
				if err := g.SendMsg(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}}); err != nil {
					t.Fatal(err)
				}
				answer(t, m.typeURL)
				var response discoveryv3.DiscoveryResponse
				if err := g.RecvMsg(&response); err != nil {
					t.Fatal(err)
				}
				if response.GetTypeUrl() != m.typeURL || len(response.GetResources()) != 1 {
					t.Errorf("got %v", &response)
				}
			})
		}
		t.Run(m.delta, func(t *testing.T) {
			g := call(t, conn, m.delta)
			if err := g.SendMsg(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
			if m.sotw == "" { // otherwise the topic of the other form still lingers
				answer(t, m.typeURL)
			}
			var response discoveryv3.DeltaDiscoveryResponse
			if err := g.RecvMsg(&response); err != nil {
				t.Fatal(err)
			}
			if response.GetTypeUrl() != m.typeURL || len(response.GetResources()) != 1 {
				t.Errorf("got %v", &response)
			}
		})
	}
}

func TestServicesOfSingleTypesRefuseOthers(t *testing.T) {
	conn := newRelay(t).dial()
	for _, m := range typedMethods {
		t.Run(m.delta, func(t *testing.T) {
			g := call(t, conn, m.delta)
			if err := g.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/other"}); err != nil {
				t.Fatal(err)
			}
			err := g.RecvMsg(new(discoveryv3.DeltaDiscoveryResponse))
			want := `the request is for type_url "type.googleapis.com/other" on the service of "` + m.typeURL + `"`
			if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
				t.Errorf("got %v, want INVALID_ARGUMENT: %s", err, want)
			}
		})
	}
}

// A Fetch method is answered once: with the current state, or, when the time is over, with only the version that the
// client has.
func TestFetchMethodsAreAnsweredOnce(t *testing.T) {
	r := newRelay(t)
	conn := r.dial()
	hurried := serveInMemory(t, func(g *grpc.Server) {
		r.server.Register(g, ListenerOptions{LongPoll: time.Millisecond, V2: true})
	}, ServerOptions(ListenerOptions{})...).dial()
	for _, service := range servicesOf(ListenerOptions{V2: true}) {
		if service.Fetch == "" {
			continue
		}
		t.Run(service.Name, func(t *testing.T) {
			fetch := func(conn *grpc.ClientConn, req *discoveryv3.DiscoveryRequest) *discoveryv3.DiscoveryResponse {
				t.Helper()
				var response discoveryv3.DiscoveryResponse
				if err := conn.Invoke(testContext(t), "/"+service.Name+"/"+service.Fetch, req, &response); err != nil {
					t.Fatal(err)
				}
				return &response
			}
			go func() {
				k := <-r.started
				r.cache.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: k.TypeURL, Changes: []cache.Change{
					{Name: k.Name, Resource: newTestResource(k.TypeURL, k.Name, "v1", "one")},
				}})
			}()
			first := fetch(conn, &discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}})
			if len(first.GetResources()) != 1 || first.GetTypeUrl() != service.TypeURL || first.GetVersionInfo() == "" {
				t.Errorf("got %v", first)
			}
			again := fetch(hurried, &discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}, VersionInfo: first.GetVersionInfo()})
			if len(again.GetResources()) != 0 || again.GetTypeUrl() != service.TypeURL || again.GetVersionInfo() != first.GetVersionInfo() {
				t.Errorf("got %v, want nothing but the version", again)
			}
		})
	}
	eds := "/envoy.service.endpoint.v3.EndpointDiscoveryService/FetchEndpoints"
	err := conn.Invoke(testContext(t), eds, &discoveryv3.DiscoveryRequest{TypeUrl: clusterType}, new(discoveryv3.DiscoveryResponse))
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("another type's request gives %v", err)
	}
	eventually(t, "nothing is left of them", func() bool { return r.server.Clients() == 0 })
}

// The v2 transport carries resources of either version of the API: those of version 2 if a request on a single-type
// service does not state one.
func TestV2ServicesServeBothVersionsOfTheirType(t *testing.T) {
	r := newRelay(t)
	conn := r.dial()
	v3 := map[string]string{}
	for _, service := range xdstype.Services(false) {
		v3[service.Name[strings.LastIndexByte(service.Name, '.')+1:]] = service.TypeURL
	}
	for _, service := range xdstype.Services(true) {
		t.Run(service.Name, func(t *testing.T) {
			requested := map[string]string{"": service.TypeURL, service.TypeURL: service.TypeURL}
			if other := v3[service.Name[strings.LastIndexByte(service.Name, '.')+1:]]; service.TypeURL != "" {
				requested[other] = other
			} else {
				requested = map[string]string{clusterType: clusterType, xdstype.ClusterV2: xdstype.ClusterV2}
			}
			for asked, want := range requested {
				g := call(t, conn, "/"+service.Name+"/"+service.Delta)
				name := service.Name + asked // which no other case asks for
				if err := g.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: asked, ResourceNamesSubscribe: []string{name}}); err != nil {
					t.Fatal(err)
				}
				k := <-r.started
				r.cache.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: want, Changes: []cache.Change{
					{Name: name, Resource: newTestResource(want, name, "v1", "one")},
				}})
				var response discoveryv3.DeltaDiscoveryResponse
				if err := g.RecvMsg(&response); err != nil {
					t.Fatal(err)
				}
				if k.TypeURL != want || response.GetTypeUrl() != want || len(response.GetResources()) != 1 {
					t.Errorf("%q gives %v", asked, &response)
				}
			}
			if service.TypeURL == "" {
				return
			}
			g := call(t, conn, "/"+service.Name+"/"+service.Delta)
			if err := g.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/other"}); err != nil {
				t.Fatal(err)
			}
			if err := g.RecvMsg(new(discoveryv3.DeltaDiscoveryResponse)); status.Code(err) != codes.InvalidArgument {
				t.Errorf("another type gives %v", err)
			}
		})
	}
}

// The v2 transport is served only if it is enabled.
func TestV2ServicesAreOffByDefault(t *testing.T) {
	r := newRelay(t)
	v3 := serveInMemory(t, func(g *grpc.Server) { r.server.Register(g, ListenerOptions{}) }, ServerOptions(ListenerOptions{})...)
	g := call(t, v3.dial(), "/envoy.service.discovery.v2.AggregatedDiscoveryService/DeltaAggregatedResources")
	if err := g.RecvMsg(new(discoveryv3.DeltaDiscoveryResponse)); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want UNIMPLEMENTED", err)
	}
}
