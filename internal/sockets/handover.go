package sockets

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"syscall"

	"github.com/xds-relay/xds-relay/configs"
)

// Sockets that a reload does not use as they are. They accept connections until the reload is committed. The new
// configuration may need their address or port:
//
//   - The same address, for a listener of the other kind: it takes over the open socket. So an admin listener and a
//     client listener can swap ports, and no connection is refused in between.
//   - The same port with another address (0.0.0.0 and 127.0.0.1): both sockets are open for a moment. Linux needs
//     SO_REUSEPORT for that, other systems do not. The new socket opens before the old one closes, so nothing has
//     changed if it cannot be opened.

// Leaving are the sockets that a reload does not use as they are.
type Leaving []*Socket

// controlFunc is net.ListenConfig.Control.
type controlFunc = func(network, address string, c syscall.RawConn) error

// Open opens the socket of a new listener, or takes over one that is leaving.
func (g *Leaving) Open(ctx context.Context, address string, mode configs.FileMode) (_ *Socket, taken bool, _ error) {
	port := portOf(address)
	same := func(s *Socket) bool { return s.configured == address && port != 0 }
	if at := slices.IndexFunc(*g, same); at >= 0 {
		s := (*g)[at]
		*g = slices.Delete(*g, at, at+1)
		return s, true, nil
	}
	s, err := Open(ctx, address, mode)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return s, false, err
	}
	others := slices.DeleteFunc(slices.Clone(*g), func(s *Socket) bool { return port < 0 || portOf(s.Address) != port })
	if len(others) == 0 {
		return nil, false, err
	}
	s, err = openSharingPort(ctx, address, others)
	return s, false, err
}

// portOf returns the port of an address, -1 if it has none (a unix socket) or it is not a number.
func portOf(address string) int {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return -1
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return port
}

// openSharingPort opens a socket on a port that other sockets have, which are about to be closed.
func openSharingPort(ctx context.Context, address string, others []*Socket) (*Socket, error) {
	for _, other := range others {
		defer other.sharePort(false)
		other.sharePort(true)
	}
	s, err := openControlled(ctx, address, 0, func(_, _ string, c syscall.RawConn) error {
		sharePort(c, true)
		return nil
	})
	if err == nil {
		s.sharePort(false)
	}
	return s, err
}

// sharePort sets whether other sockets that also set it may have the same port.
func (s *Socket) sharePort(shared bool) {
	c, ok := s.Listener.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil { // otherwise it is closed
		sharePort(raw, shared)
	}
}
