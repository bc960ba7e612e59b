package downstream

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/xds-relay/xds-relay/identity"
)

// Door is the entrance of a listener's clients: it holds the settings for their streams, which can change, and the
// counts of what is open, which stay. A listener whose TLS changes has several servers in turn, which share one Door.
type Door struct {
	newest atomic.Pointer[gate]

	conns      atomic.Int64 // connections
	churn      churn
	streams    atomic.Int64
	turnedAway rate.Sometimes // for log lines about streams that were turned away
	lines      clientLines
	failures   failures
}

// gate holds the limits and settings for the clients of one listener. A gate does not change; the door has the newest.
type gate struct {
	limits      Limits
	perIdentity IdentityLimits
	// responses is the size below which responses are cut; 0 for the server's.
	responses int
	// passes: redirects go to clients unchanged.
	passes bool
	// peers: see ListenerOptions.Peers.
	peers bool
	// secretsForAnyone: clients that have proven no identity may have Secrets.
	secretsForAnyone bool
	// unreachable selects the streams that end when nothing can be served on them.
	unreachable WhenUnreachable
	// identify returns a client's identity; nil if nobody has to prove one.
	identify func(identity.Proof) (*identity.Identity, error)
	// admits returns why the client of an open stream is no longer served; the function is nil if all are.
	admits func(*identity.Identity) error
	// names gives the clients' names their meaning; the function is nil if the Server does.
	names func(context.Context, Client) Names
	// relays reports whether a client is a relay; the function is nil if every client may be one.
	relays func(*identity.Identity) bool
	// expiries may be nil.
	expiries  *Expiries
	admission *admission
	// longPoll is how long a request that is answered once waits for something new.
	longPoll time.Duration
	// prefetch: see ListenerOptions.Prefetch.
	prefetch bool
	door     *Door
}
