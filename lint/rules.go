package lint

import (
	"fmt"

	"github.com/xds-relay/xds-relay/taster"
)

// Severity says what a finding means for clients.
type Severity uint8

// The severities, the worst first.
const (
	// Error: no client takes the resource, or requests that reach it fail.
	Error Severity = iota
	// Warning: clients of one family reject the resource, or it depends on what only they know.
	Warning
	// Hint: every client takes it, but no client uses it.
	Hint
)

// String returns the word for the severity.
func (s Severity) String() string {
	switch s {
	case Error:
		return "error"
	case Warning:
		return "warning"
	case Hint:
		return "hint"
	}
	return fmt.Sprintf("severity %d", s)
}

// MarshalText is for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (s *Severity) UnmarshalText(text []byte) error {
	for severity := Error; severity <= Hint; severity++ {
		if severity.String() == string(text) {
			*s = severity
			return nil
		}
	}
	return fmt.Errorf("unknown severity %q (want error, warning or hint)", text)
}

// Rule is one thing that should hold for resources.
type Rule struct {
	// ID is the name of the rule, in kebab-case.
	ID string
	// Severity is that of its findings. Some findings are less severe.
	Severity Severity
	// RejectedBy is which clients reject a resource that breaks it: all, envoy or grpc. It is empty if
	// they take the resource.
	RejectedBy taster.Family
	// Source is where it is written.
	Source string
	// Want is what should hold.
	Want string
	// Of is the message that it is about.
	Of string
}

// The rules of this package.
const (
	readable         = "readable-file"
	dangling         = "dangling-reference"
	aggregateCycle   = "aggregate-cycle"
	aggregateDepth   = "aggregate-depth"
	sameAddress      = "same-address"
	sameDomain       = "same-domain"
	unreachableRoute = "unreachable-route"
	unused           = "unused-resource"
	otherName        = "other-name"
)

// own are the rules of this package.
var own = []Rule{
	{readable, Error, "", "docs/configure.md", "a file is of a format that directories have, and no resource is there twice", "files"},
	{dangling, Error, "", "xDS protocol, \"Eventual consistency considerations\"", "a resource that another one names is there", "any resource"},
	{otherName, Error, "", "xDS protocol, \"Resource names\"", "the name inside of a resource is that by which it is discovered", "any resource"},
	{aggregateCycle, Warning, "", "gRFC A37", "no aggregate cluster is, by its clusters, a cluster of itself", "Cluster"},
	{aggregateDepth, Warning, taster.GRPC, "gRFC A37", "an aggregate cluster has at most 15 clusters below it, one in another", "Cluster"},
	{sameDomain, Warning, taster.Envoy, "envoy.config.route.v3.VirtualHost.domains", "a domain is in one virtual host of a RouteConfiguration, and once", "RouteConfiguration"},
	{sameAddress, Warning, taster.Envoy, "envoy.config.listener.v3.Listener.address", "no two listeners have the same address", "Listener"},
	{unreachableRoute, Hint, "", "envoy.config.route.v3.VirtualHost.routes", "no route is behind one that matches every request", "VirtualHost"},
	{unused, Hint, "", "xDS protocol, \"Resource types\"", "a listener leads to each resource that has to be named", "any resource"},
}

// rules are all rules, by their IDs, and in the order of docs/lint.md.
var rules, inOrder = func() (map[string]*Rule, []*Rule) {
	byID := map[string]*Rule{}
	var all []*Rule
	add := func(r Rule) {
		byID[r.ID] = &r
		all = append(all, &r)
	}
	for _, r := range own {
		add(r)
	}
	for _, r := range taster.Rules() {
		severity := Warning
		if r.By == taster.All {
			severity = Error
		}
		add(Rule{r.ID, severity, r.By, r.Source, r.Want, r.Of})
	}
	return byID, all
}()

// ReadableFile is the rule that files break which cannot be read. The reader of the files adds its findings.
var ReadableFile = rules[readable]

// Rules returns all rules: those about several resources first, then those of one.
func Rules() []*Rule { return inOrder }
