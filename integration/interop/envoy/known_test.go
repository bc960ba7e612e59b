package envoy

import "strings"

// Differences between an Envoy behind the relay and one that is connected directly that are known.

// known is a difference of a scenario, and of its variants, that is known in the forms for which when returns true.
type known struct {
	scenario string         // the test's name
	when     func(row) bool // nil: in all forms
	reason   string
	// sometimes reports in which of these forms a run may also be without the difference. Say why.
	sometimes func(row) bool
}

// knownDifferences has them all. A run without the difference fails, so that the list has no entry too many.
var knownDifferences []known

// knownDifference returns why a row differs, or "" if it must not. always: it does so in each run.
func knownDifference(r row) (reason string, always bool) {
	for _, k := range knownDifferences {
		if (k.scenario == r.scenario || strings.HasPrefix(r.scenario, k.scenario+"/")) && (k.when == nil || k.when(r)) {
			return k.reason, k.sometimes == nil || !k.sometimes(r)
		}
	}
	return "", false
}
