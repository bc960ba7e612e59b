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

// gRFC A71, "xDS Fallback": clients with a fallback server in their own bootstrap.

// mostUntilEnd is how long the relay may take to end a stream on which it can serve nothing, on a slow and
// busy machine. It is less than the 15 s after which gRPC takes a resource for absent. On a fast machine the
// relay takes little more than the 4 s for which it waits for a server that does not answer.
const mostUntilEnd = 12 * time.Second

// startHole starts a server that accepts connections and never sends anything. To gRPC it looks like a host
// that does not answer.
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

// shopAt returns the resources that lead gRPC's client to a backend. Each backend has other names, because
// gRPC-Go, when it returns to its first server, does not request resources that it has from its second one.
func shopAt(t *testing.T, b *backend) []proto.Message {
	t.Helper()
	return []proto.Message{
		apiListener(t, "shop", b.id+"-routes"),
		routeConfiguration(b.id+"-routes", routeTo(b.id+"-cluster", prefix(""))),
		edsCluster(b.id+"-cluster", b.id+"-endpoints"),
		endpointsAt(t, b.id+"-endpoints", b.address),
	}
}

// TestGRPCFallsBackToItsSecondServer checks that gRPC's client, whose first server is the relay, uses its
// second server while the relay has no resources and cannot reach the control plane, and returns to the relay
// once the relay has resources.
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
			t.Logf("from the client's start to RPCs with resources of its second server: %v", time.Since(began).Round(time.Millisecond))
			if took := time.Since(began); took > mostUntilEnd {
				t.Errorf("the fallback took %v, want at most %v", took, mostUntilEnd)
			}

			dead.start(shopAt(t, relayed)...)
			channel.awaitReaches(someMethod, relayed)
		})
	}
}

// TestStreamsEndSoonWhileNothingCanBeServed checks for each way in which a control plane can be unreachable
// which streams the relay ends and which it keeps.
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
				for range 2 { // the relay ends a second stream for the same name, too
					began := time.Now()
					c := newClient(t, r, f, node("grpc", ""))
					c.subscribe(listenerType, "shop")
					c.await(t, "the stream ends", func(v *view) bool { return v.ended != nil })
					took := time.Since(began)
					c.read(func(v *view) {
						if st := status.Convert(v.ended); st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "control plane of cp.example.com cannot be reached") {
							t.Errorf("the stream ended with %v, want UNAVAILABLE and the reason", v.ended)
						}
						if v.responses > 0 {
							t.Errorf("the client received %v before the end: gRPC does not fall back then", v)
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

// TestStreamsEndSoonOfSeveralServersThatHang checks that a server that accepts streams and does not answer
// delays a client's fallback no longer than a server that fails in another way.
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
					t.Errorf("the stream ended with %v after %d responses, want UNAVAILABLE and no responses", v.ended, v.responses)
				}
			})
		})
	}
}

// TestAStreamOfTwoAuthoritiesEndsWithoutAResponse checks that the relay ends a stream with names of two
// unreachable authorities, although it notices one failure earlier than the other. It sends nothing before
// that, because gRPC falls back only if a stream ends without a response.
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
						t.Errorf("the stream ended with %v after %d responses, want UNAVAILABLE and no responses", v.ended, v.responses)
					}
				})
				if took > mostUntilEnd {
					t.Errorf("the stream ends after %v", took)
				}
			}

			// If the relay can serve one of the names, it keeps the stream and sends errors for the others.
			want := plainEndpoints(refused, 1)
			refusing.start(want)
			eventually(t, "a stream receives the endpoints of the authority that is reachable again", func() error {
				c := newClient(t, r, f, node("grpc", ""))
				c.subscribe(endpointType, refused, swallowed)
				var ended error
				c.await(t, "the stream has answers for both names, or ends", func(v *view) bool {
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
		back.await(t, "the stream has an answer, or ends", func(v *view) bool {
			ended = v.ended
			return ended != nil || len(v.held) > 0
		})
		return ended
	})
	back.awaitHas(t, "the endpoints", want)

	cp.kill()
	r.awaitLog(t, `msg="control plane lost".* reason=("?Unavailable)`)
	late := ask("at-both")
	late.awaitHas(t, "the cached endpoints", want)
	nothing := ask("at-none")
	nothing.await(t, "the stream without any resource ends", func(v *view) bool { return v.ended != nil })
	back.subscribe(endpointType, "at-both", "at-none")
	back.await(t, "the stream that has a resource receives an error for the other name", func(v *view) bool {
		return strings.Contains(v.errors[topic{endpointType, "at-none"}], "cannot be reached")
	})
	back.mustLive(t)
	late.mustLive(t)
}

// TestWhichStreamsEndCanBeConfigured checks the values end and wait of when_unreachable.
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
	patient.await(t, "the client receives the reason why it waits", func(v *view) bool { return len(v.errors) > 0 || v.ended != nil })
	patient.mustLive(t)
}
