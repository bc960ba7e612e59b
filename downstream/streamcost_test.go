package downstream

import (
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// What the whole life of a stream allocates, apart from gRPC's allocations.

// lifeCosts are bounds, each a little above what is so today: to be lowered with it. The stream requests the same
// names as others, is sent their resources, acknowledges them, and ends.
var lifeCosts = []struct {
	form          string
	allocs, bytes float64
}{
	{deltaForm.name, 8, 2600},
	{sotwForm.name, 9, 2600},
}

// TestCostOfAStreamsLife: few allocations, however many names it requests.
func TestCostOfAStreamsLife(t *testing.T) {
	skipUnderRace(t)
	const lives, rounds = 500, 5
	for _, test := range lifeCosts {
		t.Run(test.form, func(t *testing.T) {
			live := streamLives(t, test.form, 10)
			live()
			leastAllocs, leastBytes := ^uint64(0), ^uint64(0) // what else the runtime does comes and goes
			for range rounds {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range lives {
					live()
				}
				runtime.ReadMemStats(&after)
				leastAllocs, leastBytes = min(leastAllocs, after.Mallocs-before.Mallocs), min(leastBytes, after.TotalAlloc-before.TotalAlloc)
			}
			allocs, bytes := float64(leastAllocs)/lives, float64(leastBytes)/lives
			if allocs > test.allocs || bytes > test.bytes {
				t.Errorf("a stream allocates %.1f times, %.0f bytes; want at most %.0f and %.0f", allocs, bytes, test.allocs, test.bytes)
			}
			t.Logf("a stream: %.1f allocations, %.0f bytes", allocs, bytes)
		})
	}
}

// A stream begins, requests the same names as others, is sent their resources, acknowledges them, and ends.
func BenchmarkStreamsLife(b *testing.B) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		b.Run(form, func(b *testing.B) {
			live := streamLives(b, form, 10)
			b.ReportAllocs()
			for b.Loop() {
				live()
			}
		})
	}
}

// scriptedStream is a gRPC stream whose client sends a request, acknowledges the response, and half-closes. It can be
// used again, and allocates nothing.
type scriptedStream struct {
	notGRPC
	ctx        context.Context
	codec      encoding.CodecV2
	first, ack mem.BufferSlice
	sent       chan mem.BufferSlice // has a response
	step       int
	gone       chan struct{} // if not nil, the client stays until it is closed
}

// Context implements grpc.ServerStream.
func (s *scriptedStream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream.
func (s *scriptedStream) SendMsg(m any) error {
	data, err := s.codec.Marshal(m)
	if err == nil {
		s.sent <- data
	}
	return err
}

// RecvMsg implements grpc.ServerStream.
func (s *scriptedStream) RecvMsg(m any) error {
	s.step++
	switch s.step {
	case 1:
		return s.codec.Unmarshal(s.first, m)
	case 2:
		if s.gone != nil {
			<-s.gone
			break
		}
		(<-s.sent).Free()
		return s.codec.Unmarshal(s.ack, m)
	}
	s.step = 0
	return io.EOF
}

// streamLives returns a function in which a stream lives that requests n names, as others do that stay.
func streamLives(t testing.TB, form string, n int) (live func()) {
	t.Helper()
	c := newTestCache(silentSource{}, 1<<20)
	t.Cleanup(c.Close)
	server := NewServer(c, newClusterNames, Options{Log: slog.New(slog.DiscardHandler)})
	names := benchNames(n)
	if form == deltaForm.name {
		return liveIn(t, server, deltaForm, func(node *corev3.Node, nonce, _ string) []byte {
			request := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: endpointType, ResponseNonce: nonce}
			if nonce == "" {
				request.ResourceNamesSubscribe = names
			}
			return encoded(request)
		}, n)
	}
	return liveIn(t, server, sotwForm, func(node *corev3.Node, nonce, version string) []byte {
		return encoded(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: endpointType, ResourceNames: names, ResponseNonce: nonce, VersionInfo: version})
	}, n)
}

// liveIn is streamLives in one form. request encodes a request.
func liveIn[R request, S typeSession](t testing.TB, server *Server, f form[R, S], request func(node *corev3.Node, nonce, version string) []byte, n int) (live func()) {
	t.Helper()
	first := request(&corev3.Node{Id: "test"}, "", "")
	server.workers.join() // so that they stay
	t.Cleanup(server.workers.leave)
	var response *session.Response
	for i := range 3 { // from the second one on they share the list
		st := server.open(sinkStream{context.Background()}, nil, f.name, "")
		t.Cleanup(func() {
			st.end()
			server.forget(st)
		})
		if _, err := take(st, f, first); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			server.topics.Apply(puts(endpointType, "v", values(n, 1000, 0)...))
		}
		response = takeResponses(st)
	}
	ctx := peer.NewContext(context.Background(), &peer.Peer{
		Addr:      &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1},
		LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 2},
	})
	st := &scriptedStream{
		ctx:   metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "relay", "content-type", "application/grpc")),
		codec: newCodec(0), sent: make(chan mem.BufferSlice, 1),
		first: mem.BufferSlice{mem.SliceBuffer(first)},
		ack:   mem.BufferSlice{mem.SliceBuffer(request(nil, response.Nonce, response.Version))},
	}
	handle := handler(server, NewDoor(ListenerOptions{
		Limits: Limits{
			Subscriptions: 1e5, NameBytes: 4 << 10, RequestsPerSecond: 1e6, RequestBurst: 1e6, Streams: 1e5,
			Scopes: 100, ScopesPerConnection: 1000,
		},
		PerIdentity: IdentityLimits{Streams: 1e5, Scopes: 1e4, Types: 1e3, Subscriptions: 1e7},
	}), f, xdstype.AggregatedV3)
	stays := *st // on the same connection, with the same identity
	stays.gone, stays.sent = make(chan struct{}), make(chan mem.BufferSlice, 1)
	ended := make(chan error, 1)
	go func() { ended <- handle(nil, &stays) }()
	(<-stays.sent).Free()
	t.Cleanup(func() {
		close(stays.gone)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func() {
		if err := handle(nil, st); err != nil {
			t.Fatal(err)
		}
	}
}
