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
	address   string     // in the form of the configuration
	accepting sync.Mutex // held by the turn that accepts
}

// turn is the time in which one server accepts the connections of a socket. Its Close ends the turn, and
// not the socket.
type turn struct {
	*socket
	ended chan struct{}
	end   sync.Once
}

func openTurns(ctx context.Context, address string, mode configs.FileMode) (*socket, error) {
	opened, at, err := openSocket(ctx, address, mode)
	if err != nil {
		return nil, err
	}
	return &socket{Listener: opened, address: at}, nil
}

// turn returns the next turn. The one before has to be closed.
func (s *socket) turn() *turn { return &turn{socket: s, ended: make(chan struct{})} }

// deadliner is a socket that can stop accepting.
type deadliner interface{ SetDeadline(time.Time) error }

// Accept implements net.Listener.
func (t *turn) Accept() (net.Conn, error) {
	t.accepting.Lock()
	defer t.accepting.Unlock()
	for {
		select {
		case <-t.ended:
			return nil, net.ErrClosed
		default:
		}
		conn, err := t.Listener.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		// The deadline is that of the turn before, or of this one.
		if d, ok := t.Listener.(deadliner); ok {
			_ = d.SetDeadline(time.Time{}) // it fails of a socket that is closed
		}
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
