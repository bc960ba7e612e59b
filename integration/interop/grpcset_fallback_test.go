package interop

// The fallback from one server of the bootstrap to the next (A71).

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// gate is an address that accepts connections, and forwards them to another address while it is open. While it
// is closed, connections end at once.
type gate struct {
	address string

	mu    sync.Mutex
	to    string
	open  bool
	conns map[net.Conn]bool
}

// newGate starts a closed gate.
func newGate(t testing.TB, to string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{address: l.Addr().String(), to: to, conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = l.Close()
		g.turn(false)
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go g.forward(conn)
		}
	}()
	return g
}

// turn opens or closes the gate.
func (g *gate) turn(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	if open {
		return
	}
	for conn := range g.conns {
		_ = conn.Close()
	}
}

// forwardTo changes the address for new connections.
func (g *gate) forwardTo(address string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = address
}

func (g *gate) target() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.to
}

// enter registers connections that end when the gate closes. It returns false if the gate is closed.
func (g *gate) enter(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		g.conns[c] = true
	}
	return g.open
}

func (g *gate) leave(conns ...net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		delete(g.conns, c)
		_ = c.Close()
	}
}

func (g *gate) forward(in net.Conn) {
	out, err := net.Dial("tcp", g.target())
	if err != nil {
		_ = in.Close()
		return
	}
	defer g.leave(in, out)
	if !g.enter(in, out) {
		return
	}
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
}

// TestGRPCFallsBackTheSameThroughTheRelay checks that clients use the second server of their bootstrap while
// they cannot reach the first. Directly, the servers are control planes. Else they are two relays, each with its
// own control plane.
func TestGRPCFallsBackTheSameThroughTheRelay(t *testing.T) {
	const plane = "two go-control-planes, linear cache"
	for _, c := range grpcClients {
		t.Run(c.name, func(t *testing.T) {
			if reason := c.lacks[fallback]; reason != "" {
				comparisons.note(fallback, c.name, reason)
				t.Skip(reason)
			}
			t.Parallel()
			required(t, c.name, c.prepare)
			compare(t, plane, c.name, ways, func(t *testing.T, w way, record func(string, observation)) {
				record(fallback, fallsBack(t, w, c))
			})
		})
	}
}

func fallsBack(t *testing.T, w way, c grpcClient) observation {
	backends := []*backend{startBackend(t, "b0"), startBackend(t, "b1"), startBackend(t, "b2"), startBackend(t, "b3")}
	var gates []*gate
	for i := range 2 {
		p := startPlane(t, kind{name: w.name, form: w.form, start: startLinear})
		s := newScene(t, p.controlPlane)
		// When grpc-go 1.85 returns to the first server, it does not subscribe there to what it has requested
		// from the second alone. So only listeners have the same names on both servers.
		for j, shop := range []string{"shop", "kiosk"} {
			name := fmt.Sprintf("%s-%d", shop, i)
			s.stock(name, backends[2*i+j])
			s.put(listenerType, shop, apiListener(t, shop, name))
		}
		s.push()
		address := p.address
		if w.relayed {
			address = startRelay(t, address).address
		}
		gates = append(gates, newGate(t, address))
	}
	gates[1].turn(true)
	l := &lane{scene: &scene{t: t}, way: w, client: c.dial(t, bootstrap(t, gates[0].address, gates[1].address))}

	start := time.Now()
	l.await("shop", backends[2]) // of the fallback
	took := time.Since(start)
	gates[0].turn(true)
	l.await("shop", backends[0])
	gates[0].turn(false)
	l.await("shop", backends[0]) // the client has all resources that it needs
	l.await("kiosk", backends[3])
	gates[0].turn(true)
	l.await("shop", backends[0])
	l.await("kiosk", backends[1])
	return observation{took: took}
}
