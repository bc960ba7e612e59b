package relay

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/sockets"
)

// listenerPlan is one listener as a configuration wants it.
type listenerPlan struct {
	config     *configs.Listener
	listener   *listener // the existing one, or a new one
	isNew      bool
	peers      bool // it is for other members of the fleet
	options    downstream.ListenerOptions
	identities *certs.Part
	// taken says that a new listener takes over the socket of a listener that is gone.
	taken bool
	// server takes the turn of the present server; nil if that stays. socket replaces the socket of a lost listener;
	// nil if the listener keeps its own.
	server *clientServer
	socket *sockets.Socket
}

// onConnections returns a fingerprint of the settings that a connection has from its beginning. A change of them
// needs another server. All other settings apply to the next stream.
func onConnections(l *configs.Listener) string {
	c := *l
	c.JWT, c.Admit, c.Relays, c.Secrets, c.WhenUnreachable, c.Redirects, c.MaxResponseBytes = nil, "", "", "", "", "", 0
	c.Limits = configs.Limits{
		RequestsPerSecond: l.Limits.RequestsPerSecond, RequestBurst: l.Limits.RequestBurst, NameBytes: l.Limits.NameBytes,
		StreamsPerConnection: l.Limits.StreamsPerConnection, StreamsPerSecond: l.Limits.StreamsPerSecond,
		ConnectionsPerSecond: l.Limits.ConnectionsPerSecond,
	}
	return configs.Fingerprint(c)
}

// planListeners opens the sockets of new listeners, or takes them from those that are leaving, and makes the servers
// of changed ones. Nothing that runs changes. It returns all errors, and then leaves nothing open.
func (r *Relay) planListeners(ctx context.Context, cfg *configs.Config, from *sockets.Leaving) (plans []*listenerPlan, errs configs.Errors) {
	left := r.openListeners()
	plan := func(l *configs.Listener, peers bool, key func(string) string) {
		p := &listenerPlan{config: l, peers: peers}
		at := slices.IndexFunc(left, func(of *listener) bool { return of.config.Address == l.Address && of.peers == peers })
		if at >= 0 {
			p.listener = left[at]
			left = slices.Delete(slices.Clone(left), at, at+1)
		}
		if err := r.planListener(ctx, cfg, p, from); err != nil {
			errs = append(errs, cfg.Errorf(key(err.key), "%w", err.err))
			return
		}
		plans = append(plans, p)
	}
	for i := range cfg.Listeners {
		plan(&cfg.Listeners[i], false, func(key string) string { return fmt.Sprintf("listeners[%d]", i) + key })
	}
	if l := cfg.PeersListener(); l != nil {
		plan(l, true, func(key string) string { return "fleet" + strings.Replace(key, ".address", ".listen", 1) })
	}
	if len(errs) > 0 {
		undoListeners(plans)
		return nil, errs
	}
	return plans, nil
}

// keyError is the error of a key, whose name is relative to the listener's.
type keyError struct {
	key string
	err error
}

func (r *Relay) planListener(ctx context.Context, cfg *configs.Config, p *listenerPlan, from *sockets.Leaving) *keyError {
	l := p.config
	if p.listener == nil {
		s, taken, err := from.Open(ctx, l.Address, l.Mode)
		if err != nil {
			return &keyError{".address", err}
		}
		p.isNew, p.taken = true, taken
		p.listener = &listener{peers: p.peers, socket: s, address: s.Address, expiries: new(downstream.Expiries), config: l, before: map[*clientServer]struct{}{}}
	}
	p.options = r.listenerOptions(cfg, l)
	if l.TLS != nil {
		p.options.Expiries = p.listener.expiries
	}
	if p.options.Admits = admits(l); p.peers {
		p.options.Admits = admitsPeer(cfg.Fleet.TLS)
	}
	p.identities = r.credentials.Part()
	var err error
	if p.options.Identify, err = r.identify(l, p.identities); err != nil {
		undoListeners([]*listenerPlan{p})
		return &keyError{".jwt", err}
	}
	if p.isNew {
		p.listener.door = downstream.NewDoor(p.options)
	}
	p.options.Door = p.listener.door
	if p.peers {
		p.options.Identify, p.options.Names = identifyPeer(cfg.Fleet.TLS), peersDoor{r, p.listener.door}.names
		p.options.Relays, p.options.Peers = nil, true // members say the truth
	}
	on := p.listener.socket
	switch lost := p.listener.isLost(); {
	case lost != nil:
		if p.socket, err = sockets.Open(ctx, p.listener.address, l.Mode); err != nil {
			return nil // it stays lost: that does not make the configuration invalid
		}
		on = p.socket
	case !p.isNew && p.listener.serves(l):
		return nil
	}
	if p.server, err = r.newServer(l, on, p.options, p.peers); err != nil {
		undoListeners([]*listenerPlan{p})
		return &keyError{".tls", err}
	}
	return nil
}

// serves reports whether the present server fits a configuration.
func (l *listener) serves(config *configs.Listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return onConnections(l.config) == onConnections(config)
}

// undoListeners closes everything that planListeners opened.
func undoListeners(plans []*listenerPlan) {
	for _, p := range plans {
		p.identities.Close()
		if p.server != nil {
			p.server.stop()
			p.server.credentials.Close()
		}
		if p.isNew && !p.taken {
			_ = p.listener.socket.Close() // no one uses it
		}
		if p.socket != nil {
			_ = p.socket.Close() // no one uses it
		}
	}
}

// commitListeners makes the listeners those of the plans, and returns those that are gone.
func (r *Relay) commitListeners(plans []*listenerPlan) (gone []*listener) {
	var all []*listener
	for _, p := range plans {
		r.commitListener(p)
		all = append(all, p.listener)
	}
	r.listening.Lock()
	defer r.listening.Unlock()
	for _, l := range r.listeners {
		if !slices.Contains(all, l) {
			gone = append(gone, l)
		}
	}
	r.listeners = all
	if r.running != nil {
		for _, p := range plans {
			if p.server != nil {
				r.serve(r.running, p.listener, p.server)
			}
		}
	}
	return gone
}

// commitListener applies a listener's plan. Its new server does not serve yet.
func (r *Relay) commitListener(p *listenerPlan) {
	l := p.listener
	l.mu.Lock()
	before, mode := l.identities, l.config.Mode
	l.config, l.identities = p.config, p.identities
	if p.socket != nil {
		l.socket, l.lost = p.socket, nil
	}
	server := l.server
	l.mu.Unlock()
	l.door.Set(p.options)
	if before != nil {
		before.Close()
	}
	if p.taken || mode != p.config.Mode {
		r.changeMode(p.config.Address, p.config.Mode)
	}
	switch {
	case p.server != nil:
		l.replaceServer(r.endings, p.server, r.now().cfg.Drain.Time)
	case server != nil:
		server.socket.SetConnections(p.options.Limits.Connections)
	}
}

// changeMode changes the permissions of an open unix socket.
func (r *Relay) changeMode(address string, mode configs.FileMode) {
	path, unix := configs.UnixPath(address)
	if !unix {
		return
	}
	if err := os.Chmod(path, os.FileMode(mode)); err != nil {
		r.log.Error("the mode of a listener's socket could not be changed", "address", address, "reason", err)
	}
}

// openListeners returns the client listeners, in the order of the configuration.
func (r *Relay) openListeners() []*listener {
	r.listening.Lock()
	defer r.listening.Unlock()
	return slices.Clone(r.listeners)
}
