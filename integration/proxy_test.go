package integration

import (
	"io"
	"net"
	"sync"
	"testing"
)

// balancer is a TCP proxy in front of a server. It can lose its connections silently: they stay open on both
// sides, but the balancer drops all data.
type balancer struct {
	address string
	to      func() string   // the address of the server now
	ways    watched[[]*way] // the open connections
	made    watched[int]    // number of connections so far
}

// way is a connection through a balancer.
type way struct {
	mu        sync.Mutex
	swallowed bool
}

func startBalancer(t testing.TB, to string) *balancer {
	t.Helper()
	return startBalancerTo(t, func() string { return to })
}

// startBalancerTo is startBalancer for a server whose address changes.
func startBalancerTo(t testing.TB, to func() string) *balancer {
	t.Helper()
	b := &balancer{to: to}
	b.address = acceptEach(t, b.carry)
	return b
}

// acceptEach listens until the test ends, and calls carry for each connection in its own goroutine.
func acceptEach(t testing.TB, carry func(net.Conn)) (address string) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			running.Go(func() { carry(conn) })
		}
	})
	t.Cleanup(func() {
		_ = socket.Close()
		running.Wait()
	})
	return socket.Addr().String()
}

// carry forwards data in both directions until one side closes its connection.
func (b *balancer) carry(front net.Conn) {
	defer front.Close()
	back, err := net.Dial("tcp", b.to())
	if err != nil {
		return
	}
	defer back.Close()
	w := &way{}
	b.ways.update(func(all *[]*way) { *all = append(*all, w) })
	b.made.update(func(n *int) { *n++ })
	defer b.ways.update(func(all *[]*way) {
		for i := range *all {
			if (*all)[i] == w {
				*all = append((*all)[:i:i], (*all)[i+1:]...)
				return
			}
		}
	})
	var both sync.WaitGroup
	// If the connection is swallowed, the server's end stays open until the relay closes its own.
	both.Go(func() { w.copy(front, back); _ = back.Close() })
	both.Go(func() {
		if w.copy(back, front); !w.swallows() {
			_ = front.Close()
		}
	})
	both.Wait()
}

// copy forwards data in one direction until from is closed.
func (w *way) copy(from io.Reader, to io.Writer) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if !w.swallows() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

func (w *way) swallows() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.swallowed
}

// swallow silently loses all open connections. New connections work.
func (b *balancer) swallow() {
	b.ways.read(func(all *[]*way) {
		for _, w := range *all {
			w.mu.Lock()
			w.swallowed = true
			w.mu.Unlock()
		}
	})
}

// count returns how many connections were made.
func (b *balancer) count() (made int) {
	b.made.read(func(n *int) { made = *n })
	return made
}
