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

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// servicesOf returns the discovery services of a listener. The same sessions serve all of them. The messages of the v2
// transport have the wire form of v3's, and may carry resources of either version of the API.
func servicesOf(o ListenerOptions) []*xdstype.Service {
	services := xdstype.Services(false)
	if o.V2 {
		services = slices.Concat(services, xdstype.Services(true))
	}
	return services
}

// Register adds the xDS services of a listener to a gRPC server that was made with its ServerOptions. It returns the
// server to register other services with. The limits cover the streams of both together.
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
	if s.options.Loads != nil {
		s.registerLoads(r, d)
	}
	return &gatedServer{GRPCServer: r, server: s, door: d}
}

func streamDesc(name string, h grpc.StreamHandler) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true, Handler: h}
}

func handler[R request, S typeSession](s *Server, d *Door, f form[R, S], service *xdstype.Service) grpc.StreamHandler {
	return func(_ any, call grpc.ServerStream) error {
		in, err := s.admitCall(call, d)
		if err != nil {
			return err
		}
		defer in.leave()
		st := s.openAt(in.gate, call, in.identity, f.name, service.TypeURL)
		defer s.forget(st)
		st.uses, st.sessionClient.Generation = in.uses, in.admittedBy
		st.place.Store(in.place)
		in.place = nil
		defer st.attended()
		in.gate.admit(st)
		if stop := st.expires(in.gate); stop != nil {
			defer stop()
		}
		in.stream.Store(st)
		return serve(st, f)
	}
}

// arrival is a stream that has come in, until leave.
type arrival struct {
	server   *Server
	grpc     grpc.ServerStream
	gate     *gate
	identity *identity.Identity
	uses     *identityUse // nil without identity limits
	// admittedBy is the generation of names that admitted it.
	admittedBy uint32
	conn       *limitedConn // nil without a listener
	call       connCall     // of conn
	// place is what admission has given the stream, nil once an xDS stream has it.
	place *place
	room  place // for place
	// stream is nil unless an xDS stream has begun.
	stream atomic.Pointer[stream]
}

// party returns whom the stream belongs to in line.
func (in *arrival) party() party {
	if in.uses != nil {
		return party{in.uses.key, in.conn}
	}
	return party{identityKeyOf(in.grpc.Context(), in.identity), in.conn}
}

// attended gives the place of a stream back that is no xDS stream.
func (in *arrival) attended() {
	if in.place != nil {
		in.place.done()
	}
}

func (in *arrival) leave() {
	in.attended()
	in.server.leaveIdentity(in.uses)
	if in.conn != nil {
		in.conn.calls.leave(&in.call)
	}
	in.gate.leave()
}

// end ends the stream because its client is sent away.
func (in *arrival) end(why error) {
	if st := in.stream.Load(); st != nil {
		st.byRelay.Store(true)
	}
	finish(in.grpc.Context(), why)
}

// admitCall admits a stream by the door of its listener, if its client and the limits allow that. Otherwise the error is
// the status with which the call ends.
func (s *Server) admitCall(call grpc.ServerStream, d *Door) (_ *arrival, err error) {
	in := &arrival{server: s, grpc: call, gate: d.newest.Load()}
	g := in.gate
	if e := g.enter(); e != nil {
		return nil, s.turnAway(g, call, e)
	}
	defer func() {
		if err != nil {
			in.leave()
		}
	}()
	if conn := connOf(call.Context()); conn != nil {
		in.call.ender = in
		if err := conn.calls.join(&in.call); err != nil {
			return nil, err
		}
		in.conn = conn
	}
	in.admittedBy = s.naming.Load().generation
	if in.identity, err = s.identify(call.Context(), g); err != nil {
		return nil, err
	}
	uses, e := s.joinIdentity(call.Context(), g, in.identity)
	if e != nil {
		return nil, s.turnAway(g, call, e)
	}
	in.uses = uses
	if err := s.admitStream(g, in); err != nil {
		return nil, err
	}
	return in, nil
}

// ServerOptions are the gRPC options that a server's listeners need (the codec), and those that suit many quiet
// clients.
func ServerOptions(o ListenerOptions) []grpc.ServerOption {
	const (
		window  = 1 << 20
		minPing = 5 * time.Second
	)
	most := cmp.Or(o.MaxRequestBytes, maxRequestBytes)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(most)),
		grpc.MaxRecvMsgSize(mostRead(most)),
		grpc.RPCDecompressor(decompressor{make(chan struct{}, 1), int64(mostRead(most))}), //nolint:staticcheck // gRPC's other kind knows no end
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
