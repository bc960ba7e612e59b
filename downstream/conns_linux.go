package downstream

import (
	"io"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc/mem"
)

// gRPC knows TCP connections by their type: it waits for bytes without a buffer, so that a
// quiet client has none, and has the kernel give up a connection whose other end does not
// acknowledge what was sent. A connection that is counted does the same here.

// readyReader reads from a socket when there is something to read, into a buffer that it
// takes only then.
type readyReader struct {
	raw  syscall.RawConn // nil of what is no socket
	read func(fd uintptr) bool

	// Of one call.
	size int
	pool mem.BufferPool
	buf  *[]byte
	n    int
	err  error
}

func (r *readyReader) init(c net.Conn) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	r.raw = raw
	r.read = func(fd uintptr) bool {
		r.buf = r.pool.Get(r.size)
		for {
			r.n, r.err = syscall.Read(int(fd), *r.buf)
			if r.err != syscall.EINTR { //nolint:errorlint // a system call returns the number itself
				break
			}
		}
		if r.err != nil {
			r.pool.Put(r.buf)
			r.buf = nil
		}
		return r.err != syscall.EAGAIN //nolint:errorlint // as above
	}
}

// ReadOnReady is what gRPC reads with, if a connection has it.
func (c *limitedConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	c.wait()
	r := &c.ready
	if r.raw == nil {
		buf := pool.Get(size)
		n, err := c.Conn.Read(*buf)
		if err != nil {
			pool.Put(buf)
			return nil, 0, err
		}
		return buf, n, nil
	}
	r.size, r.pool = size, pool
	err := r.raw.Read(r.read)
	buf, n := r.buf, r.n
	if err == nil {
		err = r.err
	}
	r.pool, r.buf, r.n, r.err = nil, nil, 0, nil
	switch {
	case err != nil:
		if buf != nil {
			pool.Put(buf)
		}
		return nil, 0, err
	case n == 0:
		pool.Put(buf)
		return nil, 0, io.EOF
	}
	return buf, n, nil
}

// setUserTimeout has the kernel give up a connection when what was sent on it is not
// acknowledged for so long.
func setUserTimeout(c net.Conn, timeout time.Duration) {
	const tcpUserTimeout = 0x12 // which the package syscall does not have
	tcp, ok := c.(*net.TCPConn)
	if !ok || timeout <= 0 {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(timeout/time.Millisecond))
	})
}
