package downstream

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// door is a service through which clients come. Behind all of them are the same
// sessions. xDS: "API flow", "Aggregated Discovery Service".
type door struct {
	service string
	file    string // in which the API defines it, for reflection
	typeURL string // that is implied; empty for the aggregated service
	// The methods, empty where the API defines none.
	sotw, delta string
}

const typePrefix = "type.googleapis.com/"

var doors = []door{
	{"envoy.service.discovery.v3.AggregatedDiscoveryService", "envoy/service/discovery/v3/ads.proto", "", "StreamAggregatedResources", "DeltaAggregatedResources"},
	{"envoy.service.listener.v3.ListenerDiscoveryService", "envoy/service/listener/v3/lds.proto", listenerType, "StreamListeners", "DeltaListeners"},
	{"envoy.service.route.v3.RouteDiscoveryService", "envoy/service/route/v3/rds.proto", routeType, "StreamRoutes", "DeltaRoutes"},
	{"envoy.service.route.v3.ScopedRoutesDiscoveryService", "envoy/service/route/v3/srds.proto", scopedRouteType, "StreamScopedRoutes", "DeltaScopedRoutes"},
	{"envoy.service.route.v3.VirtualHostDiscoveryService", "envoy/service/route/v3/rds.proto", virtualHostType, "", "DeltaVirtualHosts"},
	{"envoy.service.cluster.v3.ClusterDiscoveryService", "envoy/service/cluster/v3/cds.proto", clusterType, "StreamClusters", "DeltaClusters"},
	{"envoy.service.endpoint.v3.EndpointDiscoveryService", "envoy/service/endpoint/v3/eds.proto", endpointType, "StreamEndpoints", "DeltaEndpoints"},
	{"envoy.service.endpoint.v3.LocalityEndpointDiscoveryService", "envoy/service/endpoint/v3/leds.proto", typePrefix + "envoy.config.endpoint.v3.LbEndpoint", "", "DeltaLocalityEndpoints"},
	{"envoy.service.secret.v3.SecretDiscoveryService", "envoy/service/secret/v3/sds.proto", secretType, "StreamSecrets", "DeltaSecrets"},
	{"envoy.service.runtime.v3.RuntimeDiscoveryService", "envoy/service/runtime/v3/rtds.proto", typePrefix + "envoy.service.runtime.v3.Runtime", "StreamRuntime", "DeltaRuntime"},
	{"envoy.service.extension.v3.ExtensionConfigDiscoveryService", "envoy/service/extension/v3/ecds.proto", typePrefix + "envoy.config.core.v3.TypedExtensionConfig", "StreamExtensionConfigs", "DeltaExtensionConfigs"},
}

// Register adds the xDS services to a gRPC server that was made with
// ServerOptions. The limits are those of all streams that come through it.
func (s *Server) Register(r grpc.ServiceRegistrar, l Limits) {
	g := newGate(l)
	for _, d := range doors {
		desc := &grpc.ServiceDesc{ServiceName: d.service, HandlerType: (*any)(nil), Metadata: d.file}
		if d.sotw != "" {
			desc.Streams = append(desc.Streams, streamDesc(d.sotw, handler(s, g, sotwForm, d.typeURL)))
		}
		if d.delta != "" {
			desc.Streams = append(desc.Streams, streamDesc(d.delta, handler(s, g, deltaForm, d.typeURL)))
		}
		r.RegisterService(desc, s)
	}
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
		st.limits = g.limits
		return serve(st, f)
	}
}

// typeOf returns the type URL of a request: the implied one, which a request may
// leave out, or on the aggregated service the request's own.
func typeOf(implied, requested string) (string, error) {
	switch {
	case requested == "" && implied == "":
		return "", status.Error(codes.InvalidArgument, "the request has no type_url, which is required on an aggregated stream")
	case requested == "":
		return implied, nil
	case implied != "" && requested != implied:
		return "", status.Error(codes.InvalidArgument, fmt.Sprintf("the request is for type_url %q on the service of %q", requested, implied))
	}
	return requested, nil
}
