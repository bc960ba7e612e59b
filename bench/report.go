package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// result is the result of one table of a scenario.
type result struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// Seconds is the duration of the scenario. Of several tables of one scenario, only the
	// first has it.
	Seconds float64  `json:"seconds,omitempty"`
	Lines   []line   `json:"lines"`
	Failed  []string `json:"failed,omitempty"`
}

// line is one metric of one system, with a value for each round.
type line struct {
	System string          `json:"system"`
	Metric string          `json:"metric"`
	Unit   string          `json:"unit,omitempty"`
	Values map[int]float64 `json:"values"` // by round
}

func (r *result) add(system string, round int, metrics []metric) {
	for _, m := range metrics {
		at := slices.IndexFunc(r.Lines, func(l line) bool { return l.System == system && l.Metric == m.name })
		if at < 0 {
			at = len(r.Lines)
			r.Lines = append(r.Lines, line{System: system, Metric: m.name, Unit: m.unit, Values: map[int]float64{}})
		}
		r.Lines[at].Values[round] = m.value
	}
}

// latency returns the latency of a system in a round, and whether there is one.
func (r *result) latency(system string, round int) (v float64, ok bool) {
	return r.value(system, latency, round)
}

// value returns a metric of a system in a round, and whether there is one.
func (r *result) value(system, metric string, round int) (v float64, ok bool) {
	for _, l := range r.Lines {
		if l.System == system && l.Metric == metric {
			v, ok = l.Values[round]
		}
	}
	return v, ok
}

// middle returns the median.
func middle[T int64 | float64 | time.Duration](values []T) T {
	var zero T
	if len(values) == 0 {
		return zero
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func (l *line) all() []float64 {
	var v []float64
	for _, x := range l.Values {
		v = append(v, x)
	}
	return v
}

// basis returns the line to which ratios are given: that of the first system, of the same
// metric.
func (r *result) basis(of *line) *line {
	for i := range r.Lines {
		if l := &r.Lines[i]; l.Metric == of.Metric {
			return l
		}
	}
	return of
}

// ratios returns the ratios to the basis of the same round.
func (l *line) ratios(basis *line) (v []float64) {
	for round, x := range l.Values {
		if y := basis.Values[round]; y != 0 {
			v = append(v, x/y)
		}
	}
	return v
}

func figure(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// spread returns the least and the most value, if there are several.
func spread(v []float64) string {
	if len(v) < 2 {
		return ""
	}
	return fmt.Sprintf(" (%s–%s)", figure(slices.Min(v)), figure(slices.Max(v)))
}

// write writes the results so far.
func write(dir string, quick bool, results []result) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	results = slices.SortedStableFunc(slices.Values(results), func(a, b result) int { return strings.Compare(a.ID, b.ID) })
	var md bytes.Buffer
	fmt.Fprintf(&md, "%s\n", machine(quick))
	for i := range results {
		r := &results[i]
		fmt.Fprintf(&md, "\n**%s** %s\n\n| metric | system | median | ratio |\n|---|---|---|---|\n", r.ID, r.Title)
		for _, name := range r.metrics() {
			for k := range r.Lines {
				l := &r.Lines[k]
				if l.Metric != name {
					continue
				}
				v := l.all()
				ratio := ""
				if basis := r.basis(l); basis != l {
					of := l.ratios(basis)
					ratio = figure(middle(of)) + spread(of)
				}
				fmt.Fprintf(&md, "| %s | %s | %s%s %s | %s |\n", l.Metric, l.System, figure(middle(v)), spread(v), l.Unit, ratio)
			}
		}
		for _, f := range r.Failed {
			fmt.Fprintf(&md, "\nFailed: %s\n", f)
		}
	}
	data, err := json.MarshalIndent(struct {
		Machine string   `json:"machine"`
		Results []result `json:"results"`
	}{machine(quick), results}, "", "  ")
	if err != nil {
		return err
	}
	clients, err := drawCosts(results, "h1", "clients unrelated to the update")
	if err != nil {
		return err
	}
	resources, err := drawCosts(results, "h2", "members of the collection")
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"results.md": md.Bytes(), "results.json": append(data, '\n'),
		"clients.svg": clients, "resources.svg": resources,
	} {
		if text == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// metrics returns the names of the metrics, in order.
func (r *result) metrics() (names []string) {
	for _, l := range r.Lines {
		if !slices.Contains(names, l.Metric) {
			names = append(names, l.Metric)
		}
	}
	return names
}

// machine describes the machine and the versions.
func machine(quick bool) string {
	cpu := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(b)) {
			if name, model, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(model)
				break
			}
		}
	}
	kernel, _ := exec.Command("uname", "-sr").Output()
	versions := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			versions[d.Path] = d.Version
		}
	}
	s := fmt.Sprintf("%d cores of %s, %s, %s, grpc-go %s, go-control-plane %s, %s.", runtime.NumCPU(), cpu, strings.TrimSpace(string(kernel)), runtime.Version(),
		versions["google.golang.org/grpc"], versions["github.com/envoyproxy/go-control-plane"], time.Now().UTC().Format(time.DateOnly))
	if quick {
		s += " A quick run: small numbers, one round."
	}
	return s
}
