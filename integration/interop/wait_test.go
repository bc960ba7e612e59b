package interop

// Waiting for events.

import (
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// patience is how long a test waits for an event that must happen.
const patience = peers.Patience

// eventually calls try again and again until it returns no error.
func eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	if err := peers.Within(patienceIn(t), try); err != nil {
		t.Fatalf("waited in vain until %s: %v", what, err)
	}
}
