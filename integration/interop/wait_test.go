package interop

// Waiting for events.

import (
	"testing"
	"time"
)

// patience is how long a test waits for an event that must happen. It is this long for slow and busy
// machines; a test that passes never waits that long.
const patience = time.Minute

// eventually calls try again and again until it returns no error. It is for events without a notification,
// such as RPCs that reach another backend.
func eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	deadline := time.NewTimer(patienceIn(t))
	defer deadline.Stop()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("waited in vain until %s: %v", what, err)
		}
	}
}
