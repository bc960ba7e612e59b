package interop

// Waiting for what is to happen.

import (
	"testing"
	"time"
)

// patience is how long a test waits for what must happen. A test that passes
// never waits that long: it is for machines that are slow and busy.
const patience = time.Minute

// eventually polls until try gives no error: for events without a notification, such as where RPCs go.
func eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	deadline := time.NewTimer(patience)
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
