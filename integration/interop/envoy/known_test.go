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

func resumedInDelta(r row) bool { return r.form.delta && r.upstream == delta }

// knownDifferences has them all. A run without the difference fails, so that the list has no entry too many.
var knownDifferences = []known{
	{scenario: "TestAListenerIsReplacedDuringARestart", when: resumedInDelta, reason: "a relay that was restarted sends additions at once, and a removal when it knows the whole"},
	{scenario: "TestListenersAreRenamedByARestart", reason: "the guard holds Listeners beside those that take their place"},
	{
		scenario: "TestAListenerIsReplacedInARollout",
		reason:   "a rollout adds the new Listener at its beginning, and removes the old one at its end",
		// With a stream for each type, the outcome depends on timing.
		sometimes: func(r row) bool { return !r.form.aggregated },
	},
	{scenario: "TestARefusedListenerIsSentAgain", reason: "what a client has refused is not sent again with another version of the same content"},
	{scenario: "TestTheControlPlaneHearsRefusals", reason: "the relay acknowledges what its clients have not acknowledged yet"},
	{scenario: "TestARuntimeLayerExpiresInSotW", reason: "TTLs go only to clients that announce them, and Envoy does not although it takes them"},
	{
		scenario: "TestEnvoyRestartsWithoutWhatNeverComes", when: func(r row) bool { return r.form.delta && r.upstream == sotw },
		reason: "the relay tells a delta client that a name does not exist if a SotW control plane is silent about it: Envoy waits for a route or an extension for ever, as a removal does not end its wait",
	},
}

// knownDifference returns why a row differs, or "" if it must not. always: it does so in each run.
func knownDifference(r row) (reason string, always bool) {
	for _, k := range knownDifferences {
		if (k.scenario == r.scenario || strings.HasPrefix(r.scenario, k.scenario+"/")) && (k.when == nil || k.when(r)) {
			return k.reason, k.sometimes == nil || !k.sometimes(r)
		}
	}
	return "", false
}
