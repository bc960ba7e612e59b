package interop

// The fallback from one server of the bootstrap to the next (A71).

import (
	"fmt"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// gate is an address that forwards connections to another address while it is open. While it is closed, connections
// end at once.
type gate struct {
	link    *peers.Link
	address string
}

// newGate starts a closed gate.
func newGate(t testing.TB, to string) *gate {
	t.Helper()
	g := &gate{link: peers.NewLink(t, to, 0)}
	g.address = g.link.Address
	g.turn(false)
	return g
}

// turn opens or closes the gate.
func (g *gate) turn(open bool) {
	if open {
		g.link.Mend()
	} else {
		g.link.Cut()
	}
}

// forwardTo changes the address for new connections.
func (g *gate) forwardTo(address string) { g.link.SetTarget(address) }

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
