package interop

// The outcome of each client with each control plane.

import (
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// meetings is the table of the outcomes for docs/clients.md.
var meetings = peers.Matrix{Corner: "control plane"}

func init() {
	for _, p := range controlPlanes {
		meetings.Rows = append(meetings.Rows, p.name)
	}
	for _, c := range clients {
		meetings.Columns = append(meetings.Columns, c.name)
	}
}

// TestEveryClientMeetsEveryControlPlane checks that each client receives its resources from each control
// plane through the relay, and follows their changes.
func TestEveryClientMeetsEveryControlPlane(t *testing.T) {
	for _, p := range controlPlanes {
		t.Run(p.name, func(t *testing.T) {
			for _, c := range clients {
				t.Run(c.name, func(t *testing.T) {
					if reason := c.without(p); reason != "" {
						t.Skip(reason)
					}
					t.Parallel()
					outcome := "ok"
					// This runs after the relay has ended, so errors at its end count, too.
					t.Cleanup(func() {
						switch {
						case t.Failed():
							outcome = "FAILED"
						case t.Skipped():
							outcome = "left out"
						default:
							meetings.Set(p.name, c.name, outcome, p.but)
						}
						peers.Record(peers.Comparison{Scenario: "resources change", Plane: p.name, Client: c.name, Upstream: string(p.form), Result: outcome})
					})
					required(t, c.name, c.prepare)
					if known(t, p.name, func(t testing.TB) { c.run(t, startPlane(t, p)) }) != "" {
						outcome = "fails"
					}
				})
			}
		})
	}
}
