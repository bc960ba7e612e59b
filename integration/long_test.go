package integration

import "testing"

// long skips a test with -short, as make test runs the tests. why says what takes long, and which tests have the rule
// nevertheless.
func long(t *testing.T, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip(why + "; without -short it runs (make test-all)")
	}
}

// inShort returns n, and m with -short: fewer repetitions, by which a fault shows less surely, or less load.
func inShort(n, m int) int {
	if testing.Short() {
		return m
	}
	return n
}
