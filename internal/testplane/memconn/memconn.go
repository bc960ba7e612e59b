// Package memconn provides in-memory connections for tests with testing/synctest, like bufconn of grpc-go.
//
// Each pipe of bufconn sets two timers that are due at once. Go 1.26 crashes under the race detector when two
// goroutines of a bubble run such timers at the same time. A connection of this package has a timer only while a
// deadline is set.
package memconn

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Listener accepts the connections that DialContext opens. Its methods may be called concurrently.
type Listener struct {
	size    int
	dialed  chan net.Conn
	closing sync.Once
	closed  chan struct{}
}

// Listen returns a listener whose connections hold up to size unread bytes in each direction.
func Listen(size int) *Listener {
	return &Listener{size: size, dialed: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case c := <-l.dialed:
		return c, nil
	}
}

// Close implements net.Listener. Existing connections stay open.
func (l *Listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return addr{} }

// DialContext opens a connection, and returns when it is accepted.
func (l *Listener) DialContext(ctx context.Context) (net.Conn, error) {
	up, down := newPipe(l.size), newPipe(l.size)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, net.ErrClosed
	case l.dialed <- &conn{from: up, to: down}:
		return &conn{from: down, to: up}, nil
	}
}

// pipe is one direction of a connection.
type pipe struct {
	size int

	mu      sync.Mutex
	changed sync.Cond
	data    []byte // written and not yet read
	// readerGone and writerGone say which end is closed. A reader can still read data from before the end.
	readerGone, writerGone bool
	read, written          deadline
}

func newPipe(size int) *pipe {
	p := &pipe{size: size}
	p.changed.L = &p.mu
	return p
}

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.readerGone:
			return 0, io.ErrClosedPipe
		case p.read.passed:
			return 0, os.ErrDeadlineExceeded
		case len(p.data) > 0:
			n := copy(b, p.data)
			p.data = append(p.data[:0], p.data[n:]...)
			p.changed.Broadcast()
			return n, nil
		case p.writerGone:
			return 0, io.EOF
		}
		p.changed.Wait()
	}
}

func (p *pipe) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > n {
		switch room := p.size - len(p.data); {
		case p.readerGone || p.writerGone:
			return n, io.ErrClosedPipe
		case p.written.passed:
			return n, os.ErrDeadlineExceeded
		case room > 0:
			more := b[n:min(len(b), n+room)]
			p.data = append(p.data, more...)
			n += len(more)
			p.changed.Broadcast()
		default:
			p.changed.Wait()
		}
	}
	return n, nil
}

func (p *pipe) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed.Broadcast()
}

// deadline is the deadline of one end of a pipe. The pipe's mu guards it.
type deadline struct {
	timer  *time.Timer // nil if no deadline is set
	passed bool
}

func (d *deadline) set(p *pipe, when time.Time) {
	p.change(func() {
		if d.timer != nil {
			d.timer.Stop()
		}
		d.timer, d.passed = nil, !when.IsZero() && !when.After(time.Now())
		if when.IsZero() || d.passed {
			return
		}
		var timer *time.Timer
		timer = time.AfterFunc(time.Until(when), func() {
			p.change(func() { d.passed = d.passed || d.timer == timer })
		})
		d.timer = timer
	})
}

// conn is one end of a connection.
type conn struct{ from, to *pipe }

func (c *conn) Read(b []byte) (int, error)  { return c.from.Read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.to.Write(b) }

func (c *conn) Close() error {
	c.from.change(func() { c.from.readerGone = true })
	c.to.change(func() { c.to.writerGone = true })
	return nil
}

func (c *conn) SetReadDeadline(when time.Time) error {
	c.from.read.set(c.from, when)
	return nil
}

func (c *conn) SetWriteDeadline(when time.Time) error {
	c.to.written.set(c.to, when)
	return nil
}

func (c *conn) SetDeadline(when time.Time) error {
	_ = c.SetReadDeadline(when)
	return c.SetWriteDeadline(when)
}

func (c *conn) LocalAddr() net.Addr  { return addr{} }
func (c *conn) RemoteAddr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "memory" }
func (addr) String() string  { return "memory" }
