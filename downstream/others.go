package downstream

import (
	"slices"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
)

// Services other than xDS, as health and reflection: their streams can be made up like any
// others.

// GRPCServer is what services are registered with: a *grpc.Server.
type GRPCServer interface {
	grpc.ServiceRegistrar
	GetServiceInfo() map[string]grpc.ServiceInfo
}

// gatedServer registers services whose streams come in by the listener's door.
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
	g.GRPCServer.RegisterService(&gated, impl)
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

// pacedStream is a stream that is read no faster than the limits say.
type pacedStream struct {
	grpc.ServerStream
	pace  *rate.Limiter // nil for no limit
	stats *stats
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
