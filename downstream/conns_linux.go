package downstream

import (
	"io"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc/mem"
)

// gRPC treats TCP connections specially, by their type: it waits for data without holding a buffer, so that a quiet
// client has none, and it has the kernel give up a connection whose peer does not acknowledge data. A limitedConn does
// the same here.

// readyReader reads from a socket when data is there, into a buffer that it allocates only then.
type readyReader struct {
	raw  syscall.RawConn // nil if the connection is not a socket
	read func(fd uintptr) bool

	// The arguments and the results of the call of ReadOnReady that is in progress.
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

// ReadOnReady is called by gRPC to read, if a connection has this method.
func (c *limitedConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if err := c.awaitProxyHeader(); err != nil {
		return nil, 0, err
	}
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

// setUserTimeout has the kernel give up a connection when sent data stays unacknowledged for so long.
func setUserTimeout(c net.Conn, timeout time.Duration) {
	const tcpUserTimeout = 0x12 // the package syscall does not define it
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
