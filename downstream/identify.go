package downstream

import (
	"context"
	"errors"

	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/identity"
)

// Identifying clients, and refusing them for their identity. This happens before anything of a request is read.

// identify returns the identity of the client whose call has that context. The error is the one with which the call
// ends.
func (s *Server) identify(ctx context.Context, g *gate) (*identity.Identity, error) {
	if g.identify == nil {
		p, _ := peer.FromContext(ctx)
		return identity.Anonymous(p), nil
	}
	id, err := g.identify(identity.ProofOf(ctx))
	if err != nil {
		s.noteRefusedClient(ctx, g, err)
		return nil, err
	}
	return id, nil
}

// Caller returns the identity of the caller of another service of a listener, and whether the listener gives Secrets to
// anyone. The error is the one with which the call ends.
func (s *Server) Caller(ctx context.Context, d *Door) (id *identity.Identity, secretsForAnyone bool, err error) {
	g := d.newest.Load()
	id, err = s.identify(ctx, g)
	return id, g.secretsForAnyone, err
}

func (s *Server) noteRefusedClient(ctx context.Context, g *gate, err error) {
	refused := &identity.RefusedError{}
	if !errors.As(err, &refused) {
		return // nothing makes other errors
	}
	s.stats.clientsRefused[refused.Reason].Add(1)
	s.slowDown(ctx, nil)
	if refused.Reason == identity.CertificateExpired {
		sendAway(ctx)
	}
	if log, ok := g.line(eventClientRefused, s.options.Log.With("client", addressOf(ctx))); ok {
		log.Warn("client is refused because of its identity", "refused", refused.Reason.String(), "reason", refused.Detail)
	}
}
