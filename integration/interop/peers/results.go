package peers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Comparison is what a client did in a scenario behind the relay, compared with what it did connected directly.
type Comparison struct {
	Scenario, Plane, Client   string
	Upstream                  string        // the form in which the relay speaks to the control plane
	Result                    string        // "equal", or what differs
	Direct, Relay             time.Duration // how long it took, 0 if it was not measured
	DirectFailed, RelayFailed string        // requests, if the scenario counts them
}

// compared has the comparisons of all tests.
var compared comparisonTable

type comparisonTable struct {
	mu   sync.Mutex
	rows []Comparison
}

// Record adds a comparison to the table that Main prints, unless the table has it. It may be called concurrently.
func Record(c Comparison) {
	compared.mu.Lock()
	defer compared.mu.Unlock()
	if !slices.Contains(compared.rows, c) {
		compared.rows = append(compared.rows, c)
	}
}

// print prints the table, with the rows that an earlier run has left in a file, and leaves all in it. An empty name is
// no file.
func (t *comparisonTable) print(file string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var earlier []Comparison
		if len(text) > 0 {
			err = json.Unmarshal(text, &earlier)
		}
		if err != nil {
			return err
		}
		t.rows = append(earlier, t.rows...)
		if text, err = json.Marshal(t.rows); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
	}
	if len(t.rows) == 0 {
		return nil
	}
	slices.SortStableFunc(t.rows, func(a, b Comparison) int {
		return cmp.Or(cmp.Compare(a.Scenario, b.Scenario), cmp.Compare(a.Plane, b.Plane), cmp.Compare(a.Client, b.Client), cmp.Compare(a.Upstream, b.Upstream))
	})
	fmt.Fprintln(os.Stdout, "\nClients behind the relay, compared with clients connected directly (times: until the client follows a change):")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tcontrol plane\tclient\tupstream\tresult\tdirect\trelay\tfailed directly\tfailed with the relay")
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Scenario, r.Plane, r.Client, r.Upstream, r.Result,
			inMilliseconds(r.Direct), inMilliseconds(r.Relay), r.DirectFailed, r.RelayFailed)
	}
	return w.Flush()
}

func inMilliseconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
}

// Matrix is a table of the page, with an outcome for each row and column, and with notes.
type Matrix struct {
	Corner  string // the heading of the rows
	Columns []string
	Rows    []string // nil: those that have an outcome, sorted

	mu    sync.Mutex
	cells map[[2]string]cell
}

type cell struct{ outcome, reason string }

// Set records an outcome in a cell that the table has, and the reason for it if that needs a note. Of several outcomes
// of a cell, one with a reason remains. Set may be called concurrently.
func (m *Matrix) Set(row, column, outcome, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cells == nil {
		m.cells = map[[2]string]cell{}
	}
	at := [2]string{row, column}
	if m.Rows != nil && !slices.Contains(m.Rows, row) || m.cells[at].reason != "" {
		return
	}
	m.cells[at] = cell{outcome, reason}
}

// Complete returns an error if a cell has no outcome.
func (m *Matrix) Complete() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, row := range m.Rows {
		for _, column := range m.Columns {
			if m.cells[[2]string{row, column}].outcome == "" {
				return fmt.Errorf("%s with %s has not run", row, column)
			}
		}
	}
	return nil
}

// Markdown returns the table. label returns the heading of a row or a column.
func (m *Matrix) Markdown(label func(string) string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows := m.Rows
	if rows == nil {
		for at := range m.cells {
			if !slices.Contains(rows, at[0]) {
				rows = append(rows, at[0])
			}
		}
		slices.Sort(rows)
	}
	var reasons []string
	note := func(reason string) string {
		if reason == "" {
			return ""
		}
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
		return fmt.Sprintf(" (%d)", slices.Index(reasons, reason)+1)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "| %s |", m.Corner)
	for _, column := range m.Columns {
		fmt.Fprintf(&text, " %s |", label(column))
	}
	fmt.Fprint(&text, "\n|---|", strings.Repeat("---|", len(m.Columns)), "\n")
	for _, row := range rows {
		fmt.Fprintf(&text, "| %s |", label(row))
		for _, column := range m.Columns {
			c := m.cells[[2]string{row, column}]
			fmt.Fprintf(&text, " %s%s |", c.outcome, note(c.reason))
		}
		fmt.Fprintln(&text)
	}
	for i, reason := range reasons {
		fmt.Fprintf(&text, "\n(%d) %s.\n", i+1, reason)
	}
	return text.String()
}
