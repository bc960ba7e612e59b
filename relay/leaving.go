package relay

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"syscall"

	"github.com/xds-relay/xds-relay/configs"
)

// Sockets that a reload has no use for as they are. They accept connections until it is made, and something of the new
// configuration may need their address or their port:
//
//   - The same address, for a listener of another kind: it takes the open socket over. So an admin listener and a
//     clients' listener can swap their ports, and no connection is refused meanwhile.
//   - The same port, under another address (0.0.0.0 and 127.0.0.1): for a moment both sockets are open, on Linux by
//     SO_REUSEPORT. Other systems allow that without. So the new one is open before the old one is closed, and if it
//     cannot be opened, nothing has changed.

// leaving are such sockets.
type leaving []*socket

// controlFunc is net.ListenConfig.Control.
type controlFunc = func(network, address string, c syscall.RawConn) error

// leavingSockets returns the sockets that nothing has by a configuration which has them now. One that was lost is
// closed.
func (r *Relay) leavingSockets(cfg *configs.Config) *leaving {
	stays := map[string]int{}
	for i := range cfg.Listeners {
		stays[cfg.Listeners[i].Address]++
	}
	var all leaving
	for _, l := range r.openListeners() {
		at := l.config.Address
		if stays[at]--; stays[at] < 0 && l.isLost() == nil {
			all = append(all, l.socket)
		}
	}
	if o := r.theOperator(); o != nil && o.config.Address != cfg.Admin.Address && r.lostOperator() == nil {
		all = append(all, o.sockets)
	}
	return &all
}

// open opens a socket of a new listener, or takes one that is leaving.
func (g *leaving) open(ctx context.Context, address string, mode configs.FileMode) (_ *socket, taken bool, _ error) {
	port := portOf(address)
	same := func(s *socket) bool { return s.configured == address && port != 0 }
	if at := slices.IndexFunc(*g, same); at >= 0 {
		s := (*g)[at]
		*g = slices.Delete(*g, at, at+1)
		return s, true, nil
	}
	s, err := openTurns(ctx, address, mode)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return s, false, err
	}
	others := slices.DeleteFunc(slices.Clone(*g), func(s *socket) bool { return port < 0 || portOf(s.address) != port })
	if len(others) == 0 {
		return nil, false, err
	}
	s, err = openBeside(ctx, address, others)
	return s, false, err
}

// portOf returns the port of an address: -1 of one that has none, as a unix socket, or that is not a number.
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

// openBeside opens a socket whose port others have, which are about to be closed.
func openBeside(ctx context.Context, address string, others []*socket) (*socket, error) {
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

// sharePort says whether the socket lets others have its port that say the same.
func (s *socket) sharePort(shared bool) {
	c, ok := s.Listener.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil { // otherwise it is closed
		sharePort(raw, shared)
	}
}

// closeGone closes the sockets of the listeners that are gone, also of the admin listener, unless others have taken
// them. They are closed now, as a later reload may open them again.
func (r *Relay) closeGone(gone []*listener, p *planned) {
	before, taken := r.theOperator(), false
	for _, l := range p.listeners {
		taken = taken || before != nil && l.listener.socket == before.sockets
	}
	r.commitOperator(p.operator, taken)
	for _, l := range gone {
		s := l.giveUp()
		has := func(of *listenerPlan) bool { return of.listener.socket == s }
		if s != nil && !slices.ContainsFunc(p.listeners, has) && (p.operator == nil || p.operator.sockets != s) {
			_ = s.Close() // it may be closed already
		}
	}
}
