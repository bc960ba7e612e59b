package relay

import (
	"slices"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
)

// Which authorities a control plane may speak for: those that it serves by the configuration. A control plane that is
// a relay may serve several.

// peer identifies a control plane: servers with the same address and the same credentials
// are one peer, whatever protocol they speak.
type peer struct {
	address string
	secure  bool
	tls     configs.ServerTLS
	token   string // the file of the token
}

func peerOf(s *configs.Server) peer {
	if s.TLS == nil {
		return peer{address: s.Address}
	}
	return peer{address: s.Address, secure: true, tls: *s.TLS, token: s.TokenFile}
}

// speaks reports whether a server is one of the servers of an authority.
func speaks(router *authority.Router, server *configs.Server, name string) bool {
	a, ok := router.Source(cache.Scope{Authority: name})
	return ok && serves(peerOf(server), a)
}

// speaks reports whether what the server gives of an origin may have the names of an authority. A member of the fleet
// gives what it has from the origin's servers.
func (to originServer) speaks(router *authority.Router, of *origin, name string) bool {
	if !to.member {
		return speaks(router, to.config, name)
	}
	return slices.ContainsFunc(of.servers, func(s originServer) bool { return speaks(router, s.config, name) })
}

func serves(p peer, a *configs.Authority) bool {
	return slices.ContainsFunc(a.Servers, func(s configs.Server) bool { return peerOf(&s) == p })
}
