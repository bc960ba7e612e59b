package interop

// The backends that answer RPCs.

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// backend is a gRPC server that answers every method with its own id.
type backend struct {
	id   string
	port uint32
}

func startBackend(t testing.TB, id string) *backend {
	t.Helper()
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
			return err
		}
		return stream.SendMsg(wrapperspb.String(id))
	}))
	return &backend{id: id, port: uint32(serve(t, s).Port)}
}

// serve runs a server on a free port until the test ends.
func serve(t testing.TB, s *grpc.Server) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().(*net.TCPAddr)
}
