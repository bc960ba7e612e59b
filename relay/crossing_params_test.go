package relay

// How the transcripts of the crossings write what TP2 adds to names: a locator is
// a{env=prod&zone=1}, with its dynamic parameters, a{} is one without. A variant
// is a{CONSTRAINTS}, where these are env=prod, env (it exists), and(C,C), or(C,C)
// and not(C); a{} has none, but is named by resource_name too.

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

type (
	constraints     = discoveryv3.DynamicParameterConstraints
	constraintsList = discoveryv3.DynamicParameterConstraints_ConstraintList
)

// cutBraces takes what is in braces out of a word, if they follow the name.
func cutBraces(word string) (name, inside string, braced bool, rest string) {
	at := strings.IndexAny(word, "{@=")
	if at < 0 || word[at] != '{' {
		return word, "", false, ""
	}
	inside, rest, _ = strings.Cut(word[at+1:], "}")
	return word[:at], inside, true, rest
}

// namesAndLocators separates the names and locators that a client requests.
func namesAndLocators(words []string) (names []string, locators []*discoveryv3.ResourceLocator) {
	for _, word := range words {
		name, params, locator, _ := cutBraces(word)
		if !locator {
			names = append(names, name)
			continue
		}
		locators = append(locators, &discoveryv3.ResourceLocator{Name: name, DynamicParameters: cache.ParseParams(params)})
	}
	return names, locators
}

// withLocators is namesAndLocators' inverse.
func withLocators(names []string, locators []*discoveryv3.ResourceLocator) []string {
	names = slices.Clone(names)
	for _, l := range locators {
		names = append(names, l.GetName()+"{"+cache.Params(l.GetDynamicParameters()).String()+"}")
	}
	return names
}

// variantName returns the name of a variant, nil for a resource that has only a name.
func variantName(t *testing.T, word string) *discoveryv3.ResourceName {
	t.Helper()
	name, text, braced, _ := cutBraces(word)
	if !braced {
		return nil
	}
	n := &discoveryv3.ResourceName{Name: name}
	if text != "" {
		n.DynamicParameterConstraints = readConstraints(t, text)
	}
	return n
}

func readConstraints(t *testing.T, text string) *constraints {
	t.Helper()
	what, of, nested := strings.Cut(strings.TrimSuffix(text, ")"), "(")
	if !nested {
		key, value, exact := strings.Cut(text, "=")
		c := &discoveryv3.DynamicParameterConstraints_SingleConstraint{Key: key}
		if exact {
			c.ConstraintType = &discoveryv3.DynamicParameterConstraints_SingleConstraint_Value{Value: value}
		} else {
			c.ConstraintType = &discoveryv3.DynamicParameterConstraints_SingleConstraint_Exists_{}
		}
		return &constraints{Type: &discoveryv3.DynamicParameterConstraints_Constraint{Constraint: c}}
	}
	list := &constraintsList{}
	for _, part := range splitConstraints(of) {
		list.Constraints = append(list.Constraints, readConstraints(t, part))
	}
	switch what {
	case "and":
		return &constraints{Type: &discoveryv3.DynamicParameterConstraints_AndConstraints{AndConstraints: list}}
	case "or":
		return &constraints{Type: &discoveryv3.DynamicParameterConstraints_OrConstraints{OrConstraints: list}}
	case "not":
		return &constraints{Type: &discoveryv3.DynamicParameterConstraints_NotConstraints{NotConstraints: list.GetConstraints()[0]}}
	}
	t.Fatalf("unknown constraints %q", text)
	return nil
}

// splitConstraints splits at the commas that are in no parentheses.
func splitConstraints(text string) (parts []string) {
	depth, from := 0, 0
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts, from = append(parts, text[from:i]), i+1
			}
		}
	}
	return append(parts, text[from:])
}

// describeName returns a name as a line shows it, from either of two fields.
func describeName(name string, variant *discoveryv3.ResourceName) string {
	if variant == nil {
		return name
	}
	if name != "" {
		return fmt.Sprintf("(both %s and resource_name %s)", name, describeName("", variant))
	}
	return variant.GetName() + "{" + describeConstraints(variant.GetDynamicParameterConstraints()) + "}"
}

func describeConstraints(c *constraints) string {
	all := func(list *constraintsList) string {
		var parts []string
		for _, part := range list.GetConstraints() {
			parts = append(parts, describeConstraints(part))
		}
		return strings.Join(parts, ",")
	}
	switch t := c.GetType().(type) {
	case *discoveryv3.DynamicParameterConstraints_Constraint:
		if v, exact := t.Constraint.GetConstraintType().(*discoveryv3.DynamicParameterConstraints_SingleConstraint_Value); exact {
			return t.Constraint.GetKey() + "=" + v.Value
		}
		return t.Constraint.GetKey()
	case *discoveryv3.DynamicParameterConstraints_AndConstraints:
		return "and(" + all(t.AndConstraints) + ")"
	case *discoveryv3.DynamicParameterConstraints_OrConstraints:
		return "or(" + all(t.OrConstraints) + ")"
	case *discoveryv3.DynamicParameterConstraints_NotConstraints:
		return "not(" + describeConstraints(t.NotConstraints) + ")"
	}
	return ""
}

// describeErrorName returns the name of an error, which is always a resource_name.
func describeErrorName(e *discoveryv3.ResourceError) string {
	n := e.GetResourceName()
	if n.GetDynamicParameterConstraints() == nil {
		return n.GetName()
	}
	return describeName("", n)
}

// describeNames are those of a list of names and a list of variants.
func describeNames(names []string, variants []*discoveryv3.ResourceName) []string {
	names = slices.Clone(names)
	for _, n := range variants {
		names = append(names, describeName("", n))
	}
	return names
}
