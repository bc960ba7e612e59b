package gate

import (
	"fmt"
	"net"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/inbox"
)

// Streams with one node id on one connection are one client. Streams on other connections are other clients: each
// takes the first free slot. A slot on the new side stays when its client leaves.
func TestStreamsOfANodeOnOneConnectionAreOneClient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &gate{clients: map[string]*nodeClients{}, connected: map[connected]*slot{}, inbox: inbox.New[event]()}
		conns := make([]net.Addr, 6)
		for i := range conns {
			conns[i] = &net.TCPAddr{Port: i}
		}
		type place struct {
			conn    net.Addr
			streams int
			kept    bool
		}
		places := map[string][]*place{} // by node
		var open []*Member
		isAt := map[*Member]*place{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if n := len(open); n > 0 && rapid.Bool().Draw(t, "leaves") {
				at := rapid.IntRange(0, n-1).Draw(t, "which")
				m, p := open[at], isAt[open[at]]
				if p.kept = rapid.Bool().Draw(t, "is on the new side"); p.kept {
					m.slot.showing.Store(1)
				} else {
					m.slot.showing.Store(0)
				}
				open = append(open[:at], open[at+1:]...)
				g.leave(m, false)
				p.streams--
				of := places[m.client.Node]
				for len(of) > 0 && of[len(of)-1].streams == 0 && !of[len(of)-1].kept {
					of = of[:len(of)-1]
				}
				places[m.client.Node] = of
				continue
			}
			node := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node")
			conn := rapid.SampledFrom(conns).Draw(t, "connection")
			m, _ := g.join(Client{Node: node, Conn: conn, Eligible: true, Resumed: true})
			want := -1
			for i, p := range places[node] {
				if p.streams > 0 && p.conn == conn {
					want = i
					break
				}
				if p.streams == 0 && want < 0 {
					want = i
				}
			}
			if want < 0 {
				want = len(places[node])
				places[node] = append(places[node], &place{})
			}
			p := places[node][want]
			p.conn, p.streams, p.kept = conn, p.streams+1, m.slot.onNew()
			isAt[m] = p
			open = append(open, m)
			id := node
			if want > 0 {
				id = fmt.Sprintf("%s#%d", node, want)
			}
			if m.slot.id != id {
				t.Fatalf("a stream of %s is that of client %s, want %s", node, m.slot.id, id)
			}
		}
		for node, of := range places {
			if g.clients[node] == nil && len(of) > 0 || g.clients[node] != nil && len(g.clients[node].slots) != len(of) {
				t.Fatalf("%s has other places than %d", node, len(of))
			}
		}
	})
}

// Joining costs the same however many streams have the same node id, which clients choose.
func BenchmarkJoin(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprint(others, " others"), func(b *testing.B) {
			g := &gate{clients: map[string]*nodeClients{}, connected: map[connected]*slot{}, inbox: inbox.New[event](), controller: &Controller{}}
			for i := range others {
				g.join(Client{Node: "a", Conn: &net.TCPAddr{Port: i}})
			}
			b.ReportAllocs()
			for b.Loop() {
				m, _ := g.join(Client{Node: "a", Conn: &net.TCPAddr{}})
				g.leave(m, false)
				g.taken = g.inbox.TakeAgain(g.taken)
			}
		})
	}
}
