package downstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// drained is a server with a listener in memory, as the relay has them.
type drained struct {
	memory
	server   *Server
	listener Listener
}

func newDrained(t *testing.T, o ListenerOptions) *drained {
	t.Helper()
	ch := newTestCache(silentSource{}, 1000)
	t.Cleanup(ch.Close)
	d := &drained{memory: memory{t: t, lis: memconn.Listen(1 << 16)}}
	d.server, _ = newTestServer(ch, DefaultMaxResponseBytes)
	d.listener = d.server.Listen(d.lis, o)
	g := grpc.NewServer(append(ServerOptions(o), grpc.Creds(Metered(insecure.NewCredentials())))...)
	others := d.server.Register(g, o)
	healthpb.RegisterHealthServer(others, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- g.Serve(d.listener) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return d
}

// departed is how and when a client was sent away.
type departed struct {
	at  time.Time
	err error
}

// subscriber opens a stream on a connection of its own, and says when it ends.
func (d *drained) subscriber(ended chan<- departed) *grpc.ClientConn {
	d.t.Helper()
	conn := d.dial()
	s := openDelta(d.t, conn)
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a"}}); err != nil && !errors.Is(err, io.EOF) { // Recv says why the stream has ended
		d.t.Fatal(err)
	}
	go func() {
		_, err := s.Recv()
		ended <- departed{time.Now(), err}
	}()
	return conn
}

// Each client is sent away at a moment of its own, and the moments are spread evenly.
func TestADrainSendsClientsAwayOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, within = 40, 20 * time.Second
		d := newDrained(t, ListenerOptions{})
		ended := make(chan departed, clients)
		var conns []*grpc.ClientConn
		for range clients {
			conns = append(conns, d.subscriber(ended))
		}
		synctest.Wait()
		began := time.Now()
		d.listener.Drain(t.Context(), within)
		if took := time.Since(began); took > within {
			t.Errorf("clients that go when they are sent away are waited for: %v", took)
		}
		synctest.Wait()
		var moments []time.Duration
		for range clients {
			e := <-ended
			if status.Code(e.err) != codes.Unavailable || !strings.Contains(e.err.Error(), "drains") {
				t.Errorf("a stream ends with %v", e.err)
			}
			moments = append(moments, e.at.Sub(began))
		}
		slices.Sort(moments)
		const slot = within / clients
		for i, at := range moments {
			if at < time.Duration(i)*slot || at > time.Duration(i+1)*slot {
				t.Errorf("client %d is sent away after %v, want %v to %v", i, at, time.Duration(i)*slot, time.Duration(i+1)*slot)
			}
		}
		for _, conn := range conns { // GOAWAY: the connection was not lost
			if state := conn.GetState(); state != connectivity.Idle {
				t.Errorf("a client's connection is %v, want IDLE", state)
			}
		}
		if n := d.server.Stats().SentAway; n["drain"] != clients || n["age"] != 0 {
			t.Errorf("counted: %v", n)
		}
	})
}

// With few connections a drain is over sooner, and at once without any.
func TestADrainOfFewConnectionsIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrained(t, ListenerOptions{})
		ended := make(chan departed, 1)
		d.subscriber(ended)
		synctest.Wait()
		began := time.Now()
		d.listener.Drain(t.Context(), time.Hour)
		if took := time.Since(began); took > departEvery {
			t.Errorf("a drain of one connection takes %v", took)
		}
		<-ended
	})
	synctest.Test(t, func(t *testing.T) {
		d := newDrained(t, ListenerOptions{})
		began := time.Now()
		d.listener.Drain(t.Context(), time.Hour)
		if took := time.Since(began); took != 0 {
			t.Errorf("a drain of no connection takes %v", took)
		}
	})
}

// A connection without a stream is sent GOAWAY too, and so is one with a stream of health only.
func TestADrainSendsConnectionsAwayWithoutStreamsOfXDS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrained(t, ListenerOptions{})
		idle := d.dial()
		idle.Connect()
		for s := idle.GetState(); s != connectivity.Ready; s = idle.GetState() {
			idle.WaitForStateChange(t.Context(), s)
		}
		watching := d.dial()
		w, err := healthpb.NewHealthClient(watching).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Recv(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		d.listener.Drain(t.Context(), time.Second)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the drain takes %v", took)
		}
		if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream of health ends with %v", err)
		}
		synctest.Wait()
		for _, conn := range []*grpc.ClientConn{idle, watching} {
			if state := conn.GetState(); state != connectivity.Idle {
				t.Errorf("a connection is %v, want IDLE", state)
			}
		}
	})
}

// A client that ignores GOAWAY holds up a drain for a bounded time, and so does one that reads nothing
// at all.
func TestADrainDoesNotWaitForClientsThatStay(t *testing.T) {
	for _, reads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const within = 2 * time.Second
			d := newDrained(t, ListenerOptions{})
			stays, err := d.lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer stays.Close()
			framer := http2.NewFramer(stays, stays)
			if _, err := io.WriteString(stays, http2.ClientPreface); err != nil {
				t.Fatal(err)
			}
			if err := framer.WriteSettings(); err != nil {
				t.Fatal(err)
			}
			var kinds []http2.FrameType
			closed := make(chan struct{})
			if reads {
				go func() {
					defer close(closed)
					for f, err := framer.ReadFrame(); err == nil; f, err = framer.ReadFrame() {
						kinds = append(kinds, f.Header().Type)
					}
				}()
			} else {
				close(closed)
			}
			synctest.Wait()
			began := time.Now()
			d.listener.Drain(t.Context(), within)
			if took := time.Since(began); took < partingTime || took > within+partingTime {
				t.Errorf("reads %t: the drain takes %v", reads, took)
			}
			<-closed
			if reads && (len(kinds) == 0 || kinds[0] != http2.FrameSettings || kinds[len(kinds)-1] != http2.FrameGoAway) {
				t.Errorf("it reads %v", kinds)
			}
		})
	}
}

// A connection that is being set up when its turn comes is sent away once it is set up: SETTINGS come first.
func TestADrainDuringAHandshake(t *testing.T) {
	server, _ := newTestServer(nil, 0)
	client, raw := net.Pipe()
	defer client.Close()
	conn := newLimitedConn(server.listen(nil, ListenerOptions{}), raw)
	conn.sendAway(Drained)
	secure, _, err := Metered(insecure.NewCredentials()).ServerHandshake(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer secure.Close()
	go func() {
		f := http2.NewFramer(secure, nil)
		_ = f.WriteSettings()
		_ = f.WriteSettingsAck()
	}()
	framer := http2.NewFramer(nil, client)
	for _, want := range []http2.FrameType{http2.FrameSettings, http2.FrameGoAway, http2.FrameSettings} {
		f, err := framer.ReadFrame()
		if err != nil || f.Header().Type != want {
			t.Fatalf("got %v, %v, want %v", f, err, want)
		}
	}
}

// Clients that go by themselves before their moment are not counted as sent away.
func TestADrainDoesNotCountClientsThatHaveGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrained(t, ListenerOptions{})
		ended := make(chan departed, 2)
		stays, goes := d.subscriber(ended), d.subscriber(ended)
		synctest.Wait()
		_ = goes.Close()
		synctest.Wait()
		d.listener.Drain(t.Context(), time.Second)
		<-ended
		<-ended
		if n := d.server.Stats().SentAway["drain"]; n != 1 {
			t.Errorf("counted %d, want 1", n)
		}
		_ = stays
	})
}

// A stream that comes on a connection whose client was sent away ends as the others did.
func TestAClientThatWasSentAwayGetsNoStream(t *testing.T) {
	l, other := net.Pipe()
	defer l.Close()
	defer other.Close()
	server, _ := newTestServer(nil, 0)
	conn := newLimitedConn(server.listen(nil, ListenerOptions{}), l)
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: conn.RemoteAddr()})
	leave, err := joinConn(ctx, func(error) { t.Error("a call that has left is ended") })
	if err != nil {
		t.Fatal(err)
	}
	leave()
	var ends []error
	for range 3 {
		if leave, err = joinConn(ctx, func(why error) { ends = append(ends, why) }); err != nil {
			t.Fatal(err)
		}
	}
	leave() // in the order that is worst for a list
	conn.sendAway(Aged)
	conn.sendAway(Drained) // it has gone
	if len(ends) != 2 || status.Code(ends[0]) != codes.Unavailable {
		t.Errorf("open calls end with %v", ends)
	}
	if _, err := joinConn(ctx, nil); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "maximum age") {
		t.Errorf("a further call ends with %v", err)
	}
}

// A connection that has reached its maximum age ends as in a drain, a quarter sooner or later.
func TestConnectionsEndAtTheirMaximumAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, age = 100, 12 * time.Second
		d := newDrained(t, ListenerOptions{MaxConnectionAge: age})
		ended := make(chan departed, clients)
		began := time.Now()
		for range clients {
			d.subscriber(ended)
		}
		var first, last time.Duration
		for i := range clients {
			e := <-ended
			if status.Code(e.err) != codes.Unavailable || !strings.Contains(e.err.Error(), "maximum age") {
				t.Errorf("a stream ends with %v", e.err)
			}
			if last = e.at.Sub(began); i == 0 {
				first = last
			}
		}
		if first < age*3/4 || last > age*5/4 || last-first < age/4 {
			t.Errorf("the first ends after %v, the last after %v", first, last)
		}
	})
}

// servePolls serves clients over REST, with a control plane that does not answer.
func servePolls(t *testing.T) (l Listener, lis *memconn.Listener, stop func()) {
	t.Helper()
	ch := newTestCache(silentSource{}, 1000)
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	lis = memconn.Listen(1 << 16)
	o := ListenerOptions{LongPoll: time.Hour}
	l = server.ListenREST(lis, nil, o)
	h := server.HTTPServer(o)
	go func() { _ = h.Serve(l) }()
	return l, lis, func() { _ = h.Close(); ch.Close() }
}

// A request over REST that waits is answered when its client is sent away, and its connection ends
// with the answer.
func TestADrainAnswersWaitingPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lis, stop := servePolls(t)
		defer stop()
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return lis.DialContext(ctx) }}}
		type answer struct {
			status int
			close  bool
			at     time.Time
		}
		answered := make(chan answer, 1)
		go func() {
			r, err := client.Post("http://relay/v3/discovery:clusters", "application/json", strings.NewReader(`{"node": {"id": "n"}, "version_info": "1", "resource_names": ["a"]}`))
			if err != nil {
				t.Error(err)
				answered <- answer{}
				return
			}
			_ = r.Body.Close()
			answered <- answer{r.StatusCode, r.Close, time.Now()}
		}()
		synctest.Wait()
		began := time.Now()
		l.Drain(t.Context(), time.Minute)
		if took := time.Since(began); took > departEvery {
			t.Errorf("the drain takes %v", took)
		}
		if a := <-answered; a.status != http.StatusNotModified || !a.close || a.at.Sub(began) > departEvery {
			t.Errorf("a poll is answered with %d (last of its connection: %t) after %v", a.status, a.close, a.at.Sub(began))
		}
	})
}

// A REST request that is still being sent when its connection's turn comes is read and answered.
func TestADrainDoesNotCutOffRequestsOverREST(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lis, stop := servePolls(t)
		defer stop()
		conn, err := lis.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const body = `{"node": {"id": "n"}, "version_info": "1", "resource_names": ["a"]}`
		half := len(body) / 2
		if _, err := fmt.Fprintf(conn, "POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:half]); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		go l.Drain(t.Context(), 0)
		time.Sleep(2 * partingTime)
		if _, err := io.WriteString(conn, body[half:]); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotModified || !resp.Close {
			t.Errorf("answered with %s (last of its connection: %t)", resp.Status, resp.Close)
		}
		synctest.Wait()
	})
}
