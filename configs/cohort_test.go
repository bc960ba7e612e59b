package configs

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// The cohort of a client is what the expression gives for its own Node, whatever clients came before it.
func TestCohortIsThatOfTheClientsOwnNode(t *testing.T) {
	version := func(v string) *corev3.Node {
		return &corev3.Node{UserAgentName: "envoy", Cluster: "c" + v, UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: v}}
	}
	built := &corev3.Node{UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 30, Patch: 4},
	}}}
	for _, of := range []struct{ expression, v1, v2, built string }{
		{"user_agent", "envoy/1", "envoy/2", "envoy/1.30.4"},
		{"user_agent.startsWith('envoy/1')? 'old': 'new'", "old", "new", "old"},
		{"node.cluster", "c1", "c2", ""},
		{"user_agent + node.cluster", "envoy/1c1", "envoy/2c2", "envoy/1.30.4"},
		{"'all'", "all", "all", "all"},
	} {
		r := &Rollout{Cohort: of.expression}
		if errs := r.compile(); len(errs) > 0 {
			t.Fatal(errs)
		}
		for round := range 2 {
			if round == 1 { // more programs than are kept in mind
				for i := range 2 * maxAgents {
					if _, err := r.CohortOf(Client{Node: version(fmt.Sprint("made up ", i))}); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, c := range []struct {
				node *corev3.Node
				want string
			}{{version("1"), of.v1}, {version("2"), of.v2}, {built, of.built}} {
				if got, err := r.CohortOf(Client{Node: c.node}); got != c.want || err != nil {
					t.Errorf("%s gives %q for %v (%v), want %q", of.expression, got, c.node, err, c.want)
				}
			}
		}
		if r.agents != nil && len(r.agents.known) > maxAgents {
			t.Errorf("%d programs are kept in mind", len(r.agents.known))
		}
	}
}

// Of a client behind another relay, only the user agent is known. It has a cohort if the expression reads nothing else.
func TestCohortOfAUserAgentAlone(t *testing.T) {
	for _, tt := range []struct {
		expression, want string
		ok               bool
	}{
		{"user_agent", "envoy/1.30.4", true},
		{"user_agent.startsWith('envoy/') ? 'envoy' : 'other'", "envoy", true}, {"'all'", "all", true},
		{"node.cluster", "", false}, {"user_agent + identity.subject", "", false},
	} {
		r := &Rollout{Cohort: tt.expression}
		if errs := r.compile(); len(errs) > 0 {
			t.Fatal(errs)
		}
		if got, ok := r.CohortOfAgent("envoy/1.30.4"); got != tt.want || ok != tt.ok {
			t.Errorf("%s gives %q, %t, want %q, %t", tt.expression, got, ok, tt.want, tt.ok)
		}
	}
}

// A client whose program has come before costs no evaluation.
func TestCohortOfAKnownProgramAllocatesNothing(t *testing.T) {
	r := &Rollout{Cohort: "user_agent"}
	if errs := r.compile(); len(errs) > 0 {
		t.Fatal(errs)
	}
	c := Client{Node: &corev3.Node{UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1"}}}
	if n := testing.AllocsPerRun(100, func() { _, _ = r.CohortOf(c) }); n > 0 {
		t.Errorf("it allocates %v times", n)
	}
}
