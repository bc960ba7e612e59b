package downstream

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/xds-relay/xds-relay/identity"
)

// Door is where the clients of a listener come in. The settings for their streams can change, and the
// counts of what is open stay. A listener whose TLS changes has several servers one after the other;
// all of them have one Door.
type Door struct {
	newest atomic.Pointer[gate]

	conns      atomic.Int64 // connections
	churn      churn
	streams    atomic.Int64
	turnedAway rate.Sometimes // of those that were turned away
	lines      clientLines
}

// gate holds the clients of one listener to its limits. It does not change; the door has the newest.
type gate struct {
	limits      Limits
	perIdentity IdentityLimits
	// responses is the size below which responses are cut; 0 for the server's.
	responses int
	// passes: redirects go to clients as they are.
	passes bool
	// secretsForAnyone: clients that have proven nothing may have Secrets.
	secretsForAnyone bool
	// unreachable: which streams end on which nothing can be served.
	unreachable WhenUnreachable
	// identify says who a client is; nil where nobody has to prove anything.
	identify func(identity.Proof) (*identity.Identity, error)
	// admits says whether the client of an open stream is still served; nil if all are.
	admits func(*identity.Identity) error
	// expiries may be nil.
	expiries  *Expiries
	admission *admission
	// longPoll is how long a request that is answered once waits.
	longPoll time.Duration
	// prefetch: see ListenerOptions.Prefetch.
	prefetch bool
	door     *Door
}
