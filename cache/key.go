package cache

import (
	"strings"

	"github.com/xds-relay/xds-relay/urn"
)

// Scope is a namespace of resource names: a name means one resource in one scope. Each scope has
// its own source.
type Scope struct {
	// Authority is the authority's name, as in the configuration.
	Authority string
	// Partition distinguishes the nodes that see different resources under the
	// same old-style names. Empty for xdstp names.
	Partition string
	// OldStyle is set in scopes of old-style names. xdstp names never share a scope with them, and
	// so no stream either: the relay requests xdstp names with its own Node.
	OldStyle bool
	// Derived is set in scopes whose topics are computed from others: [Resolved], [Passed],
	// or the name of a view. It is empty in scopes that have what an authority sends.
	Derived string
	// New is set in scopes that have the new state of a rollout, for the clients that get it
	// first. The accepted state, and all that is not rolled out, is in the scope without New.
	New bool
	// Params distinguishes requests with different dynamic parameters, which select different
	// variants under the same names (TP2). [Params.String] makes it. It is empty for none.
	Params string
}

// String prints the scope for logs: `authority` or `authority/partition`, followed by the other
// fields in brackets.
func (s Scope) String() string {
	name := s.Authority
	if s.Partition != "" {
		name += "/" + s.Partition
	}
	if s.Derived != "" {
		name += "[" + s.Derived + "]"
	}
	if s.New {
		name += "[new]"
	}
	if s.Params != "" {
		name += "{" + s.Params + "}"
	}
	return name
}

// compare orders scopes.
func (s Scope) compare(o Scope) int {
	if s == o {
		return 0
	}
	if c := strings.Compare(s.String(), o.String()); c != 0 || s.OldStyle == o.OldStyle {
		return c
	}
	if s.OldStyle {
		return 1
	}
	return -1
}

// Accepted returns the scope with the same names that has the accepted state and is not derived.
func (s Scope) Accepted() Scope {
	s.Derived, s.New = "", false
	return s
}

// IsView reports whether the scope has topics of a view.
func (s Scope) IsView() bool { return s.Derived != "" && s.Derived != Resolved && s.Derived != Passed }

// Resolved is the Scope.Derived of topics for which the relay follows redirects and evaluates
// directives. Their names may have directives. TP1: "Server redirects", "Alternatives".
const Resolved = "resolved"

// Passed is like Resolved, but for clients that follow redirects themselves: the relay evaluates
// directives and passes redirects on.
const Passed = "passed"

// Key names one topic.
type Key struct {
	Scope   Scope
	TypeURL string
	// Name is a canonical xdstp name or glob, an unchanged old-style name, or
	// Wildcard.
	Name string
}

// IsSet reports whether the topic is a Set and not an Entry: a wildcard or a glob collection.
func (k Key) IsSet() bool { return k.Name == Wildcard || !k.Scope.OldStyle && isGlob(k.Name) }

// copies reports whether the topic has copies of a set's resources, and clients can make up such
// topics: globs with directives.
func (k Key) copies() bool {
	return k.Scope.Derived != "" && k.IsSet() && strings.Contains(k.Name, "#")
}

// isGlob reports whether a canonical xdstp name is a glob. TP1: "Glob".
func isGlob(name string) bool {
	if !urn.IsXdstp(name) {
		return false
	}
	name, _, _ = strings.Cut(name, "#")
	name, _, _ = strings.Cut(name, "?")
	return strings.HasSuffix(name, "/*")
}

// Wildcard is the name of the set of all resources that the control plane has for a node.
// xDS: "How the client specifies what resources to return".
const Wildcard = "*"
