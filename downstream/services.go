package downstream

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"

	// The services' descriptions, for reflection and for JSON.
	_ "github.com/envoyproxy/go-control-plane/envoy/api/v2"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v2"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/xds-relay/xds-relay/xdstype"
)

// servicesOf returns the discovery services of a listener. All of them are served by
// the same sessions. The messages of the v2 transport have the form of v3's on the
// wire, and may carry resources of either version of the API.
func servicesOf(o ListenerOptions) []*xdstype.Service {
	services := xdstype.Services(false)
	if o.V2 {
		services = slices.Concat(services, xdstype.Services(true))
	}
	return services
}

// Register adds the xDS services of a listener to a gRPC server that was made
// with its ServerOptions, and returns what other services are to be registered with. The
// limits are those of all streams that come through either.
func (s *Server) Register(r GRPCServer, o ListenerOptions) GRPCServer {
	d := o.door()
	for _, service := range servicesOf(o) {
		desc := &grpc.ServiceDesc{ServiceName: service.Name, HandlerType: (*any)(nil)}
		if service.Stream != "" {
			desc.Streams = append(desc.Streams, streamDesc(service.Stream, handler(s, d, sotwForm, service)))
		}
		if service.Delta != "" {
			desc.Streams = append(desc.Streams, streamDesc(service.Delta, handler(s, d, deltaForm, service)))
		}
		if service.Fetch != "" {
			desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: service.Fetch, Handler: unary(s, d, service.TypeURL)})
		}
		r.RegisterService(desc, s)
	}
	return &gatedServer{GRPCServer: r, server: s, door: d}
}

func streamDesc(name string, h grpc.StreamHandler) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true, Handler: h}
}

func handler[R request, S typeSession](s *Server, d *Door, f form[R, S], service *xdstype.Service) grpc.StreamHandler {
	return func(_ any, call grpc.ServerStream) error {
		g := d.newest.Load()
		if e := g.enter(); e != nil {
			return s.turnAway(g, call, e)
		}
		defer g.leave()
		var opened atomic.Pointer[stream]
		leave, err := joinConn(call.Context(), func(why error) {
			if st := opened.Load(); st != nil {
				st.byRelay.Store(true)
			}
			finish(call.Context(), why)
		})
		if err != nil {
			return err
		}
		defer leave()
		if err := s.admitStream(g, call); err != nil {
			return err
		}
		admittedBy := s.naming.Load().generation
		id, err := s.identify(call.Context(), g)
		if err != nil {
			return err
		}
		uses, e := s.joinIdentity(call.Context(), g, id)
		if e != nil {
			return s.turnAway(g, call, e)
		}
		defer s.leaveIdentity(uses)
		st := s.open(call, id, f.name, service.TypeURL)
		defer s.forget(st)
		st.uses, st.who.Generation = uses, admittedBy
		g.admit(st)
		if stop := st.expires(g); stop != nil {
			defer stop()
		}
		opened.Store(st)
		return serve(st, f)
	}
}

// ServerOptions are the gRPC options that a server's listeners need (the codec),
// and those that suit many quiet clients.
func ServerOptions(o ListenerOptions) []grpc.ServerOption {
	const (
		window  = 1 << 20
		minPing = 5 * time.Second
	)
	most := cmp.Or(o.MaxRequestBytes, maxRequestBytes)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(most)),
		grpc.MaxRecvMsgSize(mostRead(most)),
		grpc.InitialWindowSize(cmp.Or(o.StreamWindow, window)),
		grpc.InitialConnWindowSize(cmp.Or(o.ConnWindow, window)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: o.KeepaliveTime, Timeout: o.KeepaliveTimeout, MaxConnectionIdle: idleConnection,
		}),
		grpc.ConnectionTimeout(connectionSetup),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.InTapHandle(tapStream),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if o.ReadBuffer > 0 {
		options = append(options, grpc.ReadBufferSize(o.ReadBuffer))
	}
	if o.WriteBuffer > 0 {
		options = append(options, grpc.WriteBufferSize(o.WriteBuffer))
	}
	if o.ConnStreams > 0 {
		options = append(options, grpc.MaxConcurrentStreams(uint32(min(int64(o.ConnStreams), math.MaxUint32))))
	}
	return options
}
