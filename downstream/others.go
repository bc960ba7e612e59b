package downstream

import (
	"context"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Services other than xDS, such as health and reflection: clients can open any number of their streams, too.

// GRPCServer is what services are registered with: a *grpc.Server.
type GRPCServer interface {
	grpc.ServiceRegistrar
	GetServiceInfo() map[string]grpc.ServiceInfo
}

// gatedServer registers services whose streams and single-answer requests come in by the listener's door. Only the
// health of the relay can be requested by everybody, however many clients there are: without an answer, the requester
// may end the process.
type gatedServer struct {
	GRPCServer
	server *Server
	door   *Door
}

// RegisterService implements grpc.ServiceRegistrar.
func (g *gatedServer) RegisterService(desc *grpc.ServiceDesc, impl any) {
	gated := *desc
	gated.Streams = slices.Clone(desc.Streams)
	for i := range gated.Streams {
		s := &gated.Streams[i]
		s.Handler = g.handler(s.Handler)
	}
	if desc.ServiceName != healthpb.Health_ServiceDesc.ServiceName {
		gated.Methods = slices.Clone(desc.Methods)
		for i := range gated.Methods {
			m := &gated.Methods[i]
			m.Handler = g.unary(m.Handler)
		}
	}
	g.GRPCServer.RegisterService(&gated, impl)
}

// unary applies the limits of a Fetch method to single-answer requests.
func (g *gatedServer) unary(h grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		gate := g.door.newest.Load()
		if e := gate.enter(); e != nil {
			return nil, g.server.turnAway(gate, noStream{ctx: ctx}, e)
		}
		defer gate.leave()
		id, err := g.server.identify(ctx, gate)
		if err == nil {
			err = g.server.paceIdentity(ctx, gate, id)
		}
		if err != nil {
			return nil, err
		}
		return h(srv, ctx, decode, i)
	}
}

func (g *gatedServer) handler(h grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		gate := g.door.newest.Load()
		if e := gate.enter(); e != nil {
			return g.server.turnAway(gate, stream, e)
		}
		defer gate.leave()
		leave, err := joinConn(stream.Context(), func(why error) { finish(stream.Context(), why) })
		if err != nil {
			return err
		}
		defer leave()
		return h(srv, &pacedStream{ServerStream: stream, pace: newPace(gate.limits), stats: &g.server.stats})
	}
}

// pacedStream is a stream that is read no faster than the limits allow, and whose client has to read.
type pacedStream struct {
	grpc.ServerStream
	pace  *rate.Limiter // nil for no limit
	stats *stats
}

// mostSend is how long a client may take to read a response of another service. Until then, the client occupies a part
// of the service that others cannot use.
const mostSend = 30 * time.Second

var errNotRead = status.Error(codes.DeadlineExceeded, "the client has not read a response for 30s")

// SendMsg implements grpc.ServerStream.
func (p *pacedStream) SendMsg(m any) error {
	stuck := time.AfterFunc(mostSend, func() { finish(p.Context(), errNotRead) })
	defer stuck.Stop()
	return p.ServerStream.SendMsg(m)
}

// RecvMsg implements grpc.ServerStream.
func (p *pacedStream) RecvMsg(m any) error {
	if p.pace != nil {
		waited, ok := pause(p.Context(), p.pace)
		if waited {
			p.stats.limits[limitRequests].Add(1)
		}
		if !ok {
			return p.Context().Err()
		}
	}
	return p.ServerStream.RecvMsg(m)
}
