package lint

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/xds-relay/xds-relay/graph"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/taster"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/wire"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Resource is a resource to look at.
type Resource struct {
	TypeURL string
	Name    string // by which clients discover it
	Value   []byte
}

// Options say what is known of the clients.
type Options struct {
	// For is the family of all clients: what only others reject is no finding, and what they reject is
	// an error. Empty, or taster.All: there are clients of both.
	For taster.Family
	// Elsewhere reports whether clients may have a resource that is not in the set. Nil: none.
	Elsewhere func(graph.ID) bool
	// Why returns why a resource is not in the set, as the end of a sentence that begins with it,
	// empty if it does not exist. Nil: none does.
	Why func(graph.ID) string
	// Stop is asked before each resource whether to leave it out. Nil: none is.
	Stop func() bool
	// Part says that the set has not all listeners, so that nothing is known to be unused.
	Part bool
}

// Finding is a rule that a resource breaks. It quotes no values but names of resources.
type Finding struct {
	*Rule
	// Severity is that of the rule, or less.
	Severity Severity
	// Resource is the place of the resource in the set.
	Resource int
	// Path is the field, or the message that has it; empty for the resource.
	Path string
	// Text says what is wrong.
	Text string
}

// checker checks one set of resources.
type checker struct {
	Options
	resources []Resource
	found     []Finding
	read      []bool         // the resources that were not left out
	addresses map[string]int // of listeners, and which of resources has it first
}

// Check returns what is wrong with a set of resources, in their order. It takes a time that is
// linear in their size. There is a constant number of findings per resource, and one for each reference that leads nowhere.
func Check(resources []Resource, o Options) []Finding {
	c := &checker{Options: o, resources: resources, addresses: map[string]int{}}
	c.read = make([]bool, len(resources))
	for i, r := range resources {
		if o.Stop != nil && o.Stop() {
			continue
		}
		c.read[i] = true
		c.client(i, r)
		c.name(i, r)
		c.inside(i, r)
	}
	c.together()
	slices.SortStableFunc(c.found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Severity, b.Severity))
	})
	return c.found
}

// add adds a finding, if it is one for the clients.
func (c *checker) add(f Finding) {
	if f.RejectedBy != "" && f.RejectedBy != taster.All && c.For != "" && c.For != taster.All {
		if f.RejectedBy != c.For {
			return
		}
		f.Severity = Error
	}
	c.found = append(c.found, f)
}

// broken adds a finding of a rule of this package.
func (c *checker) broken(rule string, resource int, path, text string) {
	r := rules[rule]
	c.add(Finding{Rule: r, Severity: r.Severity, Resource: resource, Path: path, Text: text})
}

// client adds what clients reject of a resource.
func (c *checker) client(i int, r Resource) {
	for _, f := range taster.Of(r.TypeURL).Findings(r.Value) {
		rule := *rules[f.Rule]
		rule.RejectedBy = f.By
		severity := Warning
		if f.By == taster.All {
			severity = Error
		}
		c.add(Finding{Rule: &rule, Severity: severity, Resource: i, Path: f.Path, Text: f.Text})
	}
}

// name adds that a resource has another name inside.
func (c *checker) name(i int, r Resource) {
	if !xdstype.HasInnerName(r.TypeURL) {
		return
	}
	inner, err := wire.InnerName(r.Value)
	if err != nil || inner == r.Name || r.Name == "" {
		return
	}
	if a, err := urn.KeyOf(inner); err == nil && urn.IsXdstp(inner) {
		if b, err := urn.KeyOf(r.Name); err == nil && a == b {
			return
		}
	}
	text := "it has no name inside"
	if inner != "" {
		text = "the name inside is " + quoted(inner)
	}
	c.broken(otherName, i, "", text)
}

// quoted returns a name in quotes. Long names are clipped.
func quoted(name string) string { return strconv.Quote(loglines.Clip(name)) }
