package relay

// Identification and admission of a listener's clients.

import (
	"errors"
	"fmt"
	"time"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/identity/tokens"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// identifier identifies the clients of a listener.
type identifier struct {
	listener *configs.Listener
	// ends: a stream ends when its client's certificate expires.
	ends     bool
	verifier *tokens.Verifier // nil if the listener does not use tokens
}

// identify returns downstream.ListenerOptions.Identify for a listener, nil if its clients have no way to prove an
// identity.
func (r *Relay) identify(l *configs.Listener, part *certs.Part) (func(identity.Proof) (*identity.Identity, error), error) {
	verifier, err := r.verifier(l, part)
	if err != nil {
		return nil, err
	}
	if _, unix := configs.UnixPath(l.Address); l.TLS == nil && !unix && verifier == nil && l.Admit == "" {
		return nil, nil
	}
	i := &identifier{listener: l, ends: l.TLS != nil && l.TLS.EndStreamsAtExpiry, verifier: verifier}
	return i.identify, nil
}

// admits returns downstream.ListenerOptions.Admits for a listener, nil if it admits everyone.
func admits(l *configs.Listener) func(*identity.Identity) error {
	if l.Admit == "" {
		return nil
	}
	i := &identifier{listener: l}
	return func(id *identity.Identity) error {
		_, err := i.admit(id)
		return err
	}
}

func (i *identifier) identify(p identity.Proof) (*identity.Identity, error) {
	id, now := p.Connection(), time.Now()
	if id.Expired(now) {
		return nil, &identity.RefusedError{
			Reason:  identity.CertificateExpired,
			Message: identity.CertificateExpired.Ended(),
			Detail:  fmt.Sprintf("the certificate of %s expired at %s, and its connection is older", id, id.Expires.UTC().Format(time.RFC3339)),
		}
	}
	if i.ends {
		id.EndWithCertificate(now)
	}
	if err := i.addToken(id, p, now); err != nil {
		return nil, err
	}
	return i.admit(id)
}

// addToken adds what the client's token proves to id, if the client sends a token.
func (i *identifier) addToken(id *identity.Identity, p identity.Proof, now time.Time) error {
	if i.verifier == nil {
		return nil
	}
	text, err := p.Token()
	switch {
	case err != nil:
		return err
	case text == "" && i.listener.JWT.Required:
		return &identity.RefusedError{
			Reason:  identity.NoToken,
			Message: "this listener requires a token (want authorization: Bearer TOKEN)",
			Detail:  fmt.Sprintf("%s has sent no token", id),
		}
	case text == "":
		return nil
	}
	token, err := i.verifier.Verify(text)
	switch {
	case errors.Is(err, tokens.ErrNoKeys):
		return &identity.RefusedError{Reason: identity.NoKeys, Message: "the relay cannot verify the token now: " + err.Error(), Detail: err.Error()}
	case err != nil:
		return &identity.RefusedError{Reason: identity.InvalidToken, Message: err.Error(), Detail: err.Error()}
	}
	id.AddToken(token, i.listener.JWT.Grace, now)
	return nil
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
