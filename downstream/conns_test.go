package downstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// limitedPort listens on a port whose connections are held to the limits.
func limitedPort(t *testing.T, s *Server, o ListenerOptions) net.Listener {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return s.Listen(socket, o)
}

func TestConnectionsAreLimited(t *testing.T) {
	server, log := newTestServer(nil, 0)
	l := limitedPort(t, server, ListenerOptions{Limits: Limits{Connections: 2}})
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	first := <-accepted
	dial()
	second := <-accepted
	if n, err := dial().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("one too many reads %d bytes, %v", n, err)
	}
	if n := server.Stats().Limits["connections"]; n != 1 {
		t.Errorf("%d are counted, want 1", n)
	}
	if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "limit=connections max=2 asked=3") || !strings.Contains(lines[0], "client=127.0.0.1:") {
		t.Errorf("the log has %q", lines)
	}
	_ = first.Close()
	_ = first.Close() // counts once
	dial()
	third := <-accepted
	if n, err := dial().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("one too many after one has gone reads %d bytes, %v", n, err)
	}
	_ = second.Close()
	_ = third.Close()
	_ = l.Close()
	<-accepted
}

// A limited connection reads as gRPC reads a TCP connection.
func TestALimitedConnectionReadsWhenThereIsSomething(t *testing.T) {
	server, _ := newTestServer(nil, 0)
	l := limitedPort(t, server, ListenerOptions{UserTimeout: time.Minute})
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reader, ok := c.(interface {
		ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error)
	})
	if !ok {
		t.Skip("on this system gRPC reads every connection with a buffer")
	}
	pool := &countingPool{BufferPool: mem.DefaultBufferPool()}
	if _, err := io.WriteString(client, "hello"); err != nil {
		t.Fatal(err)
	}
	buf, n, err := reader.ReadOnReady(1<<10, pool)
	if err != nil || string((*buf)[:n]) != "hello" {
		t.Fatalf("got %d bytes, %v", n, err)
	}
	pool.Put(buf)
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := reader.ReadOnReady(1<<10, pool); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline got %v", err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if _, _, err := reader.ReadOnReady(1<<10, pool); !errors.Is(err, io.EOF) {
		t.Errorf("at the end got %v", err)
	}
	if pool.held != 0 {
		t.Errorf("%d buffers are held, want none", pool.held)
	}
}

type countingPool struct {
	mem.BufferPool
	held int
}

func (p *countingPool) Get(n int) *[]byte { p.held++; return p.BufferPool.Get(n) }

func (p *countingPool) Put(b *[]byte) { p.held--; p.BufferPool.Put(b) }

// pipeListener is a listener of connections in memory.
type pipeListener struct {
	net.Listener
	next chan net.Conn
}

func (p pipeListener) Accept() (net.Conn, error) { return <-p.next, nil }

func (pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// A client that opens streams too fast is read more slowly, on that connection.
func TestStreamsAreReadNoFasterThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond = 10
		server, log := newTestServer(nil, 0)
		p := pipeListener{next: make(chan net.Conn, 1)}
		l := server.Listen(p, ListenerOptions{Limits: Limits{StreamsPerSecond: perSecond}})
		connect := func() (client, relay net.Conn) {
			client, relay = net.Pipe()
			p.next <- relay
			relay, _ = l.Accept()
			return client, relay
		}
		client, c := connect()
		defer client.Close()
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()})
		open := func(ctx context.Context) {
			if _, err := tapStream(ctx, nil); err != nil {
				t.Fatal(err)
			}
		}
		read := func(from, to net.Conn) time.Duration {
			began := time.Now()
			go func() { _, _ = from.Write([]byte("x")) }()
			if _, err := to.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		for range streamBurst * perSecond {
			open(ctx)
		}
		if waited := read(client, c); waited != 0 {
			t.Errorf("as many streams as may be opened at once are read after %v", waited)
		}
		for range 5 {
			open(ctx)
		}
		if waited, want := read(client, c), 5*time.Second/perSecond; waited != want {
			t.Errorf("5 more are read after %v, want %v", waited, want)
		}
		if waited := read(client, c); waited != 0 {
			t.Errorf("what comes after that is read after %v", waited)
		}
		open(ctx)
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "limit=streams_per_second max=10") {
			t.Errorf("the log has %q, want one line", lines)
		}
		if n := server.Stats().Limits["streams_per_second"]; n != 1 {
			t.Errorf("%d pauses are counted, want 1", n)
		}

		// Another connection is not slower, and the end of this one is not waited for.
		otherClient, other := connect()
		defer otherClient.Close()
		defer other.Close()
		open(peer.NewContext(t.Context(), &peer.Peer{Addr: other.RemoteAddr()}))
		if waited := read(otherClient, other); waited != 0 {
			t.Errorf("another connection is read after %v", waited)
		}
		for range 100 {
			open(ctx)
		}
		began, ended := time.Now(), make(chan struct{})
		go func() {
			_, _ = c.Read(make([]byte, 1))
			close(ended)
		}()
		synctest.Wait()
		_ = c.Close()
		<-ended
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a connection that was closed is read after %v", waited)
		}
	})
}

// Over REST there are no streams: the limit is on the rate at which the requests of a connection are answered.
func TestRESTRequestsAreAnsweredNoFasterThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, log := newTestServer(nil, 0)
		limits := Limits{RequestsPerSecond: 10, RequestBurst: 3}
		h := server.HTTPServer(ListenerOptions{Limits: limits})
		conn, _ := net.Pipe()
		connect := func() context.Context { return h.ConnContext(t.Context(), conn) }
		request := func(conn context.Context) time.Duration {
			began := time.Now()
			h.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/nothing", nil).WithContext(conn))
			return time.Since(began)
		}
		first := connect()
		for i := range 3 {
			if waited := request(first); waited != 0 {
				t.Errorf("request %d of a burst is answered after %v", i+1, waited)
			}
		}
		if waited, want := request(first), 100*time.Millisecond; waited != want {
			t.Errorf("one more is answered after %v, want %v", waited, want)
		}
		if waited := request(connect()); waited != 0 {
			t.Errorf("another connection's is answered after %v", waited)
		}
		if n := server.Stats().Limits["requests_per_second"]; n != 1 {
			t.Errorf("%d are counted, want 1", n)
		}
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "faster") {
			t.Errorf("the log has %q", lines)
		}
	})
}

// withOthers is a relay that serves health and reflection, too, and can dial itself.
func withOthers(t *testing.T, o ListenerOptions) *badRelay {
	t.Helper()
	r := &badRelay{t: t, cache: newTestCache(&recordingSource{}, 1000)}
	t.Cleanup(r.cache.Close)
	r.server, r.log = newTestServer(r.cache, DefaultMaxResponseBytes)
	r.memory = serveInMemory(t, func(g *grpc.Server) {
		others := r.server.Register(g, o)
		healthpb.RegisterHealthServer(others, health.NewServer())
		reflection.Register(others)
	}, ServerOptions(o)...)
	return r
}

// Clients can open any number of streams of health and reflection, too.
func TestStreamsOfHealthCount(t *testing.T) {
	r := withOthers(t, ListenerOptions{Limits: Limits{Streams: 2}})
	conn := r.dial()
	ctx, leave := context.WithCancel(testContext(t))
	defer leave()
	watch := func() error {
		t.Helper()
		w, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: "x"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Recv()
		return err
	}
	for i := range 2 {
		if err := watch(); err != nil {
			t.Fatalf("stream %d: %v", i+1, err)
		}
	}
	want := "3 open streams on this listener, but limits.streams is 2"
	if err := watch(); status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := ending(openDelta(t, conn)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a stream of xDS ends with %v", err)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("a health check ends with %v", err)
	}
	leave()
	eventually(t, "there is room again", func() bool {
		s := openDelta(t, conn)
		if s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a"}}) != nil {
			return false
		}
		return r.subscriptions() > 0
	})
}

// Requests to services other than xDS are short.
func TestRequestsOfHealthAreShort(t *testing.T) {
	r := withOthers(t, ListenerOptions{})
	check := func(length int) error {
		_, err := healthpb.NewHealthClient(r.dial()).Check(testContext(t), &healthpb.HealthCheckRequest{Service: strings.Repeat("x", length)})
		return err
	}
	if err := check(maxOtherRequest - 3); status.Code(err) != codes.NotFound { // with tag and length
		t.Errorf("got %v, want NOT_FOUND", err)
	}
	if err := check(maxOtherRequest - 2); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "a request of 4097 bytes") {
		t.Errorf("got %v, want INTERNAL", err)
	}
}

// Headers are held for as long as a stream is open.
func TestHeadersAreBounded(t *testing.T) {
	r := newBadRelay(t, Limits{}, ListenerOptions{})
	open := func(length int) error {
		ctx := metadata.AppendToOutgoingContext(testContext(t), "x", strings.Repeat("x", length))
		g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(r.dial()).DeltaAggregatedResources(ctx)
		if err != nil {
			return err // the client was sent the limit
		}
		if err := g.Send(&discoveryv3.DeltaDiscoveryRequest{}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		return ending(g)
	}
	if err := open(60 << 10); status.Code(err) != codes.InvalidArgument { // as it has no type
		t.Errorf("got %v", err)
	}
	if err := open(64 << 10); status.Code(err) == codes.InvalidArgument || err == nil {
		t.Errorf("headers of more than 64 KiB are taken: %v", err)
	}
}

// A connection that is not used is closed.
func TestConnectionsWithoutStreamsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := newTestServer(nil, 0)
		m := serveInMemory(t, func(g *grpc.Server) { server.Register(g, ListenerOptions{}) }, ServerOptions(ListenerOptions{})...)
		silent, err := m.lis.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		closed := make(chan time.Time, 1)
		go func() {
			_, _ = io.Copy(io.Discard, silent)
			closed <- time.Now()
		}()
		began := time.Now()
		if took := (<-closed).Sub(began).Round(time.Second); took != connectionSetup {
			t.Errorf("a connection without a word is closed after %v, want %v", took, connectionSetup)
		}

		conn := m.dial()
		conn.Connect()
		for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
			conn.WaitForStateChange(t.Context(), s)
		}
		began = time.Now()
		conn.WaitForStateChange(t.Context(), connectivity.Ready)
		if took := time.Since(began).Round(time.Second); took != idleConnection {
			t.Errorf("a connection without a stream is closed after %v, want %v", took, idleConnection)
		}
		_ = conn.Close()
	})
}

// addressedConn is a connection from an address.
type addressedConn struct {
	net.Conn
	from net.Addr
}

func (c addressedConn) RemoteAddr() net.Addr { return c.from }

// After short-lived connections, the next ones of their address are read later; after connections that stay, they are
// not.
func TestConnectionsThatEndSoonDelayOthersOfTheirAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, burst = 10, churnBurst * 10
		server, log := newTestServer(nil, 0)
		p := pipeListener{next: make(chan net.Conn, 1)}
		l := server.Listen(p, ListenerOptions{Limits: Limits{ConnectionsPerSecond: perSecond}})
		connect := func(from string) (client, relay net.Conn) {
			client, relay = net.Pipe()
			p.next <- addressedConn{relay, &net.TCPAddr{IP: net.ParseIP(from), Port: 1}}
			relay, _ = l.Accept()
			return client, relay
		}
		// delay is how late the first byte is read.
		delay := func(from string) time.Duration {
			t.Helper()
			client, relay := connect(from)
			began := time.Now()
			go func() { _, _ = client.Write([]byte("x")) }()
			if _, err := relay.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			time.Sleep(shortLived)
			_ = relay.Close()
			return took
		}
		churn := func(from string, n int) {
			for range n {
				_, relay := connect(from)
				_ = relay.Close()
				_ = relay.Close() // counts once
			}
		}
		var herd []net.Conn
		for range 20 * burst {
			_, relay := connect("192.0.2.1")
			herd = append(herd, relay)
		}
		time.Sleep(shortLived)
		for _, relay := range herd {
			_ = relay.Close()
		}
		if got := delay("192.0.2.1"); got != 0 {
			t.Errorf("after a herd that stayed, a connection is read after %v", got)
		}

		churn("192.0.2.1", burst)
		if got := delay("192.0.2.1"); got != 0 {
			t.Errorf("after as many as may end at once, the next is read after %v", got)
		}
		churn("192.0.2.1", burst+5) // some were forgiven
		churn("192.0.2.1", burst)
		if got, want := delay("192.0.2.1"), churnBurst*time.Second; got != want {
			t.Errorf("after very many the next is read after %v, want %v", got, want)
		}
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "client=192.0.2.1:1 limit=connections_per_second max=10") {
			t.Errorf("the log has %q", lines)
		}
		if n := server.Stats().Limits["connections_per_second"]; n != 1 {
			t.Errorf("%d are counted, want 1", n)
		}
		if got := delay("192.0.2.1"); got != 0 {
			t.Errorf("when that is over the next is read after %v", got)
		}

		churn("192.0.2.1", burst+5)
		if got := delay("192.0.2.2"); got != 0 {
			t.Errorf("another address's is read after %v", got)
		}
		churn("2001:db8::1", burst+5)
		if got, want := delay("2001:db8::2"), 5*time.Second/perSecond; got != want {
			t.Errorf("one of the same /64 is read after %v, want %v", got, want)
		}
		if got := delay("2001:db8:0:1::1"); got != 0 {
			t.Errorf("one of another /64 is read after %v", got)
		}
	})
}

// Addresses can be made up, too.
func TestAddressesWithShortConnectionsAreBounded(t *testing.T) {
	const perSecond = 10
	var c churn
	at := time.Now()
	addr := func(i int) netip.Prefix {
		p, _ := netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}).Prefix(32)
		return p
	}
	for i := range 3 * mostChurning {
		c.ended(addr(i), perSecond, at)
	}
	if n := len(c.addrs); n != mostChurning+1 {
		t.Errorf("%d addresses are kept, want %d, and one for all others", n, mostChurning)
	}
	if c.delay(addr(mostChurning), perSecond, at) == 0 || c.delay(addr(0), perSecond, at) != 0 {
		t.Error("the addresses for which there is no room do not count as one")
	}
	at = at.Add(time.Minute)
	c.ended(addr(5*mostChurning), perSecond, at)
	if n := len(c.addrs); n != 1 {
		t.Errorf("%d addresses are kept after a minute, want 1", n)
	}
}
