package checks

// Alerts and the dashboard use metrics that the relay has. docs/metrics.md lists these, which a test of
// relay/ holds to the code.

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// scraped are the labels that Prometheus adds.
var scraped = []string{"job", "instance"}

// documented returns the metrics of docs/metrics.md, each with its labels.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (?:gauge|counter|summary|histogram) \\| ([^|]*) \\|")
	for _, match := range row.FindAllStringSubmatch(page(t, "metrics"), -1) {
		all[match[1]] = slices.Clone(scraped)
		for _, label := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(match[2], -1) {
			all[match[1]] = append(all[match[1]], label[1])
		}
	}
	if len(all) < 40 {
		t.Fatalf("docs/metrics.md has %d metrics", len(all))
	}
	return all
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name + ".md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkExpression checks that an expression uses metrics that exist, with labels that they have.
func checkExpression(t *testing.T, where, expression string, metrics map[string][]string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	found := 0
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		selector, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		found++
		name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(selector.Name, "_bucket"), "_sum"), "_count")
		has, ok := metrics[selector.Name]
		if !ok {
			has, ok = metrics[name]
		}
		if !ok {
			t.Errorf("%s: docs/metrics.md has no metric %s", where, selector.Name)
			return nil
		}
		for _, m := range selector.LabelMatchers {
			if m.Name != model.MetricNameLabel && !slices.Contains(has, m.Name) {
				t.Errorf("%s: %s has no label %s", where, selector.Name, m.Name)
			}
		}
		return nil
	})
	if found == 0 {
		t.Errorf("%s: %s reads no metric", where, expression)
	}
}

func readRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile("../prometheus/alerts.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var rules []rulefmt.Rule
	for _, g := range groups.Groups {
		rules = append(rules, g.Rules...)
	}
	if len(rules) < 20 {
		t.Fatalf("%d rules", len(rules))
	}
	return rules
}

func TestAlertsUseMetricsThatExist(t *testing.T) {
	metrics := documented(t)
	metrics["up"] = scraped // of Prometheus itself
	operate, list := page(t, "operate"), page(t, "metrics")
	names := map[string]bool{}
	for _, rule := range readRules(t) {
		checkExpression(t, rule.Alert, rule.Expr, metrics)
		if names[rule.Alert] {
			t.Errorf("%s is there twice", rule.Alert)
		}
		names[rule.Alert] = true
		if !slices.Contains([]string{"page", "ticket"}, rule.Labels["severity"]) || rule.Annotations["summary"] == "" {
			t.Errorf("%s: severity %q, summary %q", rule.Alert, rule.Labels["severity"], rule.Annotations["summary"])
		}
		_, rows, _ := strings.Cut(operate, "\n### Severity `"+rule.Labels["severity"]+"`")
		rows, _, _ = strings.Cut(rows, "\n#")
		if !strings.Contains(rows, "\n| `"+rule.Alert+"` |") {
			t.Errorf("docs/operate.md does not say what %s means, among the alerts of severity %s", rule.Alert, rule.Labels["severity"])
		}
	}
	for _, match := range regexp.MustCompile("(?m)^\\| `(XdsRelay\\w+)` \\|").FindAllStringSubmatch(operate, -1) {
		if !names[match[1]] {
			t.Errorf("docs/operate.md explains %s, which is no alert", match[1])
		}
	}
	// The page about metrics has the same expressions.
	_, table, _ := strings.Cut(list, "\n## What to alert on\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, match := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(table, -1) {
		wait := strings.TrimSpace(match[2])
		same := func(r rulefmt.Rule) bool {
			held := ""
			if r.For > 0 {
				held = r.For.String()
			}
			// What only selects the relays among all processes is left out.
			expression := r.Expr
			if condition, relays, _ := strings.Cut(r.Expr, " and on(job, instance) "); strings.Contains(relays, "xds_relay_downstream_streams") {
				expression = condition
			}
			return expression == match[1] && held == wait
		}
		if !slices.ContainsFunc(readRules(t), same) {
			t.Errorf("docs/metrics.md alerts on %q for %q, and alerts.yaml does not", match[1], wait)
		}
	}
}

type dashboard struct {
	Title  string
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ Expr, RefID string }
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
	Templating struct {
		List []struct {
			Name  string
			Type  string
			Query any
		}
	}
}

func TestTheDashboardUsesMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("../grafana/xds-relay.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	metrics := documented(t)
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if query, ok := v.Query.(map[string]any); ok {
			call := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(fmt.Sprint(query["query"]))
			if call == nil {
				t.Fatalf("the variable %s has the query %v", v.Name, query)
			}
			checkExpression(t, v.Name, withoutVariables(call[1]), metrics)
		}
	}
	for _, a := range d.Annotations.List {
		checkExpression(t, a.Name, withoutVariables(a.Expr), metrics)
	}
	if len(d.Annotations.List) == 0 || len(d.Panels) < 2 || d.Panels[1].Type != "stat" {
		t.Error("the dashboard has neither annotations nor numbers at its top")
	}
	ids, taken, shown := map[int]bool{}, map[[2]int]string{}, map[string]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[at]; ok {
					t.Fatalf("%q lies over %q", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
		for _, target := range p.Targets {
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !variables[v[1]] {
					t.Errorf("%s: there is no variable %s", p.Title, v[1])
				}
			}
			expression := withoutVariables(target.Expr)
			checkExpression(t, p.Title, expression, metrics)
			for name := range metrics {
				if strings.Contains(expression, name+"{") || strings.Contains(expression, name+"_bucket{") {
					shown[name] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		if alerted := slices.ContainsFunc(readRules(t), func(r rulefmt.Rule) bool { return strings.Contains(r.Expr, name) }); alerted &&
			strings.HasPrefix(name, "xds_relay_") && !shown[name] && !unshown[name] {
			t.Errorf("an alert is about %s, and no panel shows it", name)
		}
	}
}

// unshown are metrics of alerts that nobody looks at as a graph.
var unshown = map[string]bool{
	"xds_relay_collections_failures_total": true, "xds_relay_collections_loops_total": true,
	"xds_relay_store_failed_commits_total": true, "xds_relay_store_files_set_aside_total": true,
}

// withoutVariables puts values in the place of Grafana's variables.
func withoutVariables(expression string) string {
	return strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*").Replace(expression)
}
