package integration

// Requests that take the memory of a small container while the relay receives and reads them.

import (
	"bytes"
	"context"
	"fmt"
	"io"
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
		{"over REST that never end", func(ctx context.Context, at *target, _ int) { postUnfinished(ctx, at) }},
		{"over REST with many names", func(ctx context.Context, at *target, i int) { postLarge(ctx, at, i) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			attackContainer(t, unfinishedFor, func(ctx context.Context, at *target, attacking *sync.WaitGroup) {
				for i := range largeRequests {
					attacking.Go(func() {
						for ctx.Err() == nil {
							attack.run(ctx, at, i)
						}
					})
				}
			})
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

// manyNamedBodies are bodies of nearly the length that they may have, with many names.
var manyNamedBodies = [4]func() []byte{
	sync.OnceValue(func() []byte { return encodedBody(0) }), sync.OnceValue(func() []byte { return encodedBody(1) }),
	sync.OnceValue(func() []byte { return encodedBody(2) }), sync.OnceValue(func() []byte { return encodedBody(3) }),
}

func encodedBody(i int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"node": {"id": "large", "cluster": "quiet"}, "resource_names": [`)
	for n := 0; b.Len() < largeRequest-1000; n++ {
		name := fmt.Sprintf("%d-%d-", i, n)
		fmt.Fprintf(&b, "\"%s%s\",", name, strings.Repeat("n", largeRequestName-len(name)))
	}
	b.WriteString(`"last"]}`)
	return b.Bytes()
}

// bodiesAtOnce is how many bodies each attacker over REST sends at once.
const bodiesAtOnce = 5

// postUnfinished sends bodies without their ends, and stays until the relay ends all of them.
func postUnfinished(ctx context.Context, at *target) {
	var sending sync.WaitGroup
	for range bodiesAtOnce {
		sending.Go(func() {
			body := manyNamedBodies[0]()
			exchange(ctx, at, len(body), body[:len(body)-1<<10])
		})
	}
	sending.Wait()
}

// postLarge sends whole bodies, and waits for the answers.
func postLarge(ctx context.Context, at *target, i int) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var sending sync.WaitGroup
	for n := range bodiesAtOnce {
		sending.Go(func() {
			body := manyNamedBodies[(i+n)%len(manyNamedBodies)]()
			exchange(ctx, at, len(body), body)
		})
	}
	sending.Wait()
}

// exchange sends a request over REST with a body that is said to have so many bytes, and reads until the connection ends.
func exchange(ctx context.Context, at *target, length int, body []byte) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", at.rest)
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", length); err != nil {
		return
	}
	if _, err := conn.Write(body); err == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
}
