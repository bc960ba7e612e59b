package relay

import (
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/rollout/gate"
	"github.com/xds-relay/xds-relay/upstream"
	"github.com/xds-relay/xds-relay/upstream/directory"
)

// origin is the source of an authority's resources: its servers, or its directory. Successive configurations share it
// if it has not changed. It is closed when no generation and no scope uses it.
type origin struct {
	authority *configs.Authority
	// fingerprint: two origins with the same one give the same resources in the same way.
	fingerprint string
	node        *corev3.Node // the relay's own, for xdstp names
	counts      *counts
	store       *sharedStore // nil if nothing is stored
	// rollout are the settings of its rollouts, nil without rollouts. They may be older than the newest generation,
	// except for the types.
	rollout   *gate.Options
	servers   []originServer
	directory *directorySource // nil for servers

	uses int // guarded by origins.mu
}

// originServer is a server of an origin. Servers at the same place share a connection.
type originServer struct {
	config *configs.Server
	conn   *sharedConn
	// presence logs when the server is lost and when it answers again.
	presence *upstream.Presence
	// member: it is not a control plane, but another member of the fleet.
	member bool
}

// sharedConn is a connection to a server, with credentials that no other connection uses.
type sharedConn struct {
	connection
	place       place
	credentials *certs.Part
	uses        int // guarded by origins.mu
}

// fingerprintOf returns the fingerprint of an authority's origin.
func fingerprintOf(a *configs.Authority, g *generation) string {
	var types []string
	if a.Rollout != nil {
		types = append([]string{"rollout"}, a.Rollout.Types...)
	}
	var messages string
	if a.Directory != "" || slices.ContainsFunc(a.Servers, func(s configs.Server) bool { return s.Protocol == configs.ProtocolREST }) {
		messages = g.types.Fingerprint() // they decide what can be read
	}
	// The store is identified by the address of its sharedStore.
	return configs.Fingerprint(struct {
		Name      string
		Servers   []configs.Server
		Directory string
		Failover  configs.Failover
		Check     configs.Check
		Rollout   []string
		Node      any
		Store     string
		Messages  string
	}{a.Name, a.Servers, a.Directory, a.Failover, a.Check, types, g.cfg.Node, g.store.fingerprint(), messages})
}

// originOf returns the origin of the authority with an index: the one of the previous generation if it has not
// changed.
func (s *origins) originOf(at int, g *generation, p *parts) (*origin, error) {
	a := &g.cfg.Authorities[at]
	fingerprint := fingerprintOf(a, g)
	if p.before != nil {
		if o := p.before.origins[a.Name]; o != nil && o.fingerprint == fingerprint {
			return s.enter(o), nil
		}
	}
	o := &origin{authority: a, fingerprint: fingerprint, node: g.node, counts: g.counts[a.Name], rollout: g.rollouts[a.Name], uses: 1}
	if a.Directory != "" {
		o.directory = s.openDirectory(o, p.files)
		return o, nil
	}
	o.store = g.store.use()
	for i := range a.Servers {
		server := &a.Servers[i]
		conn, err := s.connect(server)
		if err != nil {
			s.leave(o)
			return nil, g.cfg.Errorf(fmt.Sprintf("authorities[%d].servers[%d]", at, i), "%w", err)
		}
		presence := upstream.NewPresence(server.Address, s.log.With("authority", a.Name))
		if was := p.before.presenceOf(a.Name, peerOf(server)); was != nil {
			presence.Inherit(was)
		}
		o.servers = append(o.servers, originServer{config: server, conn: conn, presence: presence})
	}
	return o, nil
}

// presenceOf returns the Presence of a control plane as a server of an authority, nil if it is not one of its
// servers. Authorities do not share a Presence: resources of another authority may come from elsewhere through the
// control plane, for example if that is a relay. g may be nil.
func (g *generation) presenceOf(authority string, of peer) *upstream.Presence {
	if g == nil || g.origins[authority] == nil {
		return nil
	}
	for _, server := range g.origins[authority].servers {
		if peerOf(server.config) == of {
			return server.presence
		}
	}
	return nil
}

// connect returns the connection to a server, and counts one more use. One goroutine calls it at a time.
func (s *origins) connect(server *configs.Server) (*sharedConn, error) {
	to := placeOf(*server)
	if c := s.connected(to); c != nil {
		return c, nil
	}
	// Do not hold the lock: dial reads files.
	credentials := s.credentials.Part()
	var largeResponse func(bytes int)
	if s.gcTuner != nil {
		largeResponse = s.gcTuner.Expect
	}
	conn, err := dial(*server, credentials, func() bool { return s.makeRoom(to) }, largeResponse)
	if err != nil {
		credentials.Close()
		return nil, err
	}
	c := &sharedConn{connection: conn, place: to, credentials: credentials, uses: 1}
	s.mu.Lock()
	s.conns[to] = c
	s.mu.Unlock()
	return c, nil
}

// connected returns the connection to a place and counts one more use, nil if there is none.
func (s *origins) connected(to place) *sharedConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[to]
	if c != nil {
		c.uses++
	}
	return c
}

// release ends a generation's use of its origins and its store.
func (s *origins) release(g *generation) {
	for _, o := range g.origins {
		s.leave(o)
	}
	g.store.leave()
}

// enter counts one more use of an origin that is in use.
func (s *origins) enter(o *origin) *origin {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.uses++
	return o
}

// leave ends a use of an origin, and closes the origin after its last use.
func (s *origins) leave(o *origin) {
	s.mu.Lock()
	o.uses--
	last := o.uses == 0
	var unused []*sharedConn
	if last {
		for _, server := range o.servers {
			if server.conn.uses--; server.conn.uses == 0 {
				delete(s.conns, server.conn.place)
				unused = append(unused, server.conn)
			}
		}
	}
	s.mu.Unlock()
	if !last {
		return
	}
	for _, c := range unused {
		_ = c.Close() // the only error means that it is closed already
		c.credentials.Close()
	}
	if o.directory != nil {
		o.directory.end()
	}
	o.store.leave()
}

// openDirectory begins to read an authority's directory, or builtIn instead if that is not nil.
func (s *origins) openDirectory(o *origin, builtIn fs.FS) *directorySource {
	var of atomic.Pointer[directory.Source]
	settings := s.guards.settings()
	settings.Waits = func(cache.Key, time.Time, time.Time) (until time.Time) {
		if d := of.Load(); d != nil && d.Unread() {
			until = time.Now().Add(time.Second)
		}
		return until
	}
	a := o.authority
	f := feed.New(feed.Options{Guard: settings, Cache: s.cache, Rollouts: s.rollouts, Rollout: o.rollout, History: s.history.Authority(a.Name), Log: s.log})
	var d *directory.Source
	if builtIn != nil {
		d = directory.NewFS(builtIn, a.Name, f.Link(), s.log)
	} else {
		d = directory.New(a.Directory, a.Name, o.counts.tally, f.Link(), s.log)
	}
	of.Store(d)
	return &directorySource{Source: d, feed: f}
}
