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

// socket is an open socket. Several servers have it one after the other, each for a turn: so a listener
// whose settings change stays open, and its connections stay with the server that has accepted them.
type socket struct {
	net.Listener
	configured string        // its address in the configuration
	address    string        // the same, with the port that was opened
	accepting  chan struct{} // has one in it while a turn accepts
	// left has a connection that came just when a turn had ended: it is for the next one. Guarded by
	// accepting.
	left net.Conn
}

// turn is the time in which one server accepts the connections of a socket. Its Close ends the turn, and
// not the socket.
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
	s.accepting <- struct{}{} // Accept has returned, or will
	defer func() { <-s.accepting }()
	if s.left != nil {
		_ = s.left.Close() // nothing was sent
		s.left = nil
	}
	return err
}

// turn returns the next turn. The one before has to be closed.
func (s *socket) turn() *turn { return &turn{socket: s, ended: make(chan struct{})} }

// deadliner is a socket that can stop accepting.
type deadliner interface{ SetDeadline(time.Time) error }

// Accept implements net.Listener.
func (t *turn) Accept() (net.Conn, error) {
	// The next turn may accept before this one has noticed that it has ended: that lasts until a client comes.
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
		// The deadline is that of the turn before, or of this one.
		if d, ok := t.Listener.(deadliner); ok {
			_ = d.SetDeadline(time.Time{}) // it fails of a socket that is closed
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
