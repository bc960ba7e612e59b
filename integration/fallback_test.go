package integration

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// gRFC A71, "xDS Fallback": clients that have a fallback server of their own.

// mostUntilEnd is how long a stream may be open on which nothing can be served, on a machine that is slow and busy: less
// than the 15 s after which gRPC takes a resource for absent. On others it is little more than the 4 s for which the relay
// waits for a server that does not answer.
const mostUntilEnd = 12 * time.Second

// startHole opens a port that accepts connections and never sends anything: to gRPC that is a host that
// does not answer.
func startHole(t *testing.T) (address string) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			accepting.Go(func() { <-t.Context().Done(); _ = conn.Close() })
		}
	})
	t.Cleanup(func() {
		_ = socket.Close()
		accepting.Wait()
	})
	return socket.Addr().String()
}

// shopAt are the resources by which gRPC's client finds a backend. The names differ from backend to
// backend: when gRPC-Go returns to its first server, it does not request resources that it has from its
// second one.
func shopAt(t *testing.T, b *backend) []proto.Message {
	t.Helper()
	return []proto.Message{
		apiListener(t, "shop", b.id+"-routes"),
		routeConfiguration(b.id+"-routes", routeTo(b.id+"-cluster", prefix(""))),
		edsCluster(b.id+"-cluster", b.id+"-endpoints"),
		endpointsAt(t, b.id+"-endpoints", b.address),
	}
}

// TestGRPCFallsBackToItsSecondServer checks that gRPC's client, whose first server is the relay, uses
// its second server while the relay has nothing and cannot reach the control plane, and returns to the
// relay once that can serve it.
func TestGRPCFallsBackToItsSecondServer(t *testing.T) {
	for _, linger := range []string{"5m", "0s"} {
		t.Run("linger "+linger, func(t *testing.T) {
			t.Parallel()
			own, relayed := startBackend(t, "own"), startBackend(t, "relayed")
			dead, second := newKillable(t), newKillable(t)
			second.start(shopAt(t, own)...)
			r := startRelay(t, relayTo(dead.address, "auto")+"cache: {linger: "+linger+"}\n")
			b := bootstrapFor(r, "edge-1")
			b.Servers = append(b.Servers, b.Servers[0])
			b.Servers[1].URI = second.address
			began := time.Now()
			channel := dialXDS(t, b, "xds:///shop")
			channel.awaitReaches(someMethod, own)
			t.Logf("from the client's start to RPCs by its second server: %v", time.Since(began).Round(time.Millisecond))
			if took := time.Since(began); took > mostUntilEnd {
				t.Errorf("it took %v", took)
			}

			dead.start(shopAt(t, relayed)...)
			channel.awaitReaches(someMethod, relayed)
		})
	}
}

// TestStreamsEndSoonWhileNothingCanBeServed checks, for each way in which a control plane
// can be gone, which streams end and which are kept, and that new ones just work when it
// is back.
func TestStreamsEndSoonWhileNothingCanBeServed(t *testing.T) {
	cp := newKillable(t)
	for _, gone := range []struct{ how, address string }{
		{"refuses", cp.address},
		{"does not answer", startHole(t)},
	} {
		for _, f := range []form{delta, sotw} {
			t.Run(fmt.Sprintf("control plane %s, %s", gone.how, f), func(t *testing.T) {
				t.Parallel()
				r := startRelay(t, relayTo(gone.address, "auto"))
				envoy := newClient(t, r, f, node("envoy", ""))
				envoy.subscribe(clusterType, wildcard)
				for range 2 { // a new stream for the same ends too
					began := time.Now()
					c := newClient(t, r, f, node("grpc", ""))
					c.subscribe(listenerType, "shop")
					c.await(t, "the stream ends", func(v *view) bool { return v.ended != nil })
					took := time.Since(began)
					c.read(func(v *view) {
						if st := status.Convert(v.ended); st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "control plane of cp.example.com cannot be reached") {
							t.Errorf("the stream ends with %v", v.ended)
						}
						if v.responses > 0 {
							t.Errorf("the client is sent %v: it does not fall back then", v)
						}
					})
					if took > mostUntilEnd {
						t.Errorf("the stream ends after %v", took)
					}
				}
				envoy.mustLive(t)
				r.awaitLog(t, `msg="stream of a client ends: nothing can be served on it".* client=(grpc)`)
				r.mustShow(t, "/metrics", `xds_relay_downstream_unreachable_ends_total 2`)
			})
		}
	}
}

// startHanging starts a control plane that accepts streams and sends nothing on them.
func startHanging(t *testing.T) (address string) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	}))
	serve(s, socket)
	t.Cleanup(s.Stop)
	return socket.Addr().String()
}

// TestStreamsEndSoonOfSeveralServersThatHang checks that a server that accepts streams and does not
// answer delays clients no longer than one that is broken in another way.
func TestStreamsEndSoonOfSeveralServersThatHang(t *testing.T) {
	hang, refuse, swallow := startHanging(t), newKillable(t).address, startHole(t)
	for how, servers := range map[string][]string{
		"hang, refuse":          {hang, refuse},
		"hang, swallow":         {hang, swallow},
		"refuse, hang":          {refuse, hang},
		"hang, hang":            {hang, startHanging(t)},
		"swallow, hang, refuse": {swallow, hang, refuse},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			config := relayTo(servers[0], "auto")
			for _, address := range servers[1:] {
				config = strings.Replace(config, "\nold_style_names:", "      - address: "+address+"\n\nold_style_names:", 1)
			}
			r := startRelay(t, config)
			c := newClient(t, r, sotw, node("grpc", ""))
			began := time.Now()
			c.subscribe(listenerType, "shop")
			c.await(t, "the stream ends", func(v *view) bool { return v.ended != nil })
			if took := time.Since(began); took > mostUntilEnd {
				t.Errorf("the stream ends after %v", took)
			}
			c.read(func(v *view) {
				if status.Code(v.ended) != codes.Unavailable || v.responses > 0 {
					t.Errorf("the stream ends with %v after %d responses", v.ended, v.responses)
				}
			})
		})
	}
}

// TestAStreamOfTwoAuthoritiesEndsWithoutAResponse checks that a stream ends also where one control
// plane is known to be gone before the other, and that nothing is sent on it meanwhile: gRPC falls
// back only then.
func TestAStreamOfTwoAuthoritiesEndsWithoutAResponse(t *testing.T) {
	const at = "xdstp://%s.example.com/envoy.config.endpoint.v3.ClusterLoadAssignment/e"
	refused, swallowed := fmt.Sprintf(at, "refusing"), fmt.Sprintf(at, "swallowing")
	for _, f := range []form{delta, sotw} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			refusing := newKillable(t)
			r := startRelay(t, prelude+fmt.Sprintf(`
authorities:
  - name: refusing.example.com
    servers: [{address: %q, backoff: {base: 20ms, max: 200ms}}]
  - name: swallowing.example.com
    servers: [{address: %q, backoff: {base: 20ms, max: 200ms}}]
cache: {linger: 0s}
`, refusing.address, startHole(t)))
			for range 2 {
				began := time.Now()
				c := newClient(t, r, f, node("grpc", ""))
				c.subscribe(endpointType, refused, swallowed)
				c.await(t, "the stream ends", func(v *view) bool { return v.ended != nil })
				took := time.Since(began)
				c.read(func(v *view) {
					if status.Code(v.ended) != codes.Unavailable || v.responses > 0 {
						t.Errorf("the stream ends with %v after %d responses, want UNAVAILABLE and none", v.ended, v.responses)
					}
				})
				if took > mostUntilEnd {
					t.Errorf("the stream ends after %v", took)
				}
			}

			// One that can be served something is kept, and sent errors for the rest.
			want := plainEndpoints(refused, 1)
			refusing.start(want)
			eventually(t, "a stream is served by the authority that is back", func() error {
				c := newClient(t, r, f, node("grpc", ""))
				c.subscribe(endpointType, refused, swallowed)
				var ended error
				c.await(t, "the stream is answered for both names, or ends", func(v *view) bool {
					ended = v.ended
					return ended != nil || len(v.held) > 0 && v.errors[topic{endpointType, swallowed}] != ""
				})
				return ended
			})
		})
	}
}

// TestStreamsWorkWhenTheControlPlaneIsBack checks that a stream receives what it requests as soon as the
// control plane answers, and stays open when the control plane goes away again.
func TestStreamsWorkWhenTheControlPlaneIsBack(t *testing.T) {
	cp := newKillable(t)
	r := startRelay(t, relayTo(cp.address, "auto"))
	ask := func(name string) *client {
		c := newClient(t, r, sotw, node("grpc", ""))
		c.subscribe(endpointType, name)
		return c
	}
	first := ask("at-both")
	first.await(t, "the stream ends", func(v *view) bool { return v.ended != nil })

	want := plainEndpoints("at-both", 1)
	cp.start(want)
	var back *client
	eventually(t, "a new stream works", func() error {
		back = ask("at-both")
		var ended error
		back.await(t, "the stream is answered, or ends", func(v *view) bool {
			ended = v.ended
			return ended != nil || len(v.held) > 0
		})
		return ended
	})
	back.awaitHas(t, "what there is", want)

	cp.kill()
	r.awaitLog(t, `msg="control plane lost".* reason=("?Unavailable)`)
	late := ask("at-both")
	late.awaitHas(t, "what is held", want)
	nothing := ask("at-none")
	nothing.await(t, "the stream that can be given nothing ends", func(v *view) bool { return v.ended != nil })
	back.subscribe(endpointType, "at-both", "at-none")
	back.await(t, "the stream that has something is sent errors for the rest", func(v *view) bool {
		return strings.Contains(v.errors[topic{endpointType, "at-none"}], "cannot be reached")
	})
	back.mustLive(t)
	late.mustLive(t)
}

// TestWhichStreamsEndCanBeConfigured checks when_unreachable: end and wait.
func TestWhichStreamsEndCanBeConfigured(t *testing.T) {
	cp := newKillable(t)
	with := func(when string) *relay {
		return startRelay(t, strings.Replace(relayTo(cp.address, "auto"), "- address: 127.0.0.1:0\n", "- address: 127.0.0.1:0\n    when_unreachable: "+when+"\n", 1))
	}
	envoy := newClient(t, with("end"), delta, node("envoy", ""))
	envoy.subscribe(clusterType, wildcard)
	envoy.await(t, "the stream with a wildcard ends", func(v *view) bool { return v.ended != nil })
	patient := newClient(t, with("wait"), delta, node("patient", ""))
	patient.subscribe(endpointType, "a")
	patient.await(t, "the client is sent why it waits", func(v *view) bool { return len(v.errors) > 0 || v.ended != nil })
	patient.mustLive(t)
}
