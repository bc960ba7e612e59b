package envoy

// The results of all scenarios, and the differences that are known.

import (
	"cmp"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// row is a run of a scenario behind the relay.
type row struct {
	scenario string // the test's name
	plane    kind
	form     form
	upstream string
	result   string
	// medians of the times from a push to Envoy's last update
	direct, relay time.Duration
	// requests that failed, and all that were sent
	directFailed, relayFailed, directSent, relaySent int
}

type table struct {
	mu   sync.Mutex
	rows []row
}

var results table

// judge fails the test if the side behind the relay differs from the direct one and the difference is not known,
// or if a known difference is gone.
func (t *table) judge(tb testing.TB, sc scenario, alone, behind outcome) {
	tb.Helper()
	r := behind.row
	r.direct, r.relay = median(alone.times), median(behind.times)
	r.directSent, r.directFailed = alone.sent, total(alone.failed)
	r.relaySent, r.relayFailed = behind.sent, total(behind.failed)
	problems := behind.problems
	if len(behind.steps) < len(alone.steps) && len(problems) == 0 {
		problems = append(problems, fmt.Sprintf("the run ended after %d of %d steps", len(behind.steps), len(alone.steps)))
	}
	slack := slack
	if sc.slack != nil {
		slack = sc.slack(r.directFailed)
	}
	if r.relayFailed > r.directFailed+slack {
		problems = append(problems, fmt.Sprintf("%d of %d requests failed (%v), directly %d of %d (%v)",
			r.relayFailed, r.relaySent, behind.failed, r.directFailed, r.directSent, alone.failed))
	}
	reason, always := knownDifference(r)
	switch {
	case tb.Failed():
		r.result = "FAILED"
	case len(problems) == 0 && !always:
		r.result = "equal"
	case len(problems) == 0:
		r.result = "FAILED"
		tb.Errorf("the known difference is gone, take it from the list: %s", reason)
	case reason != "":
		r.result = "known: " + reason
		tb.Logf("known (%s):\n%s", reason, strings.Join(problems, "\n"))
	default:
		r.result = "FAILED"
		tb.Errorf("the Envoy behind the relay differs:\n%s", strings.Join(problems, "\n"))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
}

// slack is how many more requests may fail with the relay than without: as few as fail by chance in some runs
// without it, too.
const slack = 2

func total(failed map[string]int) (n int) {
	for _, count := range failed {
		n += count
	}
	return n
}

func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(times))[len(times)/2]
}

// page returns the results for docs/clients.md: the version of Envoy, and a line for each scenario.
func (t *table) page(version string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	results := map[string]map[form]string{}
	var reasons []string
	for _, r := range t.rows {
		if results[r.scenario] == nil {
			results[r.scenario] = map[form]string{}
		}
		cell := "equal"
		if reason, differs := strings.CutPrefix(r.result, "known: "); differs {
			if !slices.Contains(reasons, reason) {
				reasons = append(reasons, reason)
			}
			cell = "differs: " + reason
		} else if r.result != "equal" {
			cell = r.result
		}
		if old := results[r.scenario][r.form]; old == "" || old == "equal" {
			results[r.scenario][r.form] = cell
		}
	}
	slices.Sort(reasons)
	var text strings.Builder
	fmt.Fprintf(&text, "Envoy %s, behind the relay and connected directly:\n\n| scenario |", version)
	for _, f := range forms {
		fmt.Fprintf(&text, " %s |", f)
	}
	fmt.Fprint(&text, "\n|---|", strings.Repeat("---|", len(forms)), "\n")
	for _, scenario := range sorted(results) {
		fmt.Fprintf(&text, "| %s |", inWords(scenario))
		for _, f := range forms {
			cell := results[scenario][f]
			if reason, differs := strings.CutPrefix(cell, "differs: "); differs {
				cell = fmt.Sprintf("differs (%d)", slices.Index(reasons, reason)+1)
			}
			fmt.Fprintf(&text, " %s |", cell)
		}
		fmt.Fprintln(&text)
	}
	for i, reason := range reasons {
		fmt.Fprintf(&text, "\n(%d) %s.\n", i+1, strings.ToUpper(reason[:1])+reason[1:])
	}
	return text.String()
}

// document checks that docs/clients.md has the results, or writes them.
func (t *table) document() error {
	binary, err := install()
	if err != nil {
		return err
	}
	out, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return err
	}
	version := regexp.MustCompile(`/(\d+\.\d+\.\d+)/`).FindSubmatch(out)
	if version == nil {
		return fmt.Errorf("cannot find the version in %q", out)
	}
	section := peers.Section{File: "../../../docs/clients.md", Name: "Envoy"}
	if text := t.page(string(version[1])); *update {
		return section.Write(text)
	} else {
		return section.Check(text)
	}
}

var wordBoundary = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)

// inWords returns the name of a test as a sentence.
func inWords(name string) string {
	test, variant, _ := strings.Cut(strings.TrimPrefix(name, "Test"), "/")
	for range 2 { // boundaries overlap
		test = wordBoundary.ReplaceAllString(test, "$1$3 $2$4")
	}
	words := strings.Fields(strings.ReplaceAll(test, "Sot W", "SotW"))
	for i, word := range words {
		abbreviation := len(word) > 1 && word == strings.ToUpper(word)
		if i > 0 && !abbreviation && word != "Envoy" && word != "SotW" {
			words[i] = strings.ToLower(word)
		}
	}
	sentence := strings.Join(words, " ")
	if variant != "" {
		sentence += ": " + strings.ReplaceAll(variant, "_", " ")
	}
	return sentence
}

// String returns the results as a table.
func (t *table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rows) == 0 {
		return ""
	}
	slices.SortStableFunc(t.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.scenario, b.scenario), cmp.Compare(a.plane, b.plane), cmp.Compare(a.form.String(), b.form.String()), cmp.Compare(a.upstream, b.upstream))
	})
	var text strings.Builder
	fmt.Fprintln(&text, "\nEnvoy behind the relay, compared with Envoy connected directly (times: from a push to Envoy's last update, median):")
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "scenario\tcontrol plane\tEnvoy\tupstream\tresult\tdirect\trelay\tfailed directly\tfailed with the relay")
	for _, r := range t.rows {
		failed := func(failed, sent int) string {
			if sent == 0 {
				return ""
			}
			return fmt.Sprintf("%d of %d", failed, sent)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%v\t%v\t%s\t%s\n", strings.TrimPrefix(r.scenario, "Test"), r.plane, r.form, r.upstream, r.result,
			r.direct.Round(time.Millisecond), r.relay.Round(time.Millisecond), failed(r.directFailed, r.directSent), failed(r.relayFailed, r.relaySent))
	}
	_ = w.Flush()
	return text.String()
}
