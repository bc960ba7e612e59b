package peers

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a TCP proxy, for servers that are far away, and for connections that are cut. Its methods may be called
// concurrently.
type Link struct {
	Address string
	delay   time.Duration // of each byte, in each direction

	mu     sync.Mutex
	target string
	conns  map[net.Conn]bool
	down   bool
}

// NewLink returns a link to a server, which may come and go.
func NewLink(t testing.TB, target string, delay time.Duration) *Link {
	t.Helper()
	l := &Link{Address: Address(t), target: target, delay: delay, conns: map[net.Conn]bool{}}
	listener := Listen(t, l.Address)
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
		l.Cut()
		open.Wait()
	})
	return l
}

// Cut ends all connections, and refuses others until Mend.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for conn := range l.conns {
		_ = conn.Close()
	}
}

// Mend ends a cut.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

// SetTarget changes the server for new connections.
func (l *Link) SetTarget(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
}

// add adds a connection to those that Cut ends. While the link is down it closes it, and returns false.
func (l *Link) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		_ = conn.Close()
		return false
	}
	l.conns[conn] = true
	return true
}

func (l *Link) remove(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = conn.Close()
	delete(l.conns, conn)
}

// serve connects a client with the server, until one of them closes its connection.
func (l *Link) serve(client net.Conn) {
	if !l.add(client) {
		return
	}
	defer l.remove(client)
	l.mu.Lock()
	target := l.target
	l.mu.Unlock()
	server, err := net.Dial("tcp", target)
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
func (l *Link) forward(from, to net.Conn) {
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
