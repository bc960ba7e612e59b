package interop

// What does not work yet.

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

// unacknowledged is why some tests fail without the relay.
const unacknowledged = "grpc-java does not acknowledge every response while it has names that java-control-plane does not know, or after it has " +
	"given names up, and java-control-plane then sends nothing any more"

// knownFailures has the tests that fail, by name, and the reason. They run all the same. A test that passes has to
// leave the table.
var knownFailures = map[string]string{
	"a requested shop comes, direct":        unacknowledged,
	"a shop goes, direct":                   unacknowledged,
	"names linger, direct":                  unacknowledged,
	"names come back, direct":               unacknowledged,
	"restart with less than before, direct": unacknowledged,
}

// known runs a test. If the table has its name, the test has to fail, and known returns the reason.
func known(t testing.TB, name string, run func(testing.TB)) (reason string) {
	t.Helper()
	reason = knownFailures[name]
	if reason == "" {
		run(t)
		return ""
	}
	if failure := try(t, run); failure != "" {
		t.Logf("a known failure: %s: %s", reason, failure)
	} else {
		t.Errorf("%s passes. Remove it from knownFailures", name)
	}
	return reason
}

// trial is a test whose failure does not fail the test around it.
type trial struct {
	testing.TB

	mu      sync.Mutex
	over    bool // what fails now, fails the test around it
	failure string
}

// shortPatience is how long a test waits that is known to wait in vain.
const shortPatience = 5 * time.Second

// try runs a test, and returns its first failure, or "" if it passes.
func try(t testing.TB, run func(testing.TB)) string {
	t.Helper()
	tr := &trial{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(tr)
	}()
	<-done
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.over = true
	return tr.failure
}

// fail records a failure, and returns false if the trial is over.
func (t *trial) fail(failure string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	if t.failure == "" {
		t.failure = failure
	}
	return true
}

// Error implements testing.TB, as the methods after it.
func (t *trial) Error(args ...any) {
	t.TB.Helper()
	if !t.fail(fmt.Sprint(args...)) {
		t.TB.Error(args...)
	}
}

func (t *trial) Errorf(format string, args ...any) {
	t.TB.Helper()
	t.Error(fmt.Sprintf(format, args...))
}

func (t *trial) Fatal(args ...any) {
	t.TB.Helper()
	t.Error(args...)
	runtime.Goexit()
}

func (t *trial) Fatalf(format string, args ...any) {
	t.TB.Helper()
	t.Fatal(fmt.Sprintf(format, args...))
}

// patienceIn returns how long a test waits for an event.
func patienceIn(t testing.TB) time.Duration {
	if _, ok := t.(*trial); ok {
		return shortPatience
	}
	return patience
}
