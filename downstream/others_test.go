package downstream

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xds-relay/xds-relay/identity"
)

// A client of another service, such as CSDS, that does not read the response loses its stream: the response has a place
// that other clients wait for.
func TestAClientOfAnotherServiceHasToRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := newTestCache(&recordingSource{}, 1000)
		t.Cleanup(topics.Close)
		server, _ := newTestServer(topics, DefaultMaxResponseBytes)
		ended := make(chan time.Duration, 1)
		desc := &grpc.ServiceDesc{ServiceName: "talker", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
			{StreamName: "Talk", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
				if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
					return err
				}
				began := time.Now()
				for {
					if err := stream.SendMsg(wrapperspb.Bytes(make([]byte, 1<<20))); err != nil {
						ended <- time.Since(began)
						return err
					}
				}
			}},
		}}
		o := ListenerOptions{}
		m := serveInMemory(t, func(g *grpc.Server) { server.Register(g, o).RegisterService(desc, nil) }, ServerOptions(o)...)
		stream, err := m.dial().NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/talker/Talk")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&emptypb.Empty{}); err != nil {
			t.Fatal(err)
		}
		if took := <-ended; took != mostSend {
			t.Errorf("the answer has ended after %v, want %v", took, mostSend)
		}
		for err == nil {
			err = stream.RecvMsg(&wrapperspb.BytesValue{})
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("the client gets %v", err)
		}
	})
}

// A single-answer request to another service, such as FetchClientStatus, keeps to the limits of a Fetch method. Health
// requests are always answered.
func TestARequestToAnotherServiceKeepsToTheLimits(t *testing.T) {
	const perSecond, most = 10, (identityBurst + 1) * 10 // with those that have waited a second at most
	desc := &grpc.ServiceDesc{ServiceName: "teller", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		{MethodName: "Tell", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return &emptypb.Empty{}, decode(&emptypb.Empty{})
		}},
	}}
	for _, tt := range []struct {
		name, method string
		o            ListenerOptions
		want         map[codes.Code]int
	}{
		{"requests of one identity", "/teller/Tell", ListenerOptions{PerIdentity: IdentityLimits{RequestsPerSecond: perSecond}},
			map[codes.Code]int{codes.OK: most, codes.ResourceExhausted: most}},
		{"streams of a listener", "/teller/Tell", ListenerOptions{Limits: Limits{Streams: 1}}, map[codes.Code]int{codes.ResourceExhausted: 2 * most}},
		{"who nobody is", "/teller/Tell", ListenerOptions{Identify: func(identity.Proof) (*identity.Identity, error) {
			return nil, status.Error(codes.Unauthenticated, "no certificate")
		}}, map[codes.Code]int{codes.Unauthenticated: 2 * most}},
		{"health", healthpb.Health_Check_FullMethodName, ListenerOptions{Limits: Limits{Streams: 1}, PerIdentity: IdentityLimits{RequestsPerSecond: perSecond}},
			map[codes.Code]int{codes.OK: 2 * most}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, _ := newTestServer(nil, DefaultMaxResponseBytes)
				tt.o.Door = NewDoor(tt.o)
				m := serveInMemory(t, func(g *grpc.Server) {
					others := server.Register(g, tt.o)
					others.RegisterService(desc, nil)
					healthpb.RegisterHealthServer(others, health.NewServer())
				}, ServerOptions(tt.o)...)
				conn := m.dial()
				if tt.o.Limits.Streams > 0 { // another client has the only one
					defer tt.o.Door.streams.Add(-1)
					tt.o.Door.streams.Add(1)
				}
				results := make(chan codes.Code)
				for range 2 * most {
					go func() {
						results <- status.Code(conn.Invoke(t.Context(), tt.method, &emptypb.Empty{}, &emptypb.Empty{}))
					}()
				}
				got := map[codes.Code]int{}
				for range 2 * most {
					got[<-results]++
				}
				if !maps.Equal(got, tt.want) {
					t.Errorf("the requests get %v, want %v", got, tt.want)
				}
			})
		})
	}
}
