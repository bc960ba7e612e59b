package session

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session/sessiontest"
)

// Constraints, in few words.

var (
	is     = sessiontest.Is
	exists = sessiontest.Exists
	single = sessiontest.Single
	not    = sessiontest.Not
)

func all(list ...*discoveryv3.DynamicParameterConstraints) *discoveryv3.DynamicParameterConstraints {
	return &discoveryv3.DynamicParameterConstraints{Type: &discoveryv3.DynamicParameterConstraints_AndConstraints{
		AndConstraints: &discoveryv3.DynamicParameterConstraints_ConstraintList{Constraints: list},
	}}
}

func either(list ...*discoveryv3.DynamicParameterConstraints) *discoveryv3.DynamicParameterConstraints {
	return &discoveryv3.DynamicParameterConstraints{Type: &discoveryv3.DynamicParameterConstraints_OrConstraints{
		OrConstraints: &discoveryv3.DynamicParameterConstraints_ConstraintList{Constraints: list},
	}}
}

func encoded(t testing.TB, c *discoveryv3.DynamicParameterConstraints) string {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// xDS: TP2, "Dynamic Parameter Constraints", with its examples.
func TestConstraintsMatch(t *testing.T) {
	prod := all(is("env", "prod"), is("version", "v1"))
	fallback := all(is("env", "prod"), not(exists("version")))
	for _, test := range []struct {
		name   string
		c      *discoveryv3.DynamicParameterConstraints
		params string
		want   bool
	}{
		{"no constraints", nil, "env=prod", true},
		{"empty constraints", &discoveryv3.DynamicParameterConstraints{}, "", true},
		{"the value", is("env", "prod"), "env=prod", true},
		{"another value", is("env", "prod"), "env=test", false},
		{"no value", is("env", "prod"), "", false},
		{"a parameter of which nothing is said", is("env", "prod"), "env=prod&version=v1", true},
		{"exists", exists("env"), "env=", true},
		{"does not exist", exists("env"), "version=v1", false},
		{"not", not(is("env", "prod")), "env=test", true},
		{"not, of a missing one", not(is("env", "prod")), "", true},
		{"all", prod, "env=prod&version=v1", true},
		{"not all", prod, "env=prod&version=v2", false},
		{"all of none", all(), "", true},
		{"default for who does not say", fallback, "env=prod", true},
		{"default, for who says", fallback, "env=prod&version=v1", false},
		{"either", either(is("env", "a"), is("env", "b")), "env=b", true},
		{"neither", either(is("env", "a"), is("env", "b")), "env=c", false},
		{"either of none", either(), "env=c", false},
		{"nested", not(either(all(is("a", "1"), not(exists("b"))), is("c", "3"))), "a=1&b=2", true},
		{"nested, not", not(either(all(is("a", "1"), not(exists("b"))), is("c", "3"))), "a=1", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := ""
			if test.c != nil {
				b = encoded(t, test.c)
			}
			c, err := parseConstraints(b)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.match(cache.ParseParams(test.params)); got != test.want {
				t.Errorf("%v matches %q: %v", test.c, test.params, got)
			}
		})
	}
}

func TestBadConstraintsSayWhatIsWrong(t *testing.T) {
	deep := is("a", "b")
	for range maxConstraintDepth {
		deep = not(deep)
	}
	for want, b := range map[string]string{
		"neither value nor exists": encoded(t, all(single(&discoveryv3.DynamicParameterConstraints_SingleConstraint{Key: "k"}))),
		"nested more than":         encoded(t, deep),
		"proto":                    "\xff",
	} {
		if _, err := parseConstraints(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
