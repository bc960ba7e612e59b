package cache

// Scope is a namespace of resource names: what has one name in one scope is one
// resource. It also decides who feeds a topic: one stream per scope upstream.
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
	// Params tells apart who asks with different dynamic parameters, and so for
	// different variants under the same names (TP2). It is made by [Params.String],
	// and empty for none.
	Params string
}

// String prints the scope for logs: `authority` or `authority/partition`.
func (s Scope) String() string {
	name := s.Authority
	if s.Partition != "" {
		name += "/" + s.Partition
	}
	if s.Params != "" {
		name += "{" + s.Params + "}"
	}
	return name
}

// Key names one topic.
type Key struct {
	Scope   Scope
	TypeURL string
	// Name is a canonical xdstp name, an old-style name as it is, or Wildcard.
	Name string
}

// Wildcard is the name of the set of all that a node is to have.
// xDS: "How the client specifies what resources to return".
const Wildcard = "*"
