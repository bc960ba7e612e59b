package relay

// Who the clients of a listener are, and which of them it serves.

import (
	"fmt"
	"time"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/loglines"
)

// identifier identifies the clients of a listener.
type identifier struct {
	listener *configs.Listener
}

// newIdentifier returns downstream.ListenerOptions.Identify for a listener: nil if its clients
// cannot prove anything.
func newIdentifier(l *configs.Listener) func(identity.Proof) (*identity.Identity, error) {
	_, unix := configs.UnixPath(l.Address)
	if l.TLS == nil && !unix && l.Admit == "" {
		return nil
	}
	return (&identifier{listener: l}).identify
}

func (i *identifier) identify(p identity.Proof) (*identity.Identity, error) {
	id := p.Connection()
	if now := time.Now(); id.Expired(now) {
		return nil, &identity.RefusedError{
			Reason:  identity.CertificateExpired,
			Message: "the client's certificate has expired (want a new connection, with a new certificate)",
			Detail:  fmt.Sprintf("the certificate of %s expired at %s, and the client opens streams on the connection on which it has shown it", id, id.Expires.UTC().Format(time.RFC3339)),
		}
	}
	return i.admit(id)
}

// admit refuses clients that `admit` does not let in.
func (i *identifier) admit(id *identity.Identity) (*identity.Identity, error) {
	const message = "this listener does not serve the client (its configuration has `admit`, which decides by identity)"
	admits, err := i.listener.Admits(id)
	switch {
	case err != nil:
		return nil, &identity.RefusedError{
			Reason: identity.AdmitFailed, Message: message,
			Detail: fmt.Sprintf("`admit` cannot be evaluated for %s: %s", id, loglines.Clip(err.Error())),
		}
	case !admits:
		return nil, &identity.RefusedError{Reason: identity.NotAdmitted, Message: message, Detail: fmt.Sprintf("`admit` is false for %s", id)}
	}
	return id, nil
}
