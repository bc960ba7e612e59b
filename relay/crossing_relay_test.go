package relay

// The whole relay of the crossings, with connections in memory instead of sockets.

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"github.com/xds-relay/xds-relay/upstream"
)

// crossingConfig is the configuration of the relay. All clients are one partition, so
// that there is one stream to the control plane, and one for the xdstp names of
// each authority.
const crossingConfig = `
listeners:
  - address: 127.0.0.1:18000
node: {id: relay}
authorities:
  - name: control-plane
    servers:
      - {address: "control-plane:18000", protocol: PROTOCOL}
  - name: policy.example.com
    servers:
      - {address: "control-plane:18000", protocol: PROTOCOL}
    context_parameters: {drop: [xds.node.id], require: [shard]}
  - name: open.example.com
    servers:
      - {address: "open:18000", protocol: PROTOCOL}
old_style_names:
  - authority: control-plane
cache: {linger: 1m}
`

type servedRelay struct {
	relay *Relay
	lis   *memconn.Listener
	grpc  *grpc.Server
}

func startCrossing(t *testing.T, protocol string, plane *scriptedPlane) *servedRelay {
	t.Helper()
	if protocol == "sotw" { // what the relay does with others is in upstream/session/testdata/sotw_strict.txt
		protocol += ", sotw_answers: all"
	}
	return startInMemory(t, strings.ReplaceAll(crossingConfig, "PROTOCOL", protocol), func(string) dialer { return plane.dial })
}

// dialer connects to a server.
type dialer = func(context.Context, string) (net.Conn, error)

// startInMemory starts a relay. dial returns the dialer for the servers of an authority.
func startInMemory(t *testing.T, config string, dial func(authority string) dialer) *servedRelay {
	t.Helper()
	return startInMemoryWith(t, config, Options{Log: slog.New(slog.DiscardHandler)}, dial)
}

// startInMemoryWith is startInMemory with options.
func startInMemoryWith(t *testing.T, config string, o Options, dial func(authority string) dialer) *servedRelay {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	// The only difference from a relay in production is where its connections go.
	for _, a := range cfg.Authorities {
		for _, server := range r.now().origins[a.Name].servers {
			_ = server.conn.Close()
			server.conn.connection, err = upstream.Dial("passthrough:///"+server.config.Address, upstream.DialOptions{
				Extra: []grpc.DialOption{grpc.WithContextDialer(dial(a.Name))},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	s := &servedRelay{relay: r}
	s.open(downstream.ListenerOptions{PassRedirects: cfg.Listeners[0].Redirects == configs.RedirectsPass})
	return s
}

// open opens its listener.
func (s *servedRelay) open(o downstream.ListenerOptions) {
	s.lis, s.grpc = memconn.Listen(connBuffer), grpc.NewServer(downstream.ServerOptions(o)...)
	others := s.relay.server.Register(s.grpc, o)
	if o.Door != nil {
		s.relay.observer.ClientCSDS(o.Door).Register(others)
	}
	go func(s *grpc.Server, lis net.Listener) { _ = s.Serve(lis) }(s.grpc, s.lis)
}

func (s *servedRelay) close() {
	s.grpc.Stop()
	s.relay.Close()
}

// dial makes a connection of a client's own.
func (s *servedRelay) dial(t *testing.T) (*grpc.ClientConn, *stallingConn) {
	t.Helper()
	raw := &stallingConn{}
	raw.moves = sync.NewCond(&raw.mu)
	conn, err := grpc.NewClient("passthrough:///relay",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var err error
			raw.Conn, err = s.lis.DialContext(ctx)
			return raw, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	return conn, raw
}

// connBuffer is how many bytes a connection holds that its reader has not read.
const connBuffer = 16 << 10

// stallingConn is a connection whose owner can stop reading.
type stallingConn struct {
	net.Conn

	mu      sync.Mutex
	moves   *sync.Cond
	stalled bool
}

// Read implements net.Conn.
func (c *stallingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.stalled {
		c.moves.Wait()
	}
	return n, err
}

func (c *stallingConn) stall() { c.set(true) }

func (c *stallingConn) resume() { c.set(false) }

func (c *stallingConn) set(stalled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stalled = stalled
	c.moves.Broadcast()
}
