package peers

import (
	"testing"
	"time"
)

// Patience is how long a test waits for an event that must happen. It is this long for slow and busy
// machines; a test that passes never waits that long.
const Patience = time.Minute

// Eventually calls try again and again until it returns no error. It is for events without a notification,
// such as requests that reach another backend.
func Eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	if err := Within(Patience, try); err != nil {
		t.Fatalf("waited in vain until %s: %v", what, err)
	}
}

// Within calls try again and again until it returns no error, for so long at most. It returns the last error.
func Within(limit time.Duration, try func() error) error {
	return WithinEvery(10*time.Millisecond, limit, try)
}

// WithinEvery is Within with a pause between the calls.
func WithinEvery(pause, limit time.Duration, try func() error) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			return err
		}
	}
}
