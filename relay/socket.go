package relay

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/configs"
)

// socket is an open socket. One server after another has it for a turn. So a listener whose settings change stays
// open, and its connections stay with the server that accepted them.
type socket struct {
	net.Listener
	configured string        // its address in the configuration
	address    string        // the same, with the port that was opened
	accepting  chan struct{} // has one value while a turn accepts
	// left is a connection that arrived just as a turn ended. The next turn returns it. Guarded by accepting.
	left net.Conn
}

// turn is the time in which one server accepts the connections of a socket. Its Close ends the turn, and does not
// close the socket.
type turn struct {
	*socket
	ended chan struct{}
	end   sync.Once
}

// openTurns opens a socket. mode is the permissions of a unix socket.
func openTurns(ctx context.Context, address string, mode configs.FileMode) (*socket, error) {
	return openControlled(ctx, address, mode, nil)
}

// openControlled is openTurns. control, if not nil, is net.ListenConfig.Control of a TCP socket.
func openControlled(ctx context.Context, address string, mode configs.FileMode, control controlFunc) (*socket, error) {
	opened, at, err := openSocket(ctx, address, mode, control)
	if err != nil {
		return nil, err
	}
	return &socket{Listener: opened, configured: address, address: at, accepting: make(chan struct{}, 1)}, nil
}

// Close closes the socket. It may be called twice.
func (s *socket) Close() error {
	err := s.Listener.Close()
	s.accepting <- struct{}{} // wait until Accept has returned
	defer func() { <-s.accepting }()
	if s.left != nil {
		_ = s.left.Close() // no data was sent on it
		s.left = nil
	}
	return err
}

// turn returns the next turn. The previous one has to be closed.
func (s *socket) turn() *turn { return &turn{socket: s, ended: make(chan struct{})} }

// deadliner is a socket that can stop accepting.
type deadliner interface{ SetDeadline(time.Time) error }

// Accept implements net.Listener.
func (t *turn) Accept() (net.Conn, error) {
	// The next turn may start to accept before this turn notices its end, which lasts until a client connects.
	select {
	case t.accepting <- struct{}{}:
		defer func() { <-t.accepting }()
	case <-t.ended:
		return nil, net.ErrClosed
	}
	for {
		if t.hasEnded() {
			return nil, net.ErrClosed
		}
		if conn := t.left; conn != nil {
			t.left = nil
			return conn, nil
		}
		conn, err := t.Listener.Accept()
		switch {
		case err == nil && t.hasEnded():
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

func (t *turn) hasEnded() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// Close implements net.Listener.
func (t *turn) Close() error {
	t.end.Do(func() {
		close(t.ended)
		if d, ok := t.Listener.(deadliner); ok {
			_ = d.SetDeadline(time.Unix(1, 0))
		}
	})
	return nil
}
