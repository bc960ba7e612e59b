package configs

import (
	"strings"
	"testing"
)

// TestRolloutsInAFleetAreWarnedOf: each relay has its own.
func TestRolloutsInAFleetAreWarnedOf(t *testing.T) {
	const (
		rollout = "listeners: [{address: '127.0.0.1:1'}]\nauthorities: [{name: a, servers: [{address: 'one:1'}], rollout: {}}, {name: b, servers: [{address: 'one:1'}]}]\n"
		fleet   = "fleet: {name: edge, listen: '127.0.0.1:2', members: {static: ['127.0.0.1:2']}}\n"
	)
	for text, want := range map[string]string{rollout: "", rollout + fleet: "authorities[0].rollout: each relay of the fleet makes its own rollout"} {
		c, err := Parse("relay.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		w := c.Warnings()
		switch {
		case want == "" && len(w) == 0:
		case len(w) != 1 || !strings.Contains(w[0].Error(), want):
			t.Errorf("the warnings are %v, want %q", w, want)
		}
	}
}
