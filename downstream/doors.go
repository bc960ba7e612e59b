package downstream

import (
	"fmt"
	"slices"

	// For reflection: what describes the services of single types.
	_ "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/typeurl"
)

// door is a service through which clients come. Behind all of them are the same
// sessions. xDS: "API flow", "Aggregated Discovery Service".
type door struct {
	service string
	file    string // in which the API defines it, for reflection
	typeURL string // that is implied; empty for the aggregated service
	// The methods, empty where the API defines none.
	sotw, delta, fetch string
	// path is that of fetch over REST, as the API's google.api.http has it.
	path string
}

var doors = []door{
	{"envoy.service.discovery.v3.AggregatedDiscoveryService", "envoy/service/discovery/v3/ads.proto", "", "StreamAggregatedResources", "DeltaAggregatedResources", "", ""},
	{"envoy.service.listener.v3.ListenerDiscoveryService", "envoy/service/listener/v3/lds.proto", typeurl.ListenerV3, "StreamListeners", "DeltaListeners", "FetchListeners", "/v3/discovery:listeners"},
	{"envoy.service.route.v3.RouteDiscoveryService", "envoy/service/route/v3/rds.proto", typeurl.RouteV3, "StreamRoutes", "DeltaRoutes", "FetchRoutes", "/v3/discovery:routes"},
	{"envoy.service.route.v3.ScopedRoutesDiscoveryService", "envoy/service/route/v3/srds.proto", typeurl.ScopedRouteV3, "StreamScopedRoutes", "DeltaScopedRoutes", "FetchScopedRoutes", "/v3/discovery:scoped-routes"},
	{"envoy.service.route.v3.VirtualHostDiscoveryService", "envoy/service/route/v3/rds.proto", typeurl.VirtualHostV3, "", "DeltaVirtualHosts", "", ""},
	{"envoy.service.cluster.v3.ClusterDiscoveryService", "envoy/service/cluster/v3/cds.proto", typeurl.ClusterV3, "StreamClusters", "DeltaClusters", "FetchClusters", "/v3/discovery:clusters"},
	{"envoy.service.endpoint.v3.EndpointDiscoveryService", "envoy/service/endpoint/v3/eds.proto", typeurl.EndpointsV3, "StreamEndpoints", "DeltaEndpoints", "FetchEndpoints", "/v3/discovery:endpoints"},
	{"envoy.service.endpoint.v3.LocalityEndpointDiscoveryService", "envoy/service/endpoint/v3/leds.proto", typeurl.LocalityEndpointV3, "", "DeltaLocalityEndpoints", "", ""},
	{"envoy.service.secret.v3.SecretDiscoveryService", "envoy/service/secret/v3/sds.proto", typeurl.SecretV3, "StreamSecrets", "DeltaSecrets", "FetchSecrets", "/v3/discovery:secrets"},
	{"envoy.service.runtime.v3.RuntimeDiscoveryService", "envoy/service/runtime/v3/rtds.proto", typeurl.RuntimeV3, "StreamRuntime", "DeltaRuntime", "FetchRuntime", "/v3/discovery:runtime"},
	{"envoy.service.extension.v3.ExtensionConfigDiscoveryService", "envoy/service/extension/v3/config_discovery.proto", typeurl.ExtensionConfigV3, "StreamExtensionConfigs", "DeltaExtensionConfigs", "FetchExtensionConfigs", "/v3/discovery:extension_configs"},
}

// doorsOf returns the services of a listener.
func doorsOf(o ListenerOptions) []door {
	if o.V2 {
		return slices.Concat(doors, doorsV2)
	}
	return doors
}

// Register adds the xDS services of a listener to a gRPC server that was made
// with its ServerOptions, and returns what other services are to be registered with. The
// limits are those of all streams that come through either.
func (s *Server) Register(r GRPCServer, o ListenerOptions) GRPCServer {
	g := newGate(o)
	for _, d := range doorsOf(o) {
		desc := &grpc.ServiceDesc{ServiceName: d.service, HandlerType: (*any)(nil), Metadata: d.file}
		if d.sotw != "" {
			desc.Streams = append(desc.Streams, streamDesc(d.sotw, handler(s, g, sotwForm, d.typeURL)))
		}
		if d.delta != "" {
			desc.Streams = append(desc.Streams, streamDesc(d.delta, handler(s, g, deltaForm, d.typeURL)))
		}
		if d.fetch != "" {
			desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: d.fetch, Handler: unary(s, g, d.typeURL, o.LongPoll)})
		}
		r.RegisterService(desc, s)
	}
	return &gatedServer{GRPCServer: r, server: s, gate: g}
}

func streamDesc(name string, h grpc.StreamHandler) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true, Handler: h}
}

func handler[R request, S session](s *Server, g *gate, f form[R, S], implied string) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		if e := g.enter(); e != nil {
			return s.turnAway(g, stream, e)
		}
		defer g.leave()
		st := s.open(stream, f.name, implied)
		defer s.forget(st)
		g.admit(st)
		return serve(st, f)
	}
}

// typeOf returns the type URL of a request: the implied one, which a request may
// leave out, or on the aggregated service the request's own. A service of the v2
// transport gives resources of the API's version 3 as well.
func typeOf(implied, requested string) (string, error) {
	switch {
	case requested == "" && implied == "":
		return "", status.Error(codes.InvalidArgument, "the request has no type_url, which is required on an aggregated stream")
	case requested == "":
		return implied, nil
	case implied != "" && requested != implied && !(isV2(implied) && typeurl.KindOf(requested) == typeurl.KindOf(implied)):
		return "", status.Error(codes.InvalidArgument, fmt.Sprintf("the request is for type_url %q on the service of %q", requested, implied))
	}
	return requested, nil
}
