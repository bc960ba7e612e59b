package integration

import (
	"net"
	"sync"
	"testing"
)

// port is a TCP port of a server that may be stopped and started. While the server is stopped, the port
// accepts connections and closes them at once. So no other process can take the port.
type port struct {
	address    string
	socket     net.Listener
	turnedAway watched[int] // number of connections that were closed at once

	mu     sync.Mutex
	behind *behind // the listener that receives the connections; nil while there is none
}

func openPort(t testing.TB) *port {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &port{address: socket.Addr().String(), socket: socket}
	var accepting sync.WaitGroup
	accepting.Go(p.accept)
	t.Cleanup(func() {
		_ = socket.Close()
		accepting.Wait()
	})
	return p
}

func (p *port) accept() {
	for {
		conn, err := p.socket.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		b := p.behind
		p.mu.Unlock()
		if b == nil || !b.take(conn) {
			_ = conn.Close()
			p.turnedAway.update(func(n *int) { *n++ })
		}
	}
}

// listen returns a listener that receives the connections until it is closed.
func (p *port) listen() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behind = &behind{port: p, conns: make(chan net.Conn), closed: make(chan struct{})}
	return p.behind
}

// behind is the listener behind a port.
type behind struct {
	port   *port
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (b *behind) take(conn net.Conn) bool {
	select {
	case b.conns <- conn:
		return true
	case <-b.closed:
		return false
	}
}

// Accept implements net.Listener.
func (b *behind) Accept() (net.Conn, error) {
	select {
	case conn := <-b.conns:
		return conn, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (b *behind) Close() error {
	b.once.Do(func() {
		b.port.mu.Lock()
		defer b.port.mu.Unlock()
		close(b.closed)
		if b.port.behind == b {
			b.port.behind = nil
		}
	})
	return nil
}

// Addr implements net.Listener.
func (b *behind) Addr() net.Addr { return b.port.socket.Addr() }
