// Package authority says where a resource name belongs: to which authority,
// and for an old-style name to which partition of it, and what feeds that
// authority.
//
// TP1: "Federation". An xdstp name says its authority itself and means the
// same to every client. What an old-style name means depends on the client's
// Node, so the configuration's rules decide.
package authority

// This file is the way from a name to its scope. errors.go has what can go
// wrong on it, explain.go tells it to people.

import (
	"errors"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/urn"
)

// Route is where an xdstp name belongs.
type Route struct {
	// Scope is the authority's: a concrete one, never a pattern. It may be the
	// empty one. Of a name with directives it is Derived, and the authority need not
	// be one that is configured.
	Scope cache.Scope
	// Key is what the name is known by, which may be that of a glob collection: two
	// spellings of one name have equal keys, and so have two names that differ in
	// nothing but context parameters that the authority's policy drops; the members of
	// such globs are told in the names that they have in the client's. It names the
	// resource's type, which is to be the type that the client asks for (see Under).
	Key urn.Key
}

// Under says whether the name may be asked for under the type of that message name:
// its own, or of a list collection its members', for whoever asks for listeners and
// names a collection of them. TP1: "List collections".
func (r Route) Under(asked string) bool {
	return asked == r.Key.Type || !r.Key.Glob && asked+"Collection" == r.Key.Type
}

// Router routes names by a configuration. It does not change, and is safe for
// concurrent use.
type Router struct {
	exact map[string]int // indexes of authorities, by name
	// suffixes are the indexes of authorities that are patterns, by what
	// follows the *, which begins with a dot.
	suffixes    map[string]int
	authorities []configs.Authority
	rules       []configs.Rule
	views       []configs.View
	viewsOf     viewIndex
}

// New returns a router for cfg, which comes from configs.Load or
// configs.Parse.
func New(cfg *configs.Config) *Router {
	r := &Router{
		exact:       map[string]int{},
		suffixes:    map[string]int{},
		authorities: cfg.Authorities,
		rules:       cfg.OldStyleNames,
		views:       cfg.Views,
		viewsOf:     newViewIndex(cfg.Views),
	}
	for i, a := range cfg.Authorities {
		if suffix, ok := strings.CutPrefix(a.Name, "*"); ok {
			r.suffixes[suffix] = i
		} else {
			r.exact[a.Name] = i
		}
	}
	return r
}

// Xdstp routes an xdstp name as a client asks for it, who may have directives in it
// or may have folded them into it (urn.Unfold). If it has none, this is Leaf.
func (r *Router) Xdstp(name string) (Route, error) {
	switch u, ok, err := directives(name); {
	case err != nil:
		return Route{}, err
	case ok:
		return r.derived(name, u)
	}
	return r.Leaf(name)
}

// Leaf routes an xdstp name without directives, by the authority in it: a configured
// authority of that name, else the pattern with the longest suffix. Each authority
// that a pattern covers is a scope of its own.
//
// A name that cannot be parsed, or is not xdstp, gives a *urn.Error; one of an
// authority that is not configured an *UnknownAuthorityError, for the relay
// connects to nothing that the configuration does not name; and one that lacks
// a context parameter that its authority requires a *MissingParameterError.
func (r *Router) Leaf(name string) (Route, error) {
	key, err := urn.KeyOf(name)
	switch {
	case err != nil:
		return Route{}, err
	case !urn.IsName(name):
		_, err := urn.ParseURN(name)
		return Route{}, err
	}
	i, ok := r.find(key.Authority)
	if !ok {
		return Route{}, &UnknownAuthorityError{Name: name, Authority: key.Authority}
	}
	if key, err = withPolicy(r.authorities[i].ContextParameters, name, key); err != nil {
		return Route{}, err
	}
	return Route{Scope: cache.Scope{Authority: key.Authority}, Key: key}, nil
}

// Opaque routes a name that begins as an xdstp name of a configured authority does and
// that Xdstp cannot route, because it is no name, or that has no id, or that is asked for
// under another type than its own: the authority is asked for it as it is. So gRPC does,
// and a control plane may have given such names. Not so what lacks a parameter that its authority requires,
// what has directives, which are for the relay, and what is or looks like a glob.
//
// The key of what is no name is no other name's key: those are names in their canonical
// spelling.
func (r *Router) Opaque(name string) (Route, bool) {
	var bad *urn.Error
	switch route, err := r.Leaf(name); {
	case err == nil && !urn.HasID(name):
		if route.Key.Name != canonical(name) {
			return Route{}, false // without what is dropped it is another
		}
		route.Key.Name = name
		return route, true
	case err == nil:
		return route, !route.Key.Glob
	case !errors.As(err, &bad):
		return Route{}, false
	}
	authority, ok := urn.AuthorityOf(name)
	if looksGlob := (cache.Key{Name: name}).IsSet(); !ok || looksGlob {
		return Route{}, false
	}
	if _, err := urn.ParseURL(name); err == nil {
		return Route{}, false
	}
	i, ok := r.find(authority)
	if !ok {
		return Route{}, false
	}
	if p := r.authorities[i].ContextParameters; p != nil && len(p.Require) > 0 {
		return Route{}, false
	}
	return Route{Scope: cache.Scope{Authority: authority}, Key: urn.Key{Name: name, Authority: authority}}, true
}

// OldStyle returns the scope of all old-style names, and of the wildcard, that
// a client with this Node (which may be nil) asks for under typeURL: what the
// first rule says that matches. A rule whose when cannot be evaluated does not
// match. Evaluation takes microseconds and gives the same for the same Node and
// type, so callers do it once per stream and type and not per name.
//
// If no rule matches, the error is a *NoRuleError; if the rule's partition
// cannot be evaluated, a *PartitionError.
func (r *Router) OldStyle(node *corev3.Node, typeURL string) (cache.Scope, error) {
	p, err := r.Partition(node, typeURL)
	return p.Scope, err
}

// Partition is what a rule makes of a client.
type Partition struct {
	Scope cache.Scope
	Rule  int // its index
	// Upstream are the fields of the Node that go upstream.
	Upstream configs.NodeFields
}

// Partition is OldStyle, and also says by which rule.
func (r *Router) Partition(node *corev3.Node, typeURL string) (Partition, error) {
	scope, i, err := r.oldStyle(node, typeURL, func(int, error) {})
	if err != nil {
		return Partition{}, err
	}
	return Partition{Scope: scope, Rule: i, Upstream: r.rules[i].Upstream()}, nil
}

// oldStyle is OldStyle. It also returns the index of the rule, and tells
// passed about each rule before it that did not match, and the error if it
// could not be evaluated.
func (r *Router) oldStyle(node *corev3.Node, typeURL string, passed func(int, error)) (cache.Scope, int, error) {
	for i := range r.rules {
		rule := &r.rules[i]
		if ok, err := rule.Matches(node, typeURL); !ok {
			passed(i, err)
			continue
		}
		partition, err := rule.PartitionOf(node, typeURL)
		if err != nil {
			return cache.Scope{}, i, &PartitionError{Rule: i, Partition: rule.Partition, Node: node.GetId(), Err: err}
		}
		return cache.Scope{Authority: rule.Authority, Partition: partition, OldStyle: true}, i, nil
	}
	return cache.Scope{}, -1, &NoRuleError{Node: node.GetId(), Cluster: node.GetCluster(), TypeURL: typeURL}
}

// Source returns the configured authority that feeds a scope: its servers or
// its directory. Several scopes have the same source, as those of a pattern
// do. It returns false for a scope that this router did not make. The result
// is shared and not to be changed.
func (r *Router) Source(scope cache.Scope) (*configs.Authority, bool) {
	i, ok := r.find(scope.Authority)
	if !ok {
		return nil, false
	}
	return &r.authorities[i], true
}

func canonical(name string) string {
	key, _ := urn.KeyOf(name)
	return key.Name
}

// find returns the index of the authority that serves name.
func (r *Router) find(name string) (int, bool) {
	if i, ok := r.exact[name]; ok {
		return i, true
	}
	for dot := 1; dot < len(name); dot++ {
		if name[dot] == '.' {
			if i, ok := r.suffixes[name[dot:]]; ok {
				return i, true
			}
		}
	}
	return 0, false
}
