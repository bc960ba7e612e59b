package relay

import (
	"slices"

	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
)

// Which control plane is believed in what it says of which authority: it is believed in
// the names of all authorities that it serves. A relay behind this one may serve several.

// peer is who answers at a server's address: servers with the same address and the same
// credentials are one peer, however they are asked.
type peer struct {
	address string
	secure  bool
	tls     configs.ServerTLS
}

func peerOf(s *configs.Server) peer {
	if s.TLS == nil {
		return peer{address: s.Address}
	}
	return peer{address: s.Address, secure: true, tls: *s.TLS}
}

// speaks says whether a server is one of an authority's.
func speaks(router *authority.Router, server *configs.Server, name string) bool {
	a, ok := router.Source(cache.Scope{Authority: name})
	return ok && serves(peerOf(server), a)
}

func serves(p peer, a *configs.Authority) bool {
	return slices.ContainsFunc(a.Servers, func(s configs.Server) bool { return peerOf(&s) == p })
}

// Speaks says whether whatever serves an authority serves another one too, so that it is
// believed in the other's names: collections.Options.Speaks.
func (n leafNames) Speaks(name, other string) bool {
	a, ok := n.router.Source(cache.Scope{Authority: name})
	b, known := n.router.Source(cache.Scope{Authority: other})
	switch {
	case !ok || !known:
		return false
	case a.Directory != "":
		return a.Directory == b.Directory
	}
	return !slices.ContainsFunc(a.Servers, func(s configs.Server) bool { return !serves(peerOf(&s), b) })
}
