package envoy

// Differences between an Envoy behind the relay and one that is connected directly that are known.

// known is a difference of a scenario that is known, in the forms for which when returns true.
type known struct {
	scenario string
	when     func(row) bool // nil: in all forms
	reason   string
}

// knownDifferences has them all. A run without the difference fails, so that the list has no entry too many.
var knownDifferences = []known{
	{"TestARuntimeLayerExpiresInSotW", nil, "TTLs go only to clients that announce them, and Envoy does not although it takes them"},
}

// knownDifference returns why a row differs, or "" if it must not.
func knownDifference(r row) string {
	for _, k := range knownDifferences {
		if k.scenario == r.scenario && (k.when == nil || k.when(r)) {
			return k.reason
		}
	}
	return ""
}
