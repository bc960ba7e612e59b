package lint

import (
	"fmt"

	"github.com/xds-relay/xds-relay/internal/taster"
)

// Severity says what a finding means for clients.
type Severity uint8

// The severities, the worst first.
const (
	// Error: no client accepts the resource, or requests that reach it fail.
	Error Severity = iota
	// Warning: clients of one family reject the resource, or only clients know whether it is right.
	Warning
	// Hint: every client accepts the resource, but none uses it.
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

// MarshalText encodes the severity for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText decodes the text of MarshalText.
func (s *Severity) UnmarshalText(text []byte) error {
	for severity := Error; severity <= Hint; severity++ {
		if severity.String() == string(text) {
			*s = severity
			return nil
		}
	}
	return fmt.Errorf("unknown severity %q (want error, warning or hint)", text)
}

// Rule is a requirement for resources.
type Rule struct {
	// ID is the name of the rule, in kebab-case.
	ID string
	// Severity is the severity of the rule's findings. Some findings have a lower one.
	Severity Severity
	// RejectedBy names the clients that reject a resource that breaks the rule: all, envoy or grpc. It is empty if
	// clients accept the resource.
	RejectedBy taster.Family
	// Source is the document that has the requirement.
	Source string
	// Want is the requirement.
	Want string
	// Of is the message that the rule is about.
	Of string
}

// The rules of this package.
const (
	readable         = "readable-file"
	known            = "known-fields"
	dangling         = "dangling-reference"
	aggregateCycle   = "aggregate-cycle"
	aggregateDepth   = "aggregate-depth"
	sameAddress      = "same-address"
	sameDomain       = "same-domain"
	unreachableRoute = "unreachable-route"
	unused           = "unused-resource"
	otherName        = "other-name"
	localityWeight   = "locality-weight"
	ignoredRoute     = "ignored-route"
	caseSensitive    = "case-sensitive"
	totalWeight      = "total-weight"
	upstreamConfig   = "upstream-config"
	aggregatePolicy  = "aggregate-policy"
)

// own are the rules of this package.
var own = []Rule{
	{readable, Error, "", "docs/configure.md", "a file has a supported format, and no resource is defined twice", "files"},
	{known, Warning, "", "Envoy, \"Filesystem subscriptions\"", "the messages have all fields of a file, and the enums all values: Envoy and the relay ignore others", "files"},
	{dangling, Error, "", "xDS protocol, \"Eventual consistency considerations\"", "every resource that another one references exists", "any resource"},
	{otherName, Error, "", "xDS protocol, \"Resource names\"", "the name inside a resource is the one by which clients discover it", "any resource"},
	{aggregateCycle, Warning, "", "gRFC A37", "no aggregate cluster contains itself, directly or through other clusters", "Cluster"},
	{aggregateDepth, Warning, taster.GRPC, "gRFC A37", "an aggregate cluster has at most 15 levels of clusters below it", "Cluster"},
	{sameDomain, Warning, taster.Envoy, "envoy.config.route.v3.VirtualHost.domains", "a domain occurs only once in a RouteConfiguration", "RouteConfiguration"},
	{sameAddress, Warning, taster.Envoy, "envoy.config.listener.v3.Listener.address", "no two listeners have the same address", "Listener"},
	{localityWeight, Warning, taster.GRPC, "gRFC A27", "every locality with endpoints has a load_balancing_weight: gRPC ignores others, in silence", "ClusterLoadAssignment"},
	{ignoredRoute, Warning, taster.GRPC, "gRFC A28", "no route has query_parameters or cluster_header: gRPC ignores these routes, in silence", "VirtualHost"},
	{caseSensitive, Warning, taster.GRPC, "gRFC A28", "case_sensitive is not false", "VirtualHost"},
	{totalWeight, Warning, taster.GRPC, "gRFC A28", "the weights add up to total_weight, if that is set; Envoy ignores it", "VirtualHost"},
	{upstreamConfig, Warning, taster.GRPC, "gRFC A75", "upstream_config has HttpProtocolOptions, with an idle_timeout that is a duration from 0 on", "Cluster"},
	{aggregatePolicy, Warning, "", "gRFC A75, gRPC-Go", "an aggregate cluster for gRPC-Go has another lb_policy than CLUSTER_PROVIDED", "Cluster"},
	{unreachableRoute, Hint, "", "envoy.config.route.v3.VirtualHost.routes", "no route follows one that matches every request", "VirtualHost"},
	{unused, Hint, "", "xDS protocol, \"Resource types\"", "every resource that needs a reference is reachable from a listener", "any resource"},
}

// rules has all rules by ID, and inOrder has them in the order of docs/lint.md.
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

// ReadableFile is the rule that unreadable files break. The reader of the files adds its findings.
var ReadableFile = rules[readable]

// KnownFields is the rule that fields break that a file's messages do not have. The reader of the files adds its findings.
var KnownFields = rules[known]

// Rules returns all rules: first those about several resources, then those about one.
func Rules() []*Rule { return inOrder }
