package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
)

// The tests of a Stream run in a synctest bubble, over a connection in memory:
// time is the bubble's, and synctest.Wait waits until nothing moves any more.

// script is a control plane that a test plays. The channel streams has each stream that is
// opened.
type script struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	noDelta bool
	streams chan *scripted
}

// scripted is one stream of a script.
type scripted struct {
	form    Protocol
	send    func(proto.Message) error
	recv    func() (proto.Message, error)
	end     chan error // what the server ends the stream with
	ctx     context.Context
	stopped chan struct{}
}

func (s *script) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if s.noDelta {
		return s.UnimplementedAggregatedDiscoveryServiceServer.DeltaAggregatedResources(stream)
	}
	return s.serve(&scripted{
		form: Delta, ctx: stream.Context(),
		send: func(m proto.Message) error { return stream.SendMsg(m) },
		recv: func() (proto.Message, error) { return stream.Recv() },
	})
}

func (s *script) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.serve(&scripted{
		form: SotW, ctx: stream.Context(),
		send: func(m proto.Message) error { return stream.SendMsg(m) },
		recv: func() (proto.Message, error) { return stream.Recv() },
	})
}

func (s *script) serve(st *scripted) error {
	st.end, st.stopped = make(chan error, 1), make(chan struct{})
	defer close(st.stopped)
	s.streams <- st
	select {
	case err := <-st.end:
		return err
	case <-st.ctx.Done():
		return nil
	}
}

// bench is a Stream between a cache and a control plane.
type bench struct {
	*testing.T
	script *script
	stream *Stream
	conn   *Conn
	cache  *cache.Cache
	source *lateSource
	logs   *logBuffer
	limit  int       // DialOptions.MaxResponseBytes
	large  func(int) // DialOptions.LargeResponse
	probes int       // that have come; mu guards it
	// wire, if not nil, is put around each connection.
	wire func(net.Conn) net.Conn

	mu     sync.Mutex
	dial   error // what connecting fails with
	dialer func(context.Context) (net.Conn, error)
	server *grpc.Server
	lis    *memconn.Listener
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), what)
}

// run runs a test in a bubble.
func run(t *testing.T, o Options, test func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, script: &script{streams: make(chan *scripted, 100)}, logs: &logBuffer{}}
		b.start(o, b.script)
		defer b.stop()
		test(b)
	})
}

func (b *bench) start(o Options, service discoveryv3.AggregatedDiscoveryServiceServer) {
	b.Helper()
	b.lis = memconn.Listen(1 << 20)
	b.server = grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.probes++
		return status.Error(codes.Unimplemented, "unknown service")
	}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(b.server, service)
	go func() { _ = b.server.Serve(b.lis) }()
	var err error
	b.conn, err = Dial("passthrough:///control-plane", DialOptions{MaxResponseBytes: b.limit, LargeResponse: b.large, Extra: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			b.mu.Lock()
			lis, err, dialer := b.lis, b.dial, b.dialer
			b.mu.Unlock()
			switch {
			case err != nil:
				return nil, err
			case dialer != nil:
				return dialer(ctx)
			}
			conn, err := lis.DialContext(ctx)
			if err == nil && b.wire != nil {
				conn = b.wire(conn)
			}
			return conn, err
		}),
	}})
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(b.logs, nil))
	source := &lateSource{}
	b.source = source
	b.cache = cache.New(source, cache.Options{Linger: time.Minute, IdleEntries: 100})
	watch, direct := o.watch, deliverytest.Direct(b.cache)
	b.stream = newTestStream(testScope, b.conn, &corev3.Node{Id: "relay"}, o, deliverytest.Func(func(e delivery.Event) {
		if direct.Deliver(e); watch != nil && e.Kind > delivery.Delivered && e.Kind < delivery.TypeOpened {
			watch(e)
		}
	}), log)
	source.Source = b.stream
}

// lateSource is set after the cache was made.
type lateSource struct{ cache.Source }

func (f *lateSource) Resume(k cache.Key) { cache.Resume(f.Source, k) }

// newTestStream begins to feed a scope by one stream. Outside of tests, Streams and Aggregated have several.
func newTestStream(scope cache.Scope, conn grpc.ClientConnInterface, node *corev3.Node, o Options, to delivery.Receiver, log *slog.Logger) *Stream {
	log = withScope(log, scope)
	o.watch, o.peers = mergeEvents(to), new(peers)
	if o.Presence == nil {
		o.Presence = NewPresence("", log)
	}
	return newStream(o.Protocol.forms(), scope, conn, node, o, to, log)
}

func (b *bench) stop() {
	b.stream.Close()
	<-b.stream.Done()
	b.cache.Close()
	_ = b.conn.Close()
	b.server.Stop()
}

// refuse makes connecting fail, or not if err is nil.
func (b *bench) refuse(err error) {
	b.mu.Lock()
	b.dial = err
	b.mu.Unlock()
}

// pass lets time pass, and waits for the effects.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

var testScope = cache.Scope{Authority: "auth", Partition: "part", OldStyle: true}

func key(typ, name string) cache.Key {
	return cache.Key{Scope: testScope, TypeURL: typeURLs[typ], Name: name}
}

type watcher struct{ cache.Watch }

func (*watcher) Changed() cache.Waker { return nil }

type setWatcher struct{ cache.SetWatch }

func (*setWatcher) Changed() cache.Waker { return nil }

// watch watches entries of a type. It delays the connection, if there is none yet, until all
// entries are noted, so that one request has all of them.
func (b *bench) watch(typ string, names ...string) map[string]*cache.Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watchLocked(typ, names...)
}

func (b *bench) watchLocked(typ string, names ...string) map[string]*cache.Entry {
	entries := map[string]*cache.Entry{}
	for _, name := range names {
		entries[name] = entryOf(b.cache.Watch(key(typ, name), &watcher{}))
	}
	return entries
}

// next waits for the next stream, and returns it.
func (b *bench) next() *scripted {
	b.Helper()
	select {
	case st := <-b.script.streams:
		return st
	case <-time.After(time.Hour):
		b.Fatal("no stream was opened")
		return nil
	}
}

// request receives the next request.
func (st *scripted) request(t *testing.T) proto.Message {
	t.Helper()
	m, err := st.recv()
	if err != nil {
		t.Fatalf("no request: %v", err)
	}
	return m
}

func (st *scripted) delta(t *testing.T) *discoveryv3.DeltaDiscoveryRequest {
	t.Helper()
	return st.request(t).(*discoveryv3.DeltaDiscoveryRequest)
}

func deltaResponse(t *testing.T, typ, nonce string, names ...string) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs[typ], Nonce: nonce}
	for _, name := range names {
		m.Resources = append(m.Resources, &discoveryv3.Resource{
			Name: name, Version: "v" + nonce,
			Resource: &anypb.Any{TypeUrl: typeURLs[typ], Value: value(t, typ, name, nonce)},
		})
	}
	return m
}

func (b *bench) respond(st *scripted, m proto.Message) {
	b.Helper()
	if err := st.send(m); err != nil {
		b.Fatal(err)
	}
	synctest.Wait()
}

func (b *bench) want(e *cache.Entry, want string) {
	b.Helper()
	synctest.Wait()
	s := e.State()
	got := s.Status.String()
	if s.Resource != nil {
		got += " " + s.Resource.Version()
	}
	if s.Err != nil {
		got += " " + s.Err.Code.String()
	}
	if got != want {
		b.Errorf("%s is %s, want %s", e.Key().Name, got, want)
	}
}

func TestStreamIsOpenWhileSomethingIsSubscribedTo(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		pass(time.Hour)
		if len(b.script.streams) > 0 {
			t.Fatal("a stream was opened for nothing")
		}
		w := &watcher{}
		e := entryOf(b.cache.Watch(key("cds", "a"), w))
		st := b.next()
		st.delta(t)
		b.respond(st, deltaResponse(t, "cds", "1", "a"))
		b.want(e, "present v1")
		st.delta(t)

		b.cache.Unwatch(w)
		pass(time.Minute)
		if got := st.delta(t).GetResourceNamesUnsubscribe(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("unsubscribed from %q, want a", got)
		}
		if _, err := st.recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream goes on with %v", err)
		}
		<-st.stopped // cancelled after a while
		synctest.Wait()
		if s := b.stream.Status(); s.Connected || s.Subscriptions != 0 || s.LastError != "" {
			t.Errorf("status %+v", s)
		}
		if len(b.stream.feeds) > 0 {
			t.Error("something is remembered of what is not needed")
		}

		b.watch("cds", "b")
		if got := b.next().delta(t); got.GetNode().GetId() != "relay" || len(got.GetInitialResourceVersions()) != 0 {
			t.Errorf("the new stream begins with %v", got)
		}
	})
}

func TestBurstIsOneRequest(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		run(t, Options{Protocol: form}, func(b *bench) {
			var names []string
			for i := range 1000 {
				names = append(names, fmt.Sprintf("name-%04d", i))
			}
			b.watch("rds", "r")
			st := b.next()
			st.request(t)
			synctest.Wait()
			b.stream.mu.Lock() // the sender is busy
			b.watch("eds", names...)
			b.watch("cds", "c")
			b.stream.mu.Unlock()
			var types []string
			for range 2 {
				got := describe(st.request(t))
				types = append(types, got.typeURL)
				if got.typeURL == typeURLs["eds"] && len(got.names) != 1000 {
					t.Errorf("%s: %d names in the first request", form, len(got.names))
				}
			}
			if want := []string{typeURLs["cds"], typeURLs["eds"]}; !slices.Equal(types, want) {
				t.Errorf("%s: requests for %q, want %q", form, types, want)
			}
		})
	}
}

// request in either form.
type described struct {
	typeURL, nonce string
	names          []string
	node           *corev3.Node
	nack           string
}

func describe(m proto.Message) described {
	switch m := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		return described{typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), names: m.GetResourceNamesSubscribe(), node: m.GetNode(), nack: m.GetErrorDetail().GetMessage()}
	case *discoveryv3.DiscoveryRequest:
		return described{typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), names: m.GetResourceNames(), node: m.GetNode(), nack: m.GetErrorDetail().GetMessage()}
	}
	panic(m)
}

// TestNodeGoesWithTheRequests: java-control-plane reads the Node of each request, so each has it, whatever it is for,
// unless the configuration wants it in the first one of a stream only.
func TestNodeGoesWithTheRequests(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		for _, once := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s once=%t", form, once), func(t *testing.T) {
				run(t, Options{Protocol: form, NodeOnce: once}, func(b *bench) {
					respond := func(st *scripted, typ, nonce string, names ...string) {
						if form == SotW {
							b.respond(st, sotwResponse(t, typ, nonce, names...))
							return
						}
						b.respond(st, deltaResponse(t, typ, nonce, names...))
					}
					want := func(st *scripted, what string, first bool) described {
						t.Helper()
						got := describe(st.request(t))
						if id := got.node.GetId(); (id == "relay") != (first || !once) || (got.node == nil) != (id == "") {
							t.Errorf("the Node of %s is %v", what, got.node)
						}
						return got
					}
					w := &watcher{}
					b.cache.Watch(key("cds", "a"), w)
					b.watch("eds", "a")
					st := b.next()
					want(st, "the first request", true)
					want(st, "another type", false)
					respond(st, "eds", "1", "a")
					want(st, "an ACK", false)
					respond(st, "eds", "2", "")
					if got := want(st, "a NACK", false); got.nack == "" {
						t.Errorf("got %v, want a NACK", got)
					}
					b.watch("eds", "b")
					want(st, "another name", false)
					b.cache.Unwatch(w)
					pass(time.Minute)
					want(st, "an unsubscription", false)

					st.end <- status.Error(codes.Unavailable, "restart")
					st = b.next()
					want(st, "the next stream", true)
					respond(st, "eds", "1", "a", "b")
					want(st, "an ACK there", false)

					// Names of a type with a wildcard have a stream of their own.
					b.cache.WatchSet(key("eds", cache.Wildcard), &setWatcher{})
					names := b.next()
					want(names, "a names stream", true)
					respond(names, "eds", "1", "a", "b")
					want(names, "an ACK on the names stream", false)
				})
			})
		}
	}
}

func TestAckComesAfterTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, script: &script{streams: make(chan *scripted, 1)}, logs: &logBuffer{}}
		b.start(Options{Protocol: Delta}, b.script)
		defer b.stop()
		gate := &gate{open: make(chan struct{})}
		s := newTestStream(testScope, b.conn, nil, Options{Protocol: Delta}, gate, slog.New(slog.DiscardHandler))
		s.Start(key("cds", "a"))
		st := b.next()
		st.delta(t)
		synctest.Wait() // the sender is done: it must not come to wait for a lock
		b.respond(st, deltaResponse(t, "cds", "1", "a"))
		acked := make(chan string, 1)
		go func() {
			if m, err := st.recv(); err == nil {
				acked <- m.(*discoveryv3.DeltaDiscoveryRequest).GetResponseNonce()
			}
		}()
		synctest.Wait()
		if len(acked) > 0 {
			t.Error("acknowledged before it was stored")
		}
		// Start and Stop do not wait for the cache: they are called with it locked.
		s.Start(key("cds", "b"))
		s.Stop(key("cds", "b"))
		close(gate.open)
		if got := <-acked; got != "1" {
			t.Errorf("acknowledged %q, want 1", got)
		}
		s.Close()
		<-s.Done()
	})
}

// gate is a sink that blocks until it is opened.
type gate struct{ open chan struct{} }

func (g *gate) Deliver(e delivery.Event) {
	if e.Kind == delivery.Delivered {
		<-g.open
	}
}

func TestAutoTakesSotWWhereDeltaIsUnimplemented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, script: &script{noDelta: true, streams: make(chan *scripted, 1)}, logs: &logBuffer{}}
		b.start(Options{}, b.script)
		defer b.stop()
		begin := time.Now()
		e := b.watch("eds", "a")["a"]
		st := b.next()
		if st.form != SotW || time.Since(begin) > 0 {
			t.Errorf("%s after %s, want sotw at once", st.form, time.Since(begin))
		}
		b.want(e, "requested")
		if s := b.stream.Status(); s.Protocol != SotW || !s.Connected {
			t.Errorf("status %+v", s)
		}
		// The stream stays with SotW, even if delta is implemented later.
		b.script.noDelta = false
		st.end <- status.Error(codes.Unavailable, "restart")
		if st := b.next(); st.form != SotW {
			t.Errorf("then %s", st.form)
		}
		if n := b.logs.count("does not implement this form"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

func TestAutoTriesAgainIfNeitherIsImplemented(t *testing.T) {
	run(t, Options{}, func(b *bench) {
		e := b.watch("eds", "a")["a"]
		for _, want := range []Protocol{Delta, SotW, Delta} {
			st := b.next()
			if st.form != want {
				t.Errorf("%s, want %s", st.form, want)
			}
			st.end <- status.Error(codes.Unimplemented, "no such path")
		}
		b.want(e, "failed Unavailable")
		for range 20 {
			b.next().end <- status.Error(codes.Unimplemented, "no such path")
		}
		if n := b.logs.count("does not implement this form"); n > 2 {
			t.Errorf("logged %d times within %s, want once for each form", n, unimplementedFor)
		}
		if n := b.logs.count("connected to control plane"); n > 0 {
			t.Errorf("logged %d times as connected, and nothing has ever been answered", n)
		}
	})
}

// The streams of other scopes need not try a form that one stream has found unimplemented. A later release of
// the control plane may implement it.
func TestAFormThatIsNotImplementedIsRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		both := []*form{deltaForm, sotwForm}
		var u unimplemented
		if u.first(both) != deltaForm || !u.found(deltaForm) || u.found(deltaForm) {
			t.Error("the first stream does not find out, or the second finds it anew")
		}
		if u.first(both) != sotwForm {
			t.Error("the next stream tries delta")
		}
		if !u.found(sotwForm) || u.first(both) != deltaForm {
			t.Error("with neither form the first is not tried again")
		}
		if u.answered(sotwForm); u.first(both) != sotwForm {
			t.Error("a form that was answered is not used")
		}
		time.Sleep(unimplementedFor)
		if u.first(both) != deltaForm || !u.found(deltaForm) {
			t.Error("it is remembered for ever")
		}
	})
}

func TestAutoUsesWhatAnotherStreamHasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &logBuffer{}
		presence := NewPresence("cp:1", slog.New(slog.NewTextHandler(logs, nil)))
		for i := range 3 {
			b := &bench{T: t, script: &script{noDelta: true, streams: make(chan *scripted, 1)}, logs: logs}
			b.start(Options{Presence: presence}, b.script)
			e := b.watch("eds", "a")["a"]
			if st := b.next(); st.form != SotW {
				t.Errorf("%s, want sotw", st.form)
			}
			b.want(e, "requested")
			if i > 0 && b.stream.Status().LastError != "" {
				t.Errorf("stream %d has tried delta: %s", i, b.stream.Status().LastError)
			}
			b.stop()
		}
		if n := logs.count("does not implement this form"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

func TestDeltaAloneDoesNotFallBack(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		e := b.watch("eds", "a")["a"]
		for range 2 {
			st := b.next()
			if st.form != Delta {
				t.Errorf("%s", st.form)
			}
			st.end <- status.Error(codes.Unimplemented, "no such method")
			b.want(e, "failed Unavailable")
		}
	})
}

func TestBackoffGrowsUntilAResponseCame(t *testing.T) {
	run(t, Options{Protocol: Delta, BackoffBase: time.Second, BackoffMax: 8 * time.Second}, func(b *bench) {
		b.watch("cds", "a")
		end := func(respond bool) time.Duration {
			st := b.next()
			st.delta(t)
			if respond {
				b.respond(st, deltaResponse(t, "cds", "1", "a"))
			}
			begin := time.Now()
			st.end <- status.Error(codes.Unavailable, "restart")
			again := <-b.script.streams
			b.script.streams <- again
			return time.Since(begin)
		}
		limit := time.Second
		for range 8 {
			if got := end(false); got < limit/2 || got > limit {
				t.Errorf("tried again after %s, want %s to %s", got, limit/2, limit)
			}
			limit = min(limit+limit/2, 8*time.Second)
		}
		if got := end(true); got > time.Second {
			t.Errorf("after a response tried again after %s, want at most 1s", got)
		}
		if got := end(false); got < 500*time.Millisecond*3/2 {
			t.Errorf("then after %s: no backoff", got)
		}
	})
}

func TestLostStreamRemovesNothing(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		run(t, Options{Protocol: form, BackoffBase: time.Minute, BackoffMax: time.Minute}, func(b *bench) {
			eds := b.watch("eds", "a", "b")
			set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
			st := b.next()
			st.request(t)
			st.request(t)
			if form == Delta {
				b.respond(st, deltaResponse(t, "eds", "1", "a"))
				b.respond(st, deltaResponse(t, "cds", "2", "x"))
			} else {
				b.respond(st, sotwResponse(t, "eds", "1", "a"))
				b.respond(st, sotwResponse(t, "cds", "2", "x"))
			}
			a := eds["a"].State().Resource
			st.end <- nil
			pass(time.Second)

			// gRFC A57: a stream that has brought a response may end.
			b.want(eds["b"], "requested")
			b.refuse(errors.New("nobody there"))
			b.conn.links[0].cc.ResetConnectBackoff()
			b.server.Stop()
			pass(10 * time.Minute)

			if got := eds["a"].State(); got.Status != cache.Present || got.Resource != a || got.Err != nil {
				t.Errorf("%s: a is %+v", form, got)
			}
			if st, _ := set.Status(); st != cache.Present || set.Len() != 1 {
				t.Errorf("%s: the set is %s, with %d members", form, st, set.Len())
			}
			b.want(eds["b"], "failed Unavailable")
			if msg := eds["b"].State().Err.Message; !strings.Contains(msg, "nobody there") || !strings.Contains(msg, "auth/part") {
				t.Errorf("%s: b gets %q", form, msg)
			}
			// At once.
			b.want(b.watch("eds", "c")["c"], "failed Unavailable")
			set = b.cache.WatchSet(key("lds", cache.Wildcard), &setWatcher{})
			synctest.Wait()
			if st, err := set.Status(); st != cache.Failed {
				t.Errorf("%s: the second set is %s (%v)", form, st, err)
			}
			if s := b.stream.Status(); s.Connected || !strings.Contains(s.LastError, "nobody there") {
				t.Errorf("%s: status %+v", form, s)
			}
			if n := b.logs.count("nobody there"); n != 1 {
				t.Errorf("%s: logged %d times", form, n)
			}
		})
	}
}

func sotwResponse(t *testing.T, typ, nonce string, names ...string) *discoveryv3.DiscoveryResponse {
	t.Helper()
	m := &discoveryv3.DiscoveryResponse{TypeUrl: typeURLs[typ], Nonce: nonce, VersionInfo: nonce}
	for _, name := range names {
		m.Resources = append(m.Resources, &anypb.Any{TypeUrl: typeURLs[typ], Value: value(t, typ, name, nonce)})
	}
	return m
}

func TestReconnectAsksForEverything(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.watch("eds", "a", "b")
		st := b.next()
		st.delta(t)
		b.respond(st, deltaResponse(t, "eds", "1", "a"))
		st.end <- nil
		st = b.next()
		got := st.delta(t)
		if !slices.Equal(got.GetResourceNamesSubscribe(), []string{"a", "b"}) ||
			!maps.Equal(got.GetInitialResourceVersions(), map[string]string{"a": "v1"}) {
			t.Errorf("the new stream begins with %v", got)
		}
	})
}

// With ForceAnswer, a control plane that could not be reached must answer again. One
// whose stream has only ended need not.
func TestControlPlaneThatIsBackHasSomethingToAnswer(t *testing.T) {
	run(t, Options{Protocol: Delta, ForceAnswer: true}, func(b *bench) {
		b.watch("eds", "a", "b")
		st := b.next()
		st.delta(t)
		b.respond(st, deltaResponse(t, "eds", "1", "a", "b"))
		versions := func(want map[string]string) {
			t.Helper()
			if got := st.delta(t).GetInitialResourceVersions(); !maps.Equal(got, want) {
				t.Errorf("the new stream begins with %v, want %v", got, want)
			}
		}
		st.end <- nil
		st = b.next()
		versions(map[string]string{"a": "v1", "b": "v1"})
		st.end <- nil // without an answer
		st = b.next()
		versions(map[string]string{"a": "", "b": "v1"})
	})
	run(t, Options{Protocol: SotW, ForceAnswer: true}, func(b *bench) {
		b.watch("eds", "a")
		st := b.next()
		st.request(t)
		b.respond(st, sotwResponse(t, "eds", "1", "a"))
		for _, want := range []string{"1", ""} {
			st.end <- nil
			st = b.next()
			if got := st.request(t).(*discoveryv3.DiscoveryRequest).GetVersionInfo(); got != want {
				t.Errorf("the new stream begins with version %q, want %q", got, want)
			}
		}
	})
}

func TestTimeoutCountsFromTheRequest(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		run(t, Options{Protocol: form}, func(b *bench) {
			b.refuse(errors.New("nobody there"))
			e := b.watch("eds", "a")["a"]
			pass(time.Minute)
			b.want(e, "failed Unavailable")
			b.refuse(nil)
			b.next().request(t)
			b.want(b.watch("eds", "b")["b"], "requested")
			pass(15*time.Second - 1)
			b.want(e, "failed Unavailable")
			pass(1)
			b.want(e, "failed DeadlineExceeded")
		})
	}
}

func TestResponseBeyondTheLimitIsNotReceived(t *testing.T) {
	for limit, want := range map[int]string{100: "failed Unavailable", 0: "present v1"} {
		synctest.Test(t, func(t *testing.T) {
			b := &bench{T: t, script: &script{streams: make(chan *scripted, 100)}, logs: &logBuffer{}, limit: limit}
			b.start(Options{Protocol: Delta}, b.script)
			defer b.stop()
			e := b.watch("eds", "a")["a"]
			st := b.next()
			st.delta(t)
			// Beyond gRPC's own limit, too, where there is none.
			r := deltaResponse(t, "eds", "1", "a")
			r.SystemVersionInfo = strings.Repeat("x", 5<<20)
			b.respond(st, r)
			b.want(e, want)
		})
	}
}

func TestOldFailureIsNoNews(t *testing.T) {
	run(t, Options{}, func(b *bench) {
		b.refuse(errors.New("nobody there"))
		w := &watcher{}
		b.want(entryOf(b.cache.Watch(key("eds", "a"), w)), "failed Unavailable")
		b.cache.Unwatch(w)
		pass(time.Hour)
		b.refuse(nil)
		b.want(b.watch("eds", "b")["b"], "requested")
	})
}

func TestUndecodableResponseEndsTheStream(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		e := b.watch("eds", "a")["a"]
		st := b.next()
		st.delta(t)
		m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs["eds"]}
		m.ProtoReflect().SetUnknown([]byte{0xff})
		b.respond(st, m)
		<-st.stopped
		b.want(e, "failed Unavailable")
		if got := b.stream.Status().LastError; !strings.Contains(got, "cannot be decoded") {
			t.Errorf("the last error is %q", got)
		}
		b.next()
	})
}

func TestResponseThatWasNotRequestedIsIgnored(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		e := b.watch("eds", "a")["a"]
		st := b.next()
		st.delta(t)
		b.stream.mu.Lock() // so that this comes and goes before anything is sent
		b.stream.Start(key("lds", "x"))
		b.stream.Stop(key("lds", "x"))
		b.stream.mu.Unlock()
		for i := range 3 {
			b.respond(st, deltaResponse(t, "lds", fmt.Sprint("l", i), "x"))
			b.respond(st, deltaResponse(t, "rds", fmt.Sprint("r", i), "x"))
		}
		b.respond(st, deltaResponse(t, "eds", "1", "a"))
		if got := st.delta(t); got.GetResponseNonce() != "1" {
			t.Errorf("answered %v", got)
		}
		b.want(e, "present v1")
		if n := b.logs.count("not requested"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

func TestNackIsLoggedOnce(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		e := b.watch("eds", "a", "b")
		st := b.next()
		st.delta(t)
		for i := range 3 {
			m := deltaResponse(t, "eds", fmt.Sprint(i), "a", "b")
			m.Resources[1].Resource.Value = []byte{0xff}
			b.respond(st, m)
			if got := st.delta(t); got.GetErrorDetail().GetCode() != int32(codes.InvalidArgument) ||
				!strings.Contains(got.GetErrorDetail().GetMessage(), `resources[1] "b" is no`) {
				t.Errorf("answered %v", got)
			}
		}
		b.want(e["a"], "present v2")
		b.want(e["b"], "failed InvalidArgument")
		if n := b.logs.count("NACK"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		if s := b.stream.Status(); s.Nacks != 3 || s.Responses != 3 || s.Subscriptions != 2 {
			t.Errorf("status %+v", s)
		}
	})
}

func TestWildcardThatCameAgainGetsANewStream(t *testing.T) {
	run(t, Options{Protocol: Delta, BackoffBase: time.Hour}, func(b *bench) {
		b.watch("eds", "a")
		w := &setWatcher{}
		b.cache.WatchSet(key("cds", cache.Wildcard), w)
		st := b.next()
		st.delta(t)
		st.delta(t)
		b.respond(st, deltaResponse(t, "cds", "1", "x"))
		st.delta(t)
		b.cache.Unwatch(w)
		pass(time.Minute + time.Second)
		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		begin := time.Now()
		st = b.next()
		if time.Since(begin) > 0 || len(st.delta(t).GetInitialResourceVersions()) > 0 {
			t.Error("the new stream comes late, or lists what is not held")
		}
		if s := b.stream.Status(); s.LastError != "" || !s.Connected {
			t.Errorf("status %+v", s)
		}
	})
}

func TestControlPlaneThatDoesNotReadIsLeft(t *testing.T) {
	run(t, Options{Protocol: Delta, BackoffBase: time.Hour, BackoffMax: time.Hour}, func(b *bench) {
		name := strings.Repeat("x", 4<<10)
		var entries []map[string]*cache.Entry
		for i := range 1000 {
			entries = append(entries, b.watch("eds", fmt.Sprint(name, i)))
			synctest.Wait()
		}
		b.next()
		pass(time.Minute)
		synctest.Wait()
		if got := b.stream.Status().LastError; !strings.Contains(got, "does not read") {
			t.Errorf("the last error is %q", got)
		}
		b.want(entries[999][name+"999"], "failed Unavailable")
	})
}

func TestMemoryForAnswersIsBounded(t *testing.T) {
	run(t, Options{Protocol: Delta, BackoffBase: time.Hour, BackoffMax: time.Hour, ResponseTimeout: time.Hour}, func(b *bench) {
		b.watch("eds", "a")
		st := b.next()
		st.delta(t)
		m := deltaResponse(t, "eds", strings.Repeat("n", 64<<10))
		for st.send(m) == nil {
		}
		synctest.Wait()
		if got := b.stream.Status().LastError; !strings.Contains(got, "are waiting") {
			t.Errorf("the last error is %q", got)
		}
	})
}

func TestKeyThatComesAndGoesQuickly(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		b.watch("eds", "a")
		st := b.next()
		st.delta(t)
		b.respond(st, deltaResponse(t, "eds", "1", "a", "b"))
		st.delta(t)
		b.stream.mu.Lock() // the sender is busy
		b.stream.Stop(key("eds", "a"))
		b.stream.Start(key("eds", "a"))
		b.stream.Start(key("eds", "b"))
		b.stream.Stop(key("eds", "b"))
		b.stream.mu.Unlock()
		synctest.Wait()
		b.watch("eds", "c")
		if got := st.delta(t); !slices.Equal(got.GetResourceNamesSubscribe(), []string{"c"}) || len(got.GetResourceNamesUnsubscribe()) > 0 {
			t.Errorf("sent %v, want c only", got)
		}
	})
}

func TestCloseEndsAtAnyMoment(t *testing.T) {
	moments := map[string]func(*bench){
		"idle":       func(*bench) {},
		"connecting": func(b *bench) { b.watch("cds", "a") },
		"connected":  func(b *bench) { b.watch("cds", "a"); b.next().delta(b.T) },
		"backing off": func(b *bench) {
			b.refuse(errors.New("nobody there"))
			b.watch("cds", "a")
			pass(time.Minute)
		},
	}
	for name, moment := range moments {
		t.Run(name, func(t *testing.T) {
			run(t, Options{}, func(b *bench) {
				moment(b)
				b.stream.Close()
				<-b.stream.Done()
				b.stream.Start(key("cds", "late"))
				b.stream.Close()
			})
		})
	}
}
