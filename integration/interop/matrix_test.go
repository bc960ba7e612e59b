package interop

// The outcome of each client with each control plane.

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// matrix is a table of outcomes, with notes on some of them.
type matrix struct {
	mu    sync.Mutex
	cells map[[2]string]string // by control plane and client
	notes []string
}

// results is the table that is printed at the end.
var results = matrix{cells: map[[2]string]string{}}

// set records an outcome. Outcomes with the same reason share a note.
func (m *matrix) set(plane, client, outcome, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if reason != "" {
		note := slices.Index(m.notes, reason)
		if note < 0 {
			note = len(m.notes)
			m.notes = append(m.notes, reason)
		}
		outcome = fmt.Sprintf("%s (%d)", outcome, note+1)
	}
	m.cells[[2]string{plane, client}] = outcome
}

// String returns the table. Its cells without an outcome are "not run".
func (m *matrix) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var text strings.Builder
	fmt.Fprintln(&text, "\nInteroperability through the relay:")
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, c := range clients {
		fmt.Fprintf(table, "\t%s", c.name)
	}
	fmt.Fprintln(table)
	for _, p := range controlPlanes {
		fmt.Fprint(table, p.name)
		for _, c := range clients {
			outcome := m.cells[[2]string{p.name, c.name}]
			if outcome == "" {
				outcome = "not run"
			}
			fmt.Fprintf(table, "\t%s", outcome)
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush()
	for i, note := range m.notes {
		fmt.Fprintf(&text, "(%d) %s\n", i+1, note)
	}
	return text.String()
}

// TestEveryClientMeetsEveryControlPlane checks that each client receives its resources from each control
// plane through the relay, and follows their changes.
func TestEveryClientMeetsEveryControlPlane(t *testing.T) {
	for _, p := range controlPlanes {
		t.Run(p.name, func(t *testing.T) {
			for _, c := range clients {
				t.Run(c.name, func(t *testing.T) {
					if reason := c.without(p); reason != "" {
						results.set(p.name, c.name, "n/a", reason)
						t.Skip(reason)
					}
					t.Parallel()
					// This runs after the relay has ended, so errors at its end count, too.
					t.Cleanup(func() {
						switch {
						case t.Failed():
							results.set(p.name, c.name, "FAILED", "")
						case !t.Skipped() && knownFailures[p.name] == "":
							results.set(p.name, c.name, "ok", p.but)
						}
					})
					if err := c.prepare(); err != nil {
						if os.Getenv("CI") == "true" {
							t.Fatalf("%s cannot run: %v", c.name, err)
						}
						results.set(p.name, c.name, "LEFT OUT", err.Error())
						t.Skipf("%s is skipped: %v", c.name, err)
					}
					if reason := known(t, p.name, func(t testing.TB) { c.run(t, startPlane(t, p)) }); reason != "" && !t.Failed() {
						results.set(p.name, c.name, "KNOWN FAILURE", reason)
					}
				})
			}
		})
	}
}
