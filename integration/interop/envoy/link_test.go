package envoy

// A TCP proxy, for control planes that are far away, and for connections that are cut.

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// link is such a proxy.
type link struct {
	address string
	target  string
	delay   time.Duration // of each byte, in each direction

	mu    sync.Mutex
	conns map[net.Conn]bool
	down  bool
}

// newLink returns a link to a server, which may come and go.
func newLink(t testing.TB, target string, delay time.Duration) *link {
	t.Helper()
	l := &link{address: peers.Address(t), target: target, delay: delay, conns: map[net.Conn]bool{}}
	listener := peers.Listen(t, l.address)
	var open sync.WaitGroup
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { l.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.cut()
		open.Wait()
	})
	return l
}

// cut ends all connections, and refuses others until mend.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for conn := range l.conns {
		_ = conn.Close()
	}
}

// mend ends a cut.
func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

// add adds a connection to those that cut ends. While the link is down it closes it, and returns false.
func (l *link) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		_ = conn.Close()
		return false
	}
	l.conns[conn] = true
	return true
}

func (l *link) remove(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = conn.Close()
	delete(l.conns, conn)
}

// serve connects a client with the server, until one of them closes its connection.
func (l *link) serve(client net.Conn) {
	if !l.add(client) {
		return
	}
	defer l.remove(client)
	server, err := net.Dial("tcp", l.target)
	if err != nil || !l.add(server) {
		return
	}
	defer l.remove(server)
	var open sync.WaitGroup
	defer open.Wait()
	open.Go(func() { l.forward(client, server) })
	open.Go(func() { l.forward(server, client) })
}

// forward sends what comes from one connection to the other, each piece after the delay. At the end it closes
// the other.
func (l *link) forward(from, to net.Conn) {
	type piece struct {
		data []byte
		due  time.Time
	}
	queue := make(chan piece, 1<<10)
	var writing sync.WaitGroup
	defer writing.Wait()
	defer close(queue)
	writing.Go(func() {
		defer func() { _ = to.Close() }()
		for p := range queue {
			if wait := time.Until(p.due); wait > 0 {
				<-time.After(wait)
			}
			_, _ = to.Write(p.data) // an error is one of reading, too
		}
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			queue <- piece{append([]byte(nil), buffer[:n]...), time.Now().Add(l.delay)}
		}
		if err != nil {
			return
		}
	}
}
