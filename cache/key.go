package cache

import (
	"strings"

	"github.com/xds-relay/xds-relay/urn"
)

// Scope is a namespace of resource names: what has one name in one scope is one
// resource. It also decides who feeds a topic: one stream upstream for the scopes that
// differ in Params only.
type Scope struct {
	// Authority is the authority's name, as in the configuration.
	Authority string
	// Partition tells apart the nodes that see different resources under the
	// same old-style names. Empty for xdstp names.
	Partition string
	// OldStyle is set in scopes of old-style names. xdstp names never share a
	// scope, and so a stream, with old-style ones: they are asked for with the
	// relay's own Node.
	OldStyle bool
	// Derived is set in scopes whose topics are fed from other topics: [Resolved],
	// [Passed], or the name of a view. Empty for what an authority says itself.
	Derived string
	// Params tells apart who asks with different dynamic parameters, and so for
	// different variants under the same names (TP2). It is made by [Params.String],
	// and empty for none.
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
	if s.Params != "" {
		name += "{" + s.Params + "}"
	}
	return name
}

// Resolved is the Scope.Derived of names as clients are to see them, where that is
// not what the authority says of the name itself: redirects followed, directives
// obeyed. Names there may have directives. TP1: "Server redirects", "Alternatives".
const Resolved = "resolved"

// Passed is as Resolved for clients that follow redirects themselves: directives are
// obeyed, and what is found is given as it is, redirect or not.
const Passed = "passed"

// Key names one topic.
type Key struct {
	Scope   Scope
	TypeURL string
	// Name is a canonical xdstp name or glob, an old-style name as it is, or
	// Wildcard.
	Name string
}

// IsSet says that the topic is a Set and not an Entry: that of a wildcard or a
// glob collection.
func (k Key) IsSet() bool { return k.Name == Wildcard || !k.Scope.OldStyle && isGlob(k.Name) }

// copies says that the topic has copies of what a set has: a glob with an alternative. All
// others are as many as the authority's sets, or are configured.
func (k Key) copies() bool {
	return k.Scope.Derived != "" && k.IsSet() && strings.Contains(k.Name, "#")
}

// isGlob says whether a canonical xdstp name is a glob. TP1: "Glob".
func isGlob(name string) bool {
	if !urn.IsName(name) {
		return false
	}
	name, _, _ = strings.Cut(name, "#")
	name, _, _ = strings.Cut(name, "?")
	return strings.HasSuffix(name, "/*")
}

// Wildcard is the name of the set of all that a node is to have.
// xDS: "How the client specifies what resources to return".
const Wildcard = "*"
