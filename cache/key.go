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
	// Partition tells apart the nodes that see different resources under the
	// same old-style names. Empty for xdstp names.
	Partition string
	// OldStyle is set in scopes of old-style names. xdstp names never share a scope, and so a
	// stream, with them: the relay requests xdstp names with its own Node.
	OldStyle bool
	// Derived is set in scopes whose topics are computed from others: [Resolved], [Passed],
	// or the name of a view. It is empty for what an authority sends.
	Derived string
	// New is set in scopes that have what is rolled out, for the clients that get it before it is
	// accepted. What is accepted, or not rolled out, is in the scope without it.
	New bool
	// Params tells apart requests with different dynamic parameters, and so for different
	// variants under the same names (TP2). [Params.String] makes it. It is empty for none.
	Params string
}

// String prints the scope for logs: `authority` or `authority/partition`, and what
// else there is of it in brackets.
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

// Accepted returns the scope of what is accepted, and not derived.
func (s Scope) Accepted() Scope {
	s.Derived, s.New = "", false
	return s
}

// Resolved is the Scope.Derived of names with redirects followed and directives obeyed, for
// clients. Names there may have directives. TP1: "Server redirects", "Alternatives".
const Resolved = "resolved"

// Passed is as Resolved, but for clients that follow redirects themselves: directives are obeyed,
// and redirects are passed on.
const Passed = "passed"

// Key names one topic.
type Key struct {
	Scope   Scope
	TypeURL string
	// Name is a canonical xdstp name or glob, an old-style name as it is, or
	// Wildcard.
	Name string
}

// IsSet reports whether the topic is a Set and not an Entry: a wildcard or a glob collection.
func (k Key) IsSet() bool { return k.Name == Wildcard || !k.Scope.OldStyle && isGlob(k.Name) }

// copies reports whether the topic has copies of a set's resources: a glob with an alternative.
// Clients cannot make up others.
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
