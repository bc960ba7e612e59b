package integration

// Requests that take the memory of a small container while the relay receives and reads them.

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // what compressed requests are compressed with
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

const (
	largeRequests    = 40      // at once
	largeRequest     = 4 << 20 // what a request may have by default
	unfinished       = 15 << 20
	unfinishedFor    = 6 * time.Second
	largeRequestName = 80
)

// TestLargeRequestsDoNotUseUpTheMemory checks that a relay in a small container survives clients that send many large
// requests at once: such that never end, such as are as long as they may be, and such that are short until they are
// decompressed. Meanwhile another client, from the same address, sees all updates in time.
func TestLargeRequestsDoNotUseUpTheMemory(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector takes memory")
	}
	t.Parallel()
	for _, attack := range []struct {
		name string
		run  func(ctx context.Context, at *target, i int)
	}{
		{"that never end", sendUnfinished},
		{"with many names", func(ctx context.Context, at *target, i int) { sendLarge(ctx, at, manyNamed[i%len(manyNamed)]()) }},
		{"that are compressed", func(ctx context.Context, at *target, i int) {
			sendLarge(ctx, at, manyNamed[i%len(manyNamed)](), grpc.UseCompressor("gzip"))
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			cp := startControlPlane(t, delta)
			config := prelude + servedBy(cp.address, "delta") + `
  - name: quiet.example.com
    servers: [{address: "` + startQuietPlane(t) + `", protocol: delta}]
old_style_names:
  - {when: node.cluster == "quiet", authority: quiet.example.com}
  - authority: cp.example.com
`
			at := &target{relay: startRelayWith(t, config, fmt.Sprintf("GOMEMLIMIT=%d", goBytes)), metrics: metricsClient(t)}
			at.grpc = at.relay.address
			watch := startCanary(t, cp, at.relay, startRelay(t, config))
			watch.updates(t, 10)
			ctx, cancel := context.WithTimeout(t.Context(), unfinishedFor)
			defer cancel()
			var attacking sync.WaitGroup
			for i := range largeRequests {
				attacking.Go(func() {
					for ctx.Err() == nil {
						attack.run(ctx, at, i)
					}
				})
			}
			peak := 0
			attacking.Go(func() {
				pace := time.NewTicker(canaryPace / 5)
				defer pace.Stop()
				for ; ctx.Err() == nil; <-pace.C {
					peak = max(peak, anonymousMemory(at.relay.cmd.Process.Pid))
				}
			})
			seen := watch.watch(ctx, t)
			attacking.Wait()
			took, alone := seen.percentiles()
			t.Logf("%d updates in %v, and in %v at another relay; at most %d MiB", len(seen), took, alone, peak>>20)
			if peak > containerBytes {
				t.Errorf("the relay has taken %d MiB, and its container has %d MiB", peak>>20, containerBytes>>20)
			}
			if most := 5*alone + 10*mostSlower; took > most {
				t.Errorf("the canary's updates took %v, and %v at another relay: want at most %v", took, alone, most)
			}
		})
	}
}

func encodedRequest(req *discoveryv3.DeltaDiscoveryRequest) []byte {
	req.Node = &corev3.Node{Id: "large", Cluster: "quiet"}
	b, err := proto.Marshal(req)
	if err != nil {
		panic(err)
	}
	return b
}

// encodedNames is a request of nearly the length that it may have.
func encodedNames(i int) []byte {
	names := make([]string, (largeRequest-1000)/(largeRequestName+2))
	for n := range names {
		names[n] = fmt.Sprintf("%d-%d-", i, n)
		names[n] += strings.Repeat("n", largeRequestName-len(names[n]))
	}
	return encodedRequest(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: names})
}

// manyNamed are different such requests.
var manyNamed = [4]func() []byte{
	sync.OnceValue(func() []byte { return encodedNames(0) }), sync.OnceValue(func() []byte { return encodedNames(1) }),
	sync.OnceValue(func() []byte { return encodedNames(2) }), sync.OnceValue(func() []byte { return encodedNames(3) }),
}

// sendLarge sends a request on a stream, and waits until the stream ends, or for a moment.
func sendLarge(ctx context.Context, at *target, request []byte, options ...grpc.CallOption) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	sendOn(ctx, at, request, nil, options...)
}

// sendUnfinished sends a request without its end, and stays.
func sendUnfinished(ctx context.Context, at *target, _ int) {
	var dialer net.Dialer
	sendOn(ctx, at, unfinishedRequest(), func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		c := &stallingConn{Conn: conn, closed: make(chan struct{})}
		c.left.Store(unfinished - 1<<10)
		return c, nil
	})
}

var unfinishedRequest = sync.OnceValue(func() []byte { return make([]byte, unfinished) })

func sendOn(ctx context.Context, at *target, request []byte, dial func(context.Context, string) (net.Conn, error), options ...grpc.CallOption) {
	o := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(encodedCodec{encoding.GetCodecV2("proto")}))}
	if dial != nil {
		o = append(o, grpc.WithContextDialer(dial))
	}
	conn, err := grpc.NewClient("passthrough:///"+at.grpc, o...)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, deltaMethod, options...)
	if err != nil || s.SendMsg(request) != nil {
		return
	}
	for s.RecvMsg(new(discoveryv3.DeltaDiscoveryResponse)) == nil {
	}
}

// encodedCodec sends requests that are encoded already.
type encodedCodec struct{ encoding.CodecV2 }

func (c encodedCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// stallingConn is a connection that sends only so many bytes.
type stallingConn struct {
	net.Conn
	left   atomic.Int64
	once   sync.Once
	closed chan struct{}
}

func (c *stallingConn) Write(b []byte) (int, error) {
	if c.left.Add(-int64(len(b))) < 0 {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *stallingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
