package downstream

import (
	"testing"

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
	// answer has the name "a" told, once it is asked for.
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
