package interop

// The comparison of what clients do on each way.

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// slower is how much longer a change may take through the relay, which runs with the race detector, on a busy
// machine. It is shorter than any time that the relay or a client waits before it tries again.
const slower = time.Second

// commonSet is the table of the results for docs/clients.md.
var commonSet = peers.Matrix{Corner: "scenario"}

func init() {
	for _, s := range scenarios {
		commonSet.Rows = append(commonSet.Rows, s.name)
	}
	commonSet.Rows = append(commonSet.Rows, fallback)
	for _, c := range grpcClients {
		commonSet.Columns = append(commonSet.Columns, c.name)
	}
}

// noter records what does not run.
type noter struct{}

var comparisons noter

// note records why a client does not run a scenario.
func (noter) note(scenario, client, reason string) {
	peers.Record(peers.Comparison{Scenario: scenario, Client: client, Result: "n/a: " + reason})
	commonSet.Set(scenario, client, "n/a", reason)
}

// results of a scenario on all ways.
type observations struct {
	mu   sync.Mutex
	rows []string                        // the scenarios in their order
	seen map[string]map[way]*observation // by scenario
}

func (o *observations) record(scenario string, w way, seen observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[scenario] == nil {
		o.rows = append(o.rows, scenario)
		o.seen[scenario] = map[way]*observation{}
	}
	o.seen[scenario][w] = &seen
}

// compare runs a test on ways at the same time, and checks that what it records on each is the same.
func compare(t *testing.T, plane, client string, on []way, run func(t *testing.T, w way, record func(scenario string, seen observation))) {
	t.Helper()
	all := &observations{seen: map[string]map[way]*observation{}}
	var running sync.WaitGroup
	for _, w := range on {
		running.Go(func() {
			t.Run(w.name, func(t *testing.T) {
				run(t, w, func(scenario string, seen observation) { all.record(scenario, w, seen) })
			})
		})
	}
	running.Wait()
	for _, scenario := range all.rows {
		direct := all.seen[scenario][ways[0]]
		var outcomes []string
		for _, w := range on {
			seen := all.seen[scenario][w]
			outcome, err := compareTo(direct, seen, w)
			if err != nil {
				t.Errorf("%s, %s: %v", scenario, w.name, err)
			}
			outcomes = append(outcomes, outcome)
			if w.relayed {
				peers.Record(peers.Comparison{
					Scenario: scenario, Plane: plane, Client: client, Upstream: string(w.form), Result: outcome,
					Direct: direct.duration(), Relay: seen.duration(),
				})
			}
		}
		commonSet.Set(scenario, client, strings.Join(outcomes, " / "), "")
	}
}

// duration returns how long a client took, 0 if nothing was seen or measured.
func (o *observation) duration() time.Duration {
	if o == nil {
		return 0
	}
	return o.took
}

// compareTo compares what a client did with what it did directly.
func compareTo(direct, seen *observation, w way) (outcome string, err error) {
	switch {
	case seen == nil:
		return "FAILED", nil // the scenario has reported why
	case seen.known:
		return "known failure", nil
	case !w.relayed || direct == nil:
		return "ok", nil
	case seen.text != direct.text:
		return "differs", fmt.Errorf("the client did\n%s\ndirectly\n%s", seen.text, direct.text)
	case seen.measured && seen.took > direct.took+slower:
		return "slow", fmt.Errorf("it took %v, directly %v", seen.took, direct.took)
	}
	return "equal", nil
}
