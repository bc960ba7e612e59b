package lint

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Resource is a resource to check.
type Resource struct {
	TypeURL string
	Name    string // the name by which clients discover the resource
	Value   []byte
}

// Options describe the clients and the set of resources.
type Options struct {
	// For is the family of all clients: Check leaves out resources that only other clients reject, and reports those
	// that this family rejects as errors. Empty, or taster.All: there are clients of both families.
	For taster.Family
	// Elsewhere reports whether clients may get a resource that is not in the set. Nil: no such resources.
	Elsewhere func(graph.ID) bool
	// Why returns why a resource is not in the set, as the end of a sentence that begins with the resource. It is
	// empty if the resource does not exist. Nil: none of them exists.
	Why func(graph.ID) string
	// Stop reports whether to leave out the remaining resources. Check calls it before each resource. Nil: leave out
	// none.
	Stop func() bool
	// Part: the set lacks listeners, so Check cannot know that a resource is unused.
	Part bool
}

// Finding is a broken rule. It quotes no values except names of resources.
type Finding struct {
	*Rule
	// Severity is the rule's severity, or a lower one.
	Severity Severity
	// Resource is the index of the resource in the set.
	Resource int
	// Path is the field, or the message that contains it. It is empty for the resource itself.
	Path string
	// Text says what is wrong.
	Text string
}

// checker checks one set of resources.
type checker struct {
	Options
	resources []Resource
	found     []Finding
	read      []bool         // by index: the resource was not left out
	addresses map[string]int // the first resource with each listener address
}

// Check returns the findings for a set of resources, in their order. It takes linear time in their size. It returns a
// bounded number of findings per resource, and one for each reference to a missing resource.
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

// add adds a finding, if it concerns the clients.
func (c *checker) add(f Finding) {
	if f.RejectedBy != "" && f.RejectedBy != taster.All && c.For != "" && c.For != taster.All {
		if f.RejectedBy != c.For {
			return
		}
		f.Severity = Error
	}
	c.found = append(c.found, f)
}

// broken adds a finding for a rule of this package.
func (c *checker) broken(rule string, resource int, path, text string) {
	r := rules[rule]
	c.add(Finding{Rule: r, Severity: r.Severity, Resource: resource, Path: path, Text: text})
}

// client adds the findings for the reasons why clients reject a resource.
func (c *checker) client(i int, r Resource) {
	for _, f := range taster.Of(r.TypeURL).Findings(r.Value) {
		if f.Rule == "grpc-lb-policy" && isAggregateByA75(r) {
			c.providedPolicy(i)
			continue
		}
		rule := *rules[f.Rule]
		rule.RejectedBy = f.By
		severity := Warning
		if f.By == taster.All {
			severity = Error
		}
		c.add(Finding{Rule: &rule, Severity: severity, Resource: i, Path: f.Path, Text: f.Text})
	}
}

// name adds a finding if a resource contains another name.
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
	text := "it contains no name"
	if inner != "" {
		text = "it contains the name " + quoted(inner)
	}
	c.broken(otherName, i, "", text)
}

// quoted returns a name in quotes. Long names are clipped.
func quoted(name string) string { return strconv.Quote(loglines.Clip(name)) }
