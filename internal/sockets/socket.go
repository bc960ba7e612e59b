package sockets

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/configs"
)

// Socket is an open socket. One server after another has it for a turn. So a listener whose settings change stays
// open, and its connections stay with the server that accepted them.
type Socket struct {
	net.Listener
	configured string        // its address in the configuration
	Address    string        // the same, with the port that was opened
	accepting  chan struct{} // has one value while a turn accepts
	// left is a connection that arrived just as a turn ended. The next turn returns it. Guarded by accepting.
	left net.Conn
}

// Turn is the time in which one server accepts the connections of a socket. Its Close ends the turn, and does not
// close the socket.
type Turn struct {
	*Socket
	ended chan struct{}
	end   sync.Once
}

// Open opens a socket. mode is the permissions of a unix socket.
func Open(ctx context.Context, address string, mode configs.FileMode) (*Socket, error) {
	return openControlled(ctx, address, mode, nil)
}

// openControlled is Open. control, if not nil, is net.ListenConfig.Control of a TCP socket.
func openControlled(ctx context.Context, address string, mode configs.FileMode, control controlFunc) (*Socket, error) {
	opened, at, err := openSocket(ctx, address, mode, control)
	if err != nil {
		return nil, err
	}
	return &Socket{Listener: opened, configured: address, Address: at, accepting: make(chan struct{}, 1)}, nil
}

// Close closes the socket. It may be called twice.
func (s *Socket) Close() error {
	err := s.Listener.Close()
	s.accepting <- struct{}{} // wait until Accept has returned
	defer func() { <-s.accepting }()
	if s.left != nil {
		_ = s.left.Close() // no data was sent on it
		s.left = nil
	}
	return err
}

// Turn returns the next turn. The previous one has to be closed.
func (s *Socket) Turn() *Turn { return &Turn{Socket: s, ended: make(chan struct{})} }

// deadliner is a socket that can stop accepting.
type deadliner interface{ SetDeadline(time.Time) error }

// Accept implements net.Listener.
func (t *Turn) Accept() (net.Conn, error) {
	// The next turn may start to accept before this turn notices its end, which lasts until a client connects.
	select {
	case t.accepting <- struct{}{}:
		defer func() { <-t.accepting }()
	case <-t.ended:
		return nil, net.ErrClosed
	}
	for {
		if t.HasEnded() {
			return nil, net.ErrClosed
		}
		if conn := t.left; conn != nil {
			t.left = nil
			return conn, nil
		}
		conn, err := t.Listener.Accept()
		switch {
		case err == nil && t.HasEnded():
			t.left = conn
			continue
		case err == nil || !errors.Is(err, os.ErrDeadlineExceeded):
			return conn, err
		}
		// The deadline is that of the previous turn, or of this one.
		if d, ok := t.Listener.(deadliner); ok {
			_ = d.SetDeadline(time.Time{}) // it fails if the socket is closed
		}
	}
}

// HasEnded reports whether the turn accepts no more connections because it has ended.
func (t *Turn) HasEnded() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// Close implements net.Listener.
func (t *Turn) Close() error {
	t.end.Do(func() {
		close(t.ended)
		if d, ok := t.Listener.(deadliner); ok {
			_ = d.SetDeadline(time.Unix(1, 0))
		}
	})
	return nil
}
