package integration

// The backends that answer RPCs.

import (
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// backend is a gRPC server that answers every method with its own id.
type backend struct {
	*port
	id    string
	calls atomic.Int64
	grpc  *grpc.Server
}

func startBackend(t testing.TB, id string) *backend {
	t.Helper()
	b := &backend{port: openPort(t), id: id}
	b.start()
	t.Cleanup(b.stop)
	return b
}

// start starts the backend. It may be called again after stop.
func (b *backend) start() {
	b.grpc = grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
			return err
		}
		b.calls.Add(1)
		return stream.SendMsg(wrapperspb.String(b.id))
	}))
	serve(b.grpc, b.listen())
}

// serve runs a server until it is stopped.
func serve(s *grpc.Server, l net.Listener) {
	go func() { _ = s.Serve(l) }()
}

// stop breaks all connections, and refuses new ones.
func (b *backend) stop() { b.grpc.Stop() }
