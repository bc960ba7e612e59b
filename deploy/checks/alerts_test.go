package checks

// When each alert fires, and when it ends, by Prometheus' own evaluation of the rules.

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

// TestAlertsFireAndEnd plays the transcripts in testdata/alerts. Two relays, a and b, are scraped once a minute, and the
// rules are evaluated once a minute. The directives are:
//
//	well
//	  First: the series of two relays with which all is well. Each alert must find its metrics among them.
//
//	alerts [for=60] [restarted]
//	  Series that are different, of the relay a if they do not say otherwise. The last value of a series stays, for so many
//	  minutes. With restarted, the other counters of the relay a are 0. It prints each alert that fires: from which minute to
//	  which, its labels and its summary.
//
// Series are as in Prometheus' own tests: `0x9 1x4` is 0 in the first ten minutes, then 1 for five. `_` is a scrape without the
// series, `stale` the first one.
func TestAlertsFireAndEnd(t *testing.T) {
	p := &alertPlay{fired: map[string]bool{}}
	datadriven.RunTest(t, "testdata/alerts/all_is_well.txt", p.run)
	datadriven.Walk(t, "testdata/alerts", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, "/all_is_well.txt") {
			datadriven.RunTest(t, path, p.run)
		}
	})
	for _, rule := range readRules(t) {
		if !p.fired[rule.Alert] {
			t.Errorf("no transcript has a case in which %s fires", rule.Alert)
		}
		for _, name := range metricsOf(t, rule.Expr) {
			if !slices.ContainsFunc(p.well, func(s series) bool { return s.labels.Get(model.MetricNameLabel) == name }) {
				t.Errorf("all_is_well.txt does not show that %s stays silent: it lacks %s", rule.Alert, name)
			}
		}
	}
}

func metricsOf(t *testing.T, expression string) (names []string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		t.Fatal(err)
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if selector, ok := n.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	return names
}

type alertPlay struct {
	well  []series
	fired map[string]bool
}

// series is a time series with a value for each minute.
type series struct {
	labels labels.Labels
	values []parser.SequenceValue
}

// parseSeries parses lines of series, as series of each of the relays if they do not say of which.
func parseSeries(t *testing.T, d *datadriven.TestData, relays ...string) (all []series) {
	t.Helper()
	for line := range strings.Lines(d.Input) {
		id, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(strings.TrimSpace(line))
		if err != nil {
			t.Fatalf("%s: %s: %v", d.Pos, line, err)
		}
		named := relays
		if relay := id.Get("instance"); relay != "" {
			named = []string{relay}
		}
		for _, relay := range named {
			all = append(all, series{labels.NewBuilder(id).Set("job", "relays").Set("instance", relay).Labels(), values})
		}
	}
	return all
}

// load returns the line that loads the series, up to a minute.
func (s *series) load(last int) string {
	line := "  " + s.labels.String()
	for i := range last + 1 {
		switch v := s.values[min(i, len(s.values)-1)]; {
		case v.Omitted:
			line += " _"
		case value.IsStaleNaN(v.Value) && i >= len(s.values):
			line += " _"
		case value.IsStaleNaN(v.Value):
			line += " stale"
		default:
			line += " " + strconv.FormatFloat(v.Value, 'g', -1, 64)
		}
	}
	return line
}

func (p *alertPlay) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	minutes := 60
	d.MaybeScanArgs(t, "for", &minutes)
	switch d.Cmd {
	case "well":
		p.well = parseSeries(t, d, "a", "b")
		return p.play(t, p.well, 240)
	case "alerts":
		all := slices.Clone(p.well)
		for i, s := range all {
			if d.HasArg("restarted") && s.labels.Get("instance") == "a" && strings.HasSuffix(s.labels.Get(model.MetricNameLabel), "_total") {
				all[i].values = []parser.SequenceValue{{Value: 0}}
			}
		}
		for _, s := range parseSeries(t, d, "a") {
			i := slices.IndexFunc(all, func(other series) bool { return labels.Equal(other.labels, s.labels) })
			if i < 0 {
				all = append(all, s)
			} else {
				all[i] = s
			}
		}
		return p.play(t, all, minutes)
	}
	t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
	return ""
}

// firing is a time in which an alert fires.
type firing struct {
	from, to int // minutes
	text     string
}

// play returns the alerts that fire.
func (p *alertPlay) play(t *testing.T, all []series, last int) string {
	t.Helper()
	load := "load 1m\n"
	for _, s := range all {
		load += s.load(last) + "\n"
	}
	prometheus, err := promqltest.NewLazyLoader(load, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := prometheus.Close(); err != nil {
			t.Error(err)
		}
	}()
	prometheus.SubqueryInterval = time.Minute
	groups, errs := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:  rules.EngineQueryFunc(prometheus.QueryEngine(), prometheus.Storage()),
		Appendable: prometheus.Storage(), Queryable: prometheus.Storage(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger:     slog.New(slog.DiscardHandler), Parser: parser.NewParser(parser.Options{}),
	}).LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, "../prometheus/alerts.yaml")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var fired []*firing
	open := map[string]*firing{} // by name and labels
	for minute := range last + 1 {
		now := time.Unix(0, 0).UTC().Add(time.Duration(minute) * time.Minute)
		prometheus.WithSamplesTill(now, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		})
		for _, g := range groups {
			g.Eval(prometheus.Context(), now)
			for _, r := range g.Rules() {
				if err := r.LastError(); err != nil {
					t.Fatalf("%s: %v", r.Name(), err)
				}
				alert, ok := r.(*rules.AlertingRule)
				if !ok {
					continue
				}
				for _, a := range alert.ActiveAlerts() {
					if a.State != rules.StateFiring {
						continue
					}
					p.fired[alert.Name()] = true
					shown := labels.NewBuilder(a.Labels).Del(model.AlertNameLabel, "job", "severity").Labels()
					id := alert.Name() + shown.String()
					if open[id] == nil || open[id].to < minute-1 {
						open[id] = &firing{from: minute, text: fmt.Sprintf("%s%s\n  %s", alert.Name(), shown, a.Annotations.Get("summary"))}
						fired = append(fired, open[id])
					}
					open[id].to = minute
				}
			}
		}
	}
	if len(fired) == 0 {
		return "none"
	}
	slices.SortStableFunc(fired, func(a, b *firing) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.text, b.text)) })
	var out []string
	for _, f := range fired {
		until := strconv.Itoa(f.to)
		if f.to == last {
			until = ""
		}
		out = append(out, fmt.Sprintf("%d-%s %s", f.from, until, f.text))
	}
	return strings.Join(out, "\n")
}
