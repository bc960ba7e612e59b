package authority

// Names with directives. The relay itself evaluates the directives, with the resources of the names
// without them. TP1: "URI-based xDS resource names".

import (
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// collection is the suffix of the types of list collections. The text before it is the type of
// the entries. TP1: "List".
const collection = "Collection"

// parseDirectives returns the URL of a name with directives, even if the client has folded
// them into the id. ok is false for a name without directives.
func parseDirectives(name string) (u urn.URL, ok bool, err error) {
	if !urn.IsXdstp(name) || !strings.Contains(name, "#") && !strings.Contains(name, "%23") {
		return u, false, nil
	}
	u, err = urn.Unfold(name)
	return u, err != nil || u.String() != u.Key().Name, err
}

// directed routes a name with directives.
func (r *Router) directed(name string, u urn.URL) (Route, error) {
	key := u.Key()
	if _, entry := u.Entry(); key.Glob && entry {
		return Route{}, &urn.Error{Name: name, Offset: strings.LastIndexByte(name, '#'), Part: name[strings.LastIndexByte(name, '#')+1:],
			Problem: "entry of a glob collection", Want: "an entry of a list collection"}
	}
	if !r.anyKnown(u) {
		return Route{}, &UnknownAuthorityError{Name: name, Authority: key.Authority}
	}
	u = u.Map(r.withPolicies)
	if entry, ok := u.Entry(); ok {
		if key.Type, ok = strings.CutSuffix(key.Type, collection); !ok {
			return Route{}, &urn.Error{Name: name, Offset: strings.LastIndexByte(name, '#'), Part: "entry=" + entry,
				Problem: "entry of a name that is not a list collection", Want: "a type that ends in " + collection}
		}
	}
	key.Name = u.String()
	return Route{Scope: cache.Scope{Authority: key.Authority, Derived: cache.Resolved}, Key: key}, nil
}

// withPolicies returns the key with which the relay requests a name from its authority: without the
// context parameters that the authority's policy drops. A name that lacks a required parameter stays
// unchanged; looking it up will fail.
func (r *Router) withPolicies(key urn.Key) urn.Key {
	i, ok := r.find(key.Authority)
	if !ok {
		return key
	}
	if requested, err := withPolicy(r.authorities[i].ContextParameters, key.Name, key); err == nil {
		return requested
	}
	return key
}

// anyKnown reports whether the authority of a URL or of one of its alternatives is
// configured.
func (r *Router) anyKnown(u urn.URL) bool {
	for more := true; more; u, more = u.Alt() {
		if _, ok := r.find(u.Key().Authority); ok {
			return true
		}
	}
	return false
}

// Xdstp routes an xdstp name as a client requests it: with directives, perhaps folded into
// the id (urn.Unfold). For a name without directives it is Leaf.
func (r *Router) Xdstp(name string) (Route, error) {
	switch u, ok, err := parseDirectives(name); {
	case err != nil:
		return Route{}, err
	case ok:
		return r.directed(name, u)
	}
	return r.Leaf(name)
}
