package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// separate is Streams between a cache and a control plane.
type separate struct {
	*bench
	streams *Streams
	// opened has each stream that is opened, with its method.
	opened chan *typed
	// unimplemented are the methods that the control plane does not implement, by their last part; mu
	// guards it.
	unimplemented []string
}

// typed is a stream of a type's own service.
type typed struct {
	scripted
	method string // its last part
}

// runSeparate runs a test in a bubble, with a control plane that has the services of
// all types.
func runSeparate(t *testing.T, o Options, test func(*separate)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &separate{bench: &bench{T: t, logs: &logBuffer{}}, opened: make(chan *typed, 100)}
		s.open(o, func(...grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(grpc.UnknownServiceHandler(s.handle))
		})
		defer s.stop()
		test(s)
	})
}

func (s *separate) open(o Options, server func(...grpc.ServerOption) *grpc.Server) {
	s.lis = memconn.Listen(1 << 20)
	s.server = server()
	go func() { _ = s.server.Serve(s.lis) }()
	var err error
	s.conn, err = Dial("passthrough:///control-plane", DialOptions{Extra: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.lis.DialContext(ctx) }),
	}})
	if err != nil {
		s.Fatal(err)
	}
	s.feed(s.conn, o)
}

// feed makes the cache and its source.
func (s *separate) feed(conn grpc.ClientConnInterface, o Options) {
	source := &lateSource{}
	s.cache = cache.New(source, cache.Options{Linger: time.Minute, IdleEntries: 100})
	log := slog.New(slog.NewTextHandler(s.logs, nil))
	s.streams = NewStreams(testScope, conn, &corev3.Node{Id: "relay"}, o, deliverytest.Direct(s.cache), log)
	source.Source = s.streams
}

func (s *separate) stop() {
	s.streams.Close()
	s.streams.Close() // which does nothing
	<-s.streams.Done()
	s.cache.Close()
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.server != nil {
		s.server.Stop()
	}
}

// watch watches entries of a type, which go into one request.
func (s *separate) watch(typ string, names ...string) map[string]*cache.Entry {
	st := s.streams.stream(typeURLs[typ])
	st.mu.Lock() // the sender is busy
	defer st.mu.Unlock()
	return s.bench.watch(typ, names...)
}

func (s *separate) handle(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	st := &typed{method: full[strings.LastIndexByte(full, '/')+1:]}
	s.mu.Lock()
	unimplemented := slices.Contains(s.unimplemented, st.method) || st.method == "Check" // of health
	s.mu.Unlock()
	if unimplemented {
		return status.Error(codes.Unimplemented, "unknown method "+st.method)
	}
	st.form, st.ctx, st.end, st.stopped = SotW, stream.Context(), make(chan error, 1), make(chan struct{})
	request := func() proto.Message { return &discoveryv3.DiscoveryRequest{} }
	if strings.HasPrefix(st.method, "Delta") {
		st.form = Delta
		request = func() proto.Message { return &discoveryv3.DeltaDiscoveryRequest{} }
	}
	st.send = func(m proto.Message) error { return stream.SendMsg(m) }
	st.recv = func() (proto.Message, error) {
		m := request()
		return m, stream.RecvMsg(m)
	}
	defer close(st.stopped)
	s.opened <- st
	select {
	case err := <-st.end:
		return err
	case <-st.ctx.Done():
		return nil
	}
}

// next returns the next streams that are opened, by their methods.
func (s *separate) next(methods ...string) []*typed {
	s.Helper()
	streams := make([]*typed, len(methods))
	for range methods {
		select {
		case st := <-s.opened:
			i := slices.Index(methods, st.method)
			if i < 0 {
				s.Fatalf("%s was opened, want %q", st.method, methods)
			}
			streams[i] = st
		case <-time.After(time.Hour):
			s.Fatalf("not opened: one of %q", methods)
		}
	}
	synctest.Wait()
	if len(s.opened) > 0 {
		s.Fatalf("%s was opened as well", (<-s.opened).method)
	}
	return streams
}

func (s *separate) statuses() string {
	synctest.Wait()
	var all []string
	for _, st := range s.streams.Statuses() {
		text := fmt.Sprintf("%s %s %t %d", st.TypeURL[strings.LastIndexByte(st.TypeURL, '.')+1:], st.Protocol, st.Connected, st.Subscriptions)
		if st.LastError != "" {
			text += " " + st.LastError
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// wantFailed checks that a topic has an error that contains a text.
func (s *separate) wantFailed(what string, err *cache.Error, code codes.Code, text string) {
	s.Helper()
	if err == nil || err.Code != code || !strings.Contains(err.Message, text) {
		s.Errorf("%s gets %v, want %s with %q", what, err, code, text)
	}
}

func TestEachTypeHasAStreamOfItsOwn(t *testing.T) {
	runSeparate(t, Options{Protocol: Delta}, func(s *separate) {
		c := s.watch("cds", "a")["a"]
		e := s.watch("eds", "a", "b")
		streams := s.next("DeltaClusters", "DeltaEndpoints")
		for i, want := range []string{"[a]", "[a b]"} {
			req := streams[i].delta(s.T)
			if got := fmt.Sprint(slices.Sorted(slices.Values(req.GetResourceNamesSubscribe()))); got != want || req.GetNode().GetId() != "relay" {
				s.Errorf("%s: asked for %s as %q, want %s", streams[i].method, got, req.GetNode().GetId(), want)
			}
		}
		s.respond(&streams[0].scripted, deltaResponse(s.T, "cds", "1", "a"))
		s.want(c, "present v1")
		s.want(e["a"], "requested")
		if ack := streams[0].delta(s.T); ack.GetResponseNonce() != "1" || ack.GetNode().GetId() != "relay" {
			s.Errorf("got %v, want an ACK with the Node", ack)
		}

		// One stream fails, which does not concern the other.
		s.respond(&streams[1].scripted, deltaResponse(s.T, "eds", "1", "a"))
		streams[1].end <- status.Error(codes.Unavailable, "restart")
		again := s.next("DeltaEndpoints")
		if got := again[0].delta(s.T).GetInitialResourceVersions(); len(got) != 1 || got["a"] != "v1" {
			s.Errorf("resumed with %v", got)
		}
		s.want(e["a"], "present v1")
		if got, want := s.statuses(), "Cluster delta true 1; ClusterLoadAssignment delta true 2 Unavailable: restart"; got != want {
			s.Errorf("statuses\n%s, want\n%s", got, want)
		}
	})
}

func TestAutoIsFoundOutForEachType(t *testing.T) {
	runSeparate(t, Options{}, func(s *separate) {
		s.unimplemented = []string{"DeltaEndpoints"}
		s.watch("cds", "a")
		e := s.watch("eds", "a")["a"]
		streams := s.next("DeltaClusters", "StreamEndpoints")
		streams[1].request(s.T)
		// On a stream for one type the responses need not have the type URL.
		m := sotwResponse(s.T, "eds", "1", "a")
		m.TypeUrl = ""
		s.respond(&streams[1].scripted, m)
		s.wantText(e, "1")
		if got, want := s.statuses(), "Cluster delta true 1; ClusterLoadAssignment sotw true 1 Unimplemented: unknown method DeltaEndpoints"; got != want {
			s.Errorf("statuses\n%s, want\n%s", got, want)
		}
	})
}

// A type whose service has delta only has nothing to fall back to.
func TestAutoOfADeltaOnlyTypeStaysDelta(t *testing.T) {
	runSeparate(t, Options{}, func(s *separate) {
		s.unimplemented = []string{"DeltaVirtualHosts"}
		k := cache.Key{Scope: testScope, TypeURL: xdstype.VirtualHostV3, Name: "r/v"}
		e, _ := s.cache.Watch(k, &watcher{})
		synctest.Wait()
		s.wantFailed("the virtual host", e.State().Err, codes.Unavailable, "unknown method DeltaVirtualHosts")
		s.mu.Lock()
		s.unimplemented = nil
		s.mu.Unlock()
		s.next("DeltaVirtualHosts")
	})
}

func TestTypeWithoutAServiceIsReported(t *testing.T) {
	for _, tt := range []struct {
		protocol Protocol
		typeURL  string
		want     string
	}{
		{Auto, typeURLs["other"], "no discovery service of its own,"},
		{SotW, xdstype.VirtualHostV3, "no discovery service of its own in sotw"},
		{REST, xdstype.VirtualHostV3, "no REST-JSON form"},
	} {
		runSeparate(t, Options{Protocol: tt.protocol}, func(s *separate) {
			w := &watcher{}
			e, _ := s.cache.Watch(cache.Key{Scope: testScope, TypeURL: tt.typeURL, Name: "a"}, w)
			set := s.cache.WatchSet(cache.Key{Scope: testScope, TypeURL: tt.typeURL, Name: cache.Wildcard}, &setWatcher{})
			synctest.Wait()
			s.wantFailed("the name", e.State().Err, codes.Unimplemented, tt.want)
			_, err := set.Status()
			s.wantFailed("the wildcard", err, codes.Unimplemented, tt.want)
			if got := s.streams.Statuses(); len(got) != 1 || got[0].TypeURL != tt.typeURL || got[0].Subscriptions != 2 ||
				got[0].Protocol != "" || !strings.Contains(got[0].LastError, tt.want) {
				s.Errorf("statuses %+v", got)
			}

			// Again, and others.
			s.cache.Unwatch(w)
			pass(time.Hour)
			e, _ = s.cache.Watch(cache.Key{Scope: testScope, TypeURL: tt.typeURL, Name: "a"}, &watcher{})
			other, _ := s.cache.Watch(cache.Key{Scope: testScope, TypeURL: tt.typeURL + "2", Name: "a"}, &watcher{})
			synctest.Wait()
			s.wantFailed("the name", e.State().Err, codes.Unimplemented, tt.want)
			s.wantFailed("another type", other.State().Err, codes.Unimplemented, "2")
			if len(s.opened) > 0 {
				s.Errorf("%s was opened", (<-s.opened).method)
			}
			if n := s.logs.count("cannot be requested"); n != 2 {
				s.Errorf("logged %d times, want once for each type", n)
			}
		})
	}
}

func TestRefusedTypesAreForgottenAndNotLoggedWithoutEnd(t *testing.T) {
	runSeparate(t, Options{}, func(s *separate) {
		for i := range 3 * maxRefusedLogs {
			w := &watcher{}
			s.cache.Watch(cache.Key{Scope: testScope, TypeURL: fmt.Sprint("made.up/", i), Name: "a"}, w)
			s.cache.Unwatch(w)
		}
		pass(time.Hour)
		if got := s.streams.Statuses(); len(got) > 0 {
			s.Errorf("remembered: %+v", got)
		}
		if n := s.logs.count("cannot be requested"); n != maxRefusedLogs {
			s.Errorf("logged %d times, want %d", n, maxRefusedLogs)
		}
	})
}

func TestStreamsDrainAndClose(t *testing.T) {
	runSeparate(t, Options{Protocol: Delta}, func(s *separate) {
		w := &watcher{}
		s.cache.Watch(key("cds", "a"), w)
		s.cache.Watch(key("eds", "a"), &watcher{})
		streams := s.next("DeltaClusters", "DeltaEndpoints")
		streams[0].delta(s.T)
		s.cache.Unwatch(w)
		pass(2 * time.Second)
		if got := streams[0].delta(s.T).GetResourceNamesUnsubscribe(); !slices.Equal(got, []string{"a"}) {
			s.Errorf("unsubscribed from %q", got)
		}
		<-streams[0].stopped
		if got, want := s.statuses(), "ClusterLoadAssignment delta true 1"; got != want {
			s.Errorf("statuses\n%s, want\n%s", got, want)
		}
		// One stream is left for which Drain waits.
		begin := time.Now()
		s.streams.Drain()
		if took := time.Since(begin); took != 2*parting {
			s.Errorf("taking leave took %s", took)
		}
		s.streams.Close()
		<-streams[1].stopped
		<-s.streams.Done()
		s.streams.Start(key("lds", "a")) // too late, and nothing happens
		synctest.Wait()
		if len(s.opened) > 0 {
			s.Error("a stream was opened after Close")
		}
	})
}

// TestGoControlPlaneByServicesOfItsTypes is against a control plane that others
// wrote.
func TestGoControlPlaneByServicesOfItsTypes(t *testing.T) {
	for _, protocol := range []Protocol{Delta, SotW, Auto} {
		t.Run(string(protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlane()
				defer p.cancel()
				s := &separate{bench: &bench{T: t, logs: &logBuffer{}}}
				s.open(Options{Protocol: protocol}, func(...grpc.ServerOption) *grpc.Server {
					server := grpc.NewServer()
					all := p.server.(serverv3.Server)
					clusterservice.RegisterClusterDiscoveryServiceServer(server, all)
					endpointservice.RegisterEndpointDiscoveryServiceServer(server, all)
					return server
				})
				defer s.stop()
				p.set(t, "1", map[string]string{"a": "1", "b": "1"})
				set := s.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
				e := s.watch("eds", "a", "b")
				if got := members(set); got != "present [a=1 b=1]" {
					t.Errorf("the set is %s", got)
				}
				s.wantText(e["a"], "1")
				p.set(t, "2", map[string]string{"a": "1", "b": "2", "c": "2"})
				if got := members(set); got != "present [a=1 b=2 c=2]" {
					t.Errorf("then the set is %s", got)
				}
				s.wantText(e["b"], "2")
				p.mu.Lock()
				defer p.mu.Unlock()
				if p.nacks > 0 || p.opens > 2 {
					t.Errorf("%d NACKs, %d SotW streams", p.nacks, p.opens)
				}
			})
		})
	}
}
