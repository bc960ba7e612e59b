package authority

// Names with directives. The relay itself evaluates them, from the names in them. TP1:
// "URI-based xDS resource names".

import (
	"fmt"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// collection is the suffix of the types of list collections. The entries are of the type
// before it. TP1: "List".
const collection = "Collection"

// parseDirectives returns the URL of a name with directives, also if the client has folded
// them into the id.
func parseDirectives(name string) (u urn.URL, ok bool, err error) {
	if !urn.IsName(name) || !strings.Contains(name, "#") && !strings.Contains(name, "%23") {
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
				Problem: "entry of a name that is no list collection", Want: "a type that ends in " + collection}
		}
	}
	key.Name = u.String()
	return Route{Scope: cache.Scope{Authority: key.Authority, Derived: cache.Resolved}, Key: key}, nil
}

// withPolicies returns the key with which an authority is requested. A name that lacks a
// required parameter stays as it is; looking it up will fail.
func (r *Router) withPolicies(key urn.Key) urn.Key {
	i, ok := r.find(key.Authority)
	if !ok {
		return key
	}
	if asked, err := withPolicy(r.authorities[i].ContextParameters, key.Name, key); err == nil {
		return asked
	}
	return key
}

// anyKnown reports whether the authority of a URL, or of one of its alternatives, is
// configured.
func (r *Router) anyKnown(u urn.URL) bool {
	for more := true; more; u, more = u.Alt() {
		if _, ok := r.find(u.Key().Authority); ok {
			return true
		}
	}
	return false
}

// explainDirectives explains a name with directives.
func (r *Router) explainDirectives(steps *strings.Builder, u urn.URL) {
	first := true
	for more := true; more; u, more = u.Alt() {
		if first {
			fmt.Fprintf(steps, "it has directives, which the relay evaluates: it is %s\n", describeURL(u))
		} else {
			fmt.Fprintf(steps, "or, if that is unavailable, %s\n", describeURL(u))
		}
		first = false
		if route, err := r.Leaf(u.Key().Name); err != nil {
			fmt.Fprintf(steps, "which has no source: %v\n", err)
		} else {
			r.explainSource(steps, route.Scope)
		}
	}
}

func describeURL(u urn.URL) string {
	if entry, ok := u.Entry(); ok {
		return fmt.Sprintf("the entry %s of %s", entry, u.Key().Name)
	}
	return u.Key().Name
}
