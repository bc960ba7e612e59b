package interop

// The comparison of what clients do on each way, and the table of its results.

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// slower is how much longer a change may take through the relay, which runs with the race detector, on a busy
// machine. It is shorter than any time that the relay or a client waits before it tries again.
const slower = time.Second

// comparison is the table of what clients did on each way.
type comparison struct {
	mu    sync.Mutex
	rows  []comparisonRow
	notes []string
}

// comparisonRow is a row of the table, with a cell for each way.
type comparisonRow struct {
	scenario, client, plane string
	cells                   []string
}

// comparisons is the table that is printed at the end.
var comparisons comparison

func (c *comparison) add(r comparisonRow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows = append(c.rows, r)
}

// note records why a client does not run a scenario.
func (c *comparison) note(scenario, client, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	note := fmt.Sprintf("n/a: %s with %s: %s", scenario, client, reason)
	if !slices.Contains(c.notes, note) {
		c.notes = append(c.notes, note)
	}
}

// String returns the table, or nothing if it has no rows.
func (c *comparison) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rows) == 0 {
		return ""
	}
	var text strings.Builder
	fmt.Fprintln(&text, "\nClients directly and through the relay:")
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "scenario\tclient\tcontrol plane")
	for _, w := range ways {
		fmt.Fprintf(table, "\t%s", w.name)
	}
	fmt.Fprintln(table)
	for _, r := range c.rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.scenario, r.client, r.plane, strings.Join(r.cells, "\t"))
	}
	_ = table.Flush()
	for _, note := range c.notes {
		fmt.Fprintln(&text, note)
	}
	return text.String()
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
		row := comparisonRow{scenario, client, plane, nil}
		direct := all.seen[scenario][ways[0]]
		for _, w := range ways {
			if !slices.Contains(on, w) {
				row.cells = append(row.cells, "n/a")
				continue
			}
			cell, err := compareTo(direct, all.seen[scenario][w], w)
			if err != nil {
				t.Errorf("%s, %s: %v", scenario, w.name, err)
			}
			row.cells = append(row.cells, cell)
		}
		comparisons.add(row)
	}
}

// compareTo compares what a client did with what it did directly, and returns the cell of the table.
func compareTo(direct, seen *observation, w way) (cell string, err error) {
	if seen == nil {
		return "FAILED", nil // the scenario has reported why
	}
	took := ""
	if seen.took > 0 {
		took = fmt.Sprintf(" %.1f ms", seen.took.Seconds()*1000)
	}
	switch {
	case seen.known:
		return "KNOWN FAILURE", nil
	case !w.relayed || direct == nil:
		return "ok" + took, nil
	case seen.text != direct.text:
		return "DIFFERS" + took, fmt.Errorf("the client did\n%s\ndirectly\n%s", seen.text, direct.text)
	case seen.measured && seen.took > direct.took+slower:
		return "SLOW" + took, fmt.Errorf("it took %v, directly %v", seen.took, direct.took)
	}
	return "equal" + took, nil
}
