package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// Clients that break the protocol, or ask for too much, over real streams: each
// gets the error that docs/limits.md says, and another client on the same
// listener is served meanwhile as if they were not there.

// badRelay is a listener with limits, and a good client on it.
type badRelay struct {
	memory
	t       *testing.T
	cache   *cache.Cache
	server  *Server
	log     *logRecord
	good    deltaStream
	version int
}

const (
	goodName = "good"
	// goodPace is how often it is served: its ACKs must stay within the limits.
	goodPace = 5 * time.Millisecond
)

func newBadRelay(t *testing.T, l Limits, o ListenerOptions) *badRelay {
	t.Helper()
	r := &badRelay{t: t, cache: newTestCache(&recordingSource{}, 1000)}
	t.Cleanup(r.cache.Close)
	r.server, r.log = newTestServer(r.cache, DefaultMaxResponseBytes)
	r.memory = serveInMemory(t, func(g *grpc.Server) { r.server.Register(g, ListenerOptions{Limits: l}) }, ServerOptions(o)...)
	r.good = openDelta(t, r.dial())
	subscribeTo(t, r.good, clusterType, goodName)
	eventually(t, "the good client is subscribed", func() bool { return r.subscriptions() == 1 })
	r.serveGood()
	return r
}

// bound is how long the good client may wait for an update. It takes much less
// than a millisecond, and machines that run tests are busy.
const bound = 30 * time.Second

// serveGood has the good client get an update, and says whether it did.
func (r *badRelay) serveGood() bool {
	r.version++
	want := fmt.Sprint("version ", r.version)
	began := time.Now()
	putEverywhere(r.cache, clusterType, goodName, want)
	for got := ""; got != want; {
		m, err := r.good.Recv()
		if err != nil {
			r.t.Errorf("the good client's stream ended: %v", err)
			return false
		}
		for _, res := range m.GetResources() {
			_, got = decodeContent(res.GetResource().GetValue())
		}
		if err := r.good.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: m.GetNonce()}); err != nil {
			r.t.Errorf("the good client cannot ACK: %v", err)
			return false
		}
	}
	if took := time.Since(began); took > bound {
		r.t.Errorf("the good client waited %v for an update", took)
	}
	return true
}

// meanwhile has the good client served over and over while bad goes on, and then
// sees that nothing is left of the bad one.
func (r *badRelay) meanwhile(t *testing.T, bad func(ctx context.Context)) {
	t.Helper()
	done := make(chan struct{})
	var serving sync.WaitGroup
	serving.Go(func() {
		pace := time.NewTicker(goodPace)
		defer pace.Stop()
		for r.serveGood() {
			select {
			case <-done:
				return
			case <-pace.C:
			}
		}
	})
	defer serving.Wait()
	defer close(done)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	bad(ctx)
	cancel()
	eventually(t, "nothing is left of the bad client", func() bool {
		held := r.cache.Stats()
		return r.server.Clients() == 1 && held.Entries+held.Sets-held.Idle == 1
	})
}

func (r *badRelay) subscriptions() int { return (&relay{server: r.server}).subscriptions() }

// exceeded is how often clients went over a limit.
func (r *badRelay) exceeded(l limit) uint64 { return r.server.Stats().Limits[l.String()] }

// raw is a codec that sends bytes as they are, for those that no honest encoder
// makes.
type raw struct{}

func (raw) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	b, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

// Unmarshal implements encoding.CodecV2.
func (raw) Unmarshal(b mem.BufferSlice, v any) error {
	return proto.Unmarshal(b.Materialize(), v.(proto.Message))
}

// adsMethods are the methods of both forms.
var adsMethods = map[string]string{
	deltaForm.name: discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName,
	sotwForm.name:  discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName,
}

// openRaw opens a stream on which anything can be sent.
func openRaw(ctx context.Context, t *testing.T, conn *grpc.ClientConn, method string) grpc.ClientStream {
	t.Helper()
	g, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(raw{}))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// ending returns the error with which a stream ends, whatever comes before.
func ending(g grpc.ClientStream) error {
	for {
		if err := g.RecvMsg(new(discoveryv3.DeltaDiscoveryResponse)); err != nil {
			return err
		}
	}
}

// asking returns a request of a form for names.
func asking(form, typeURL string, names ...string) proto.Message {
	if form == deltaForm.name {
		return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names}
	}
	return &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names}
}

// manyNames are short, so that very many fit into a request of a few MiB.
func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%x", i)
	}
	return names
}

func TestBadRequestsEndTheirOwnStreamOnly(t *testing.T) {
	const nameBytes = 1 << 10
	notUTF8 := protowire.AppendTag(nil, 3, protowire.BytesType) // both forms have names in field 3
	notUTF8 = protowire.AppendBytes(notUTF8, []byte("name \xff"))
	for _, bad := range []struct {
		name    string
		method  string // of a service of one type; else both forms of ADS
		send    func(form string) any
		limits  ListenerOptions
		code    codes.Code
		message string
		logged  string
		counted limit
	}{
		{
			name: "no type", send: func(form string) any { return asking(form, "") },
			code: codes.InvalidArgument, message: "type_url", logged: "not valid", counted: numLimits,
		},
		{
			name: "another type", method: typedMethods[0].delta, send: func(string) any { return asking(deltaForm.name, clusterType) },
			code: codes.InvalidArgument, message: clusterType, logged: "not valid", counted: numLimits,
		},
		{
			name: "another type in SotW", method: typedMethods[0].sotw, send: func(string) any { return asking(sotwForm.name, clusterType) },
			code: codes.InvalidArgument, message: clusterType, logged: "not valid", counted: numLimits,
		},
		{
			name: "undecodable", send: func(string) any { return []byte{0x0a, 0xff, 0xff, 0xff} },
			code: codes.Internal, message: "cannot be decoded", logged: "not valid", counted: numLimits,
		},
		{
			name: "a name that is not UTF-8", send: func(string) any { return notUTF8 },
			code: codes.Internal, message: "UTF-8", logged: "not valid", counted: numLimits,
		},
		{
			name: "a name that is too long", send: func(form string) any { return asking(form, endpointType, strings.Repeat("x", nameBytes+1)) },
			code: codes.ResourceExhausted, message: "a name of 1025 bytes, but limits.name_bytes is 1024", logged: "limit=name_bytes", counted: limitNameBytes,
		},
		{
			name: "too many bytes", send: func(form string) any {
				return asking(form, endpointType, slices.Repeat([]string{strings.Repeat("x", nameBytes)}, 5000)...)
			},
			code: codes.ResourceExhausted, message: "a request of 5135068 bytes, but max_request_bytes is 4194304", logged: "limit=max_request_bytes", counted: limitRequestBytes,
		},
		{
			name: "very many names", send: func(form string) any { return asking(form, endpointType, manyNames(200_000)...) },
			limits: ListenerOptions{MaxRequestBytes: 64 << 20},
			code:   codes.ResourceExhausted, message: "200001 names subscribed to on this stream, but limits.subscriptions is 1000", logged: "limit=subscriptions", counted: limitSubscriptions,
		},
		{
			name: "a large node", send: func(form string) any {
				node := &corev3.Node{Id: strings.Repeat("x", maxNodeBytes)}
				if form == deltaForm.name {
					return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, Node: node}
				}
				return &discoveryv3.DiscoveryRequest{TypeUrl: endpointType, Node: node}
			},
			code: codes.ResourceExhausted, message: "a node of 262148 bytes, but the fixed limit node_bytes is 262144", logged: "limit=node_bytes", counted: limitNodeBytes,
		},
	} {
		methods := adsMethods
		if bad.method != "" {
			methods = map[string]string{"its form": bad.method}
		}
		for form, method := range methods {
			t.Run(bad.name+" "+form, func(t *testing.T) {
				r := newBadRelay(t, Limits{Subscriptions: 1000, NameBytes: nameBytes, Streams: 10}, bad.limits)
				r.meanwhile(t, func(ctx context.Context) {
					g := openRaw(ctx, t, r.dial(), method)
					// It had a subscription, which ends with its stream.
					if bad.method == "" && bad.counted != limitNodeBytes {
						if err := g.SendMsg(asking(form, clusterType, "mine")); err != nil {
							t.Fatal(err)
						}
					}
					// It may be refused before it has sent all, which ending says.
					if err := g.SendMsg(bad.send(form)); err != nil && !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
					err := ending(g)
					if status.Code(err) != bad.code || !strings.Contains(status.Convert(err).Message(), bad.message) {
						t.Errorf("the stream ends with %v, want %v: %s", err, bad.code, bad.message)
					}
				})
				if lines := r.log.take(); len(lines) != 1 || !strings.Contains(lines[0], bad.logged) || !strings.Contains(lines[0], "client=") {
					t.Errorf("the log has %q, want one line with %q", lines, bad.logged)
				}
				for l := range numLimits {
					want := uint64(0)
					if l == bad.counted {
						want = 1
					}
					if got := r.exceeded(l); got != want {
						t.Errorf("%d of %s are counted, want %d", got, l, want)
					}
				}
			})
		}
	}
}

// Bytes that are not gRPC end their connection.
func TestGarbageOnAConnectionEndsItOnly(t *testing.T) {
	r := newBadRelay(t, Limits{}, ListenerOptions{})
	for _, garbage := range []string{
		"GET / HTTP/1.1\r\nHost: relay.example.com\r\n\r\n",
		strings.Repeat("\x00\xff", 1000),
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 1000),
	} {
		r.meanwhile(t, func(ctx context.Context) {
			conn, err := r.lis.DialContext(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, garbage); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Fatal(err)
			}
			drain(ctx, conn)
		})
	}
	if lines := r.log.take(); len(lines) != 0 {
		t.Errorf("the log has %q", lines)
	}
}

// drain reads until the other side closes the connection.
func drain(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, _ = io.Copy(io.Discard, conn)
}

// An unknown type is served like any other.
func TestUnknownTypesAreServed(t *testing.T) {
	const typeURL = "type.googleapis.com/nobody.has.heard.of.It"
	r := newBadRelay(t, Limits{}, ListenerOptions{})
	r.meanwhile(t, func(context.Context) {
		s := openDelta(t, r.dial())
		subscribeTo(t, s, typeURL, "a")
		eventually(t, "it is subscribed", func() bool { return r.subscriptions() == 2 })
		putEverywhere(r.cache, typeURL, "a", "opaque")
		if got := receive(t, s)["a"]; got != "opaque" {
			t.Errorf("it gets %q", got)
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
	})
}

// xDS: "ACK and NACK": what was rejected is not sent again, however often it is rejected, with any nonce.
func TestRejectingForEverIsAnsweredWithNothing(t *testing.T) {
	const times = 2000
	for form, method := range adsMethods {
		t.Run(form, func(t *testing.T) {
			r := newBadRelay(t, Limits{}, ListenerOptions{})
			before := r.server.Stats()
			r.meanwhile(t, func(ctx context.Context) {
				g := openRaw(ctx, t, r.dial(), method)
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				must(g.SendMsg(asking(form, endpointType, "a")))
				eventually(t, "it is subscribed", func() bool { return r.subscriptions() == 2 })
				putEverywhere(r.cache, endpointType, "a", "one")
				must(g.RecvMsg(new(discoveryv3.DeltaDiscoveryResponse)))
				for i := range times {
					nonce := "1"
					if i%2 > 0 { // of another stream
						nonce = fmt.Sprint(1000 + i)
					}
					no := &statuspb.Status{Code: int32(codes.InvalidArgument), Message: "no"}
					if form == deltaForm.name {
						must(g.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: nonce, ErrorDetail: no}))
					} else {
						must(g.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: []string{"a"}, ResponseNonce: nonce, ErrorDetail: no}))
					}
				}
				// The answer to this is the next response: there was none in between.
				if form == deltaForm.name {
					must(g.SendMsg(asking(form, endpointType, "a")))
				} else {
					must(g.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: []string{"a"}, ResponseNonce: "1"}))
					eventually(t, "all is read", func() bool { return r.server.Stats().Requests-before.Requests >= times+2 })
					putEverywhere(r.cache, endpointType, "a", "two")
				}
				var next discoveryv3.DiscoveryResponse // the nonce has the same place in both forms
				must(g.RecvMsg(&next))
				if next.GetNonce() != "2" {
					t.Errorf("the next response has nonce %s: others were sent in between", next.GetNonce())
				}
				must(g.CloseSend())
				if err := ending(g); !errors.Is(err, io.EOF) {
					t.Errorf("the stream ended with %v", err)
				}
			})
			if n := r.server.Stats().NACKs; n != 1 {
				t.Errorf("%d NACKs of one response are counted, want 1", n)
			}
			if lines := r.log.take(); len(lines) != 1 {
				t.Errorf("the log has %q, want one line", lines)
			}
		})
	}
}

// A client that sends too fast is served at the permitted pace, and others at theirs.
func TestFloodsAreReadSlowly(t *testing.T) {
	const perSecond, requests = 500, 250
	r := newBadRelay(t, Limits{RequestsPerSecond: perSecond, RequestBurst: 1}, ListenerOptions{})
	r.meanwhile(t, func(ctx context.Context) {
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(r.dial()).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i := range requests {
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{fmt.Sprint("n", i)}}); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all is read", func() bool { return r.subscriptions() == 1+requests })
		if took, least := time.Since(began), (requests-1)*time.Second/perSecond; took < least {
			t.Errorf("%d requests were read in %v, want %v at least", requests, took, least)
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := ending(s); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
	})
	if n := r.exceeded(limitRequests); n == 0 {
		t.Error("it is not counted")
	}
}

// Streams on which nothing is ever sent or read cost their place, and nothing else: when there are too many, new ones
// are turned away.
func TestTooManyStreamsAreTurnedAway(t *testing.T) {
	const most = 20
	r := newBadRelay(t, Limits{Streams: most}, ListenerOptions{})
	conn := r.dial()
	r.meanwhile(t, func(ctx context.Context) {
		var idle []grpc.ClientStream
		for i := range most - 1 {
			idle = append(idle, openRaw(ctx, t, conn, adsMethods[[]string{deltaForm.name, sotwForm.name}[i%2]]))
		}
		eventually(t, "all are open", func() bool { return r.server.Clients() == most })
		for range 3 {
			err := ending(openRaw(ctx, t, r.dial(), adsMethods[deltaForm.name]))
			want := "21 open streams on this listener, but limits.streams is 20"
			if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != want {
				t.Errorf("one too many ends with %v, want RESOURCE_EXHAUSTED: %s", err, want)
			}
		}
		// A place that is given up can be had.
		if err := idle[0].CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := ending(idle[0]); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
		s := openDelta(t, conn)
		subscribeTo(t, s, clusterType, goodName)
		receive(t, s)
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
	})
	if n := r.exceeded(limitStreams); n != 3 {
		t.Errorf("%d streams are counted, want 3", n)
	}
	// Not one for each: that would be up to the client.
	if lines := r.log.take(); len(lines) != 1 || !strings.Contains(lines[0], "limit=streams") {
		t.Errorf("the log has %q, want one line", lines)
	}
}

// A client that requests something again and again, and never reads it, has no more pending than one that requested it
// once, and can still be refused.
func TestAClientThatNeverReadsCanBeRefused(t *testing.T) {
	r := newBadRelay(t, Limits{Subscriptions: 10}, ListenerOptions{})
	putLarge := func(i int) {
		putEverywhere(r.cache, endpointType, "large", strings.Repeat("x", 200_000)+fmt.Sprint(i))
	}
	r.meanwhile(t, func(ctx context.Context) {
		g := openRaw(ctx, t, r.dial(), adsMethods[deltaForm.name])
		for i := range 100 {
			if err := g.SendMsg(asking(deltaForm.name, endpointType, "large")); err != nil {
				t.Fatal(err)
			}
			putLarge(i)
		}
		eventually(t, "its sender is held up", func() bool { return r.server.Stats().Requests > 100 })
		if err := g.SendMsg(asking(deltaForm.name, endpointType, manyNames(11)...)); err != nil {
			t.Fatal(err)
		}
		// Though it does not read that it was refused.
		eventually(t, "it is refused", func() bool { return r.exceeded(limitSubscriptions) == 1 && r.server.Clients() == 1 })
		if n := r.server.Stats().Responses; n < 2 {
			t.Errorf("%d responses were sent", n)
		}
	})
}
