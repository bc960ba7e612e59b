package configs

// This file is `listeners[].admit`, which decides whom a listener serves, and `listeners[].relays`.

import (
	"sync"

	"cel.dev/cel-go/cel"

	"github.com/xds-relay/xds-relay/identity"
)

// ofIdentities are the expressions of both. The relay evaluates them before it has read a Node.
var ofIdentities = expressions{sync.OnceValues(func() (*cel.Env, error) {
	identities, err := identity.CELOptions()
	if err != nil {
		return nil, err
	}
	return cel.NewEnv(identities)
}), "identity"}

// compileAdmit prepares Admits.
func (l *Listener) compileAdmit() (err error) {
	l.admit, _, err = ofIdentities.compile(l.Admit, cel.BoolType)
	return err
}

// compileRelays prepares IsRelay.
func (l *Listener) compileRelays() (err error) {
	l.relays, _, err = ofIdentities.compile(l.Relays, cel.BoolType)
	return err
}

// IsRelay reports whether a client is a relay by its identity. If the relay cannot evaluate the expression for the
// client, it is none.
func (l *Listener) IsRelay(id *identity.Identity) bool {
	if l.relays == nil {
		return id.Local
	}
	is, err := evalOver[bool](l.relays, map[string]any{identity.Variable: id})
	return err == nil && is
}

// Admits reports whether the listener serves a client. An error means that the relay cannot
// evaluate the expression for the client, which is then not served.
func (l *Listener) Admits(id *identity.Identity) (bool, error) {
	if l.admit == nil {
		return true, nil
	}
	return evalOver[bool](l.admit, map[string]any{identity.Variable: id})
}
