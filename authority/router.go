// Package authority maps a resource name to its authority (and an old-style name also to a
// partition), and an authority to the source of its resources.
//
// TP1: "Federation". An xdstp name contains its authority and means the same to every
// client. The meaning of an old-style name depends on the client's Node, so the
// configuration's rules decide.
package authority

// This file maps names to scopes. errors.go has the errors, explain.go the explanations for
// people.

import (
	"errors"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/urn"
)

// Route is the result of routing an xdstp name.
type Route struct {
	// Scope is the scope of the authority, whose name is concrete, never a pattern, and may
	// be empty. For a name with directives, the scope is Derived, and its authority need not be
	// configured.
	Scope cache.Scope
	// Key identifies the resource or glob collection. Two spellings of one name have equal
	// keys. So do two names that differ only in context parameters that the authority's
	// policy drops; clients receive the members of such globs with names under their own glob.
	// Key.Type must be the type that the client requests (see Under).
	Key urn.Key
}

// Under reports whether a client may request the name under a type, given by its message name: the
// type of the name or, for a list collection, the type of its members. Some clients request the type
// Listener and name a collection of listeners. TP1: "List collections".
func (r Route) Under(requested string) bool {
	return requested == r.Key.Type || !r.Key.Glob && requested+"Collection" == r.Key.Type
}

// Router routes names by a configuration. It is immutable and safe for concurrent use.
type Router struct {
	exact map[string]int // indexes of authorities, by name
	// suffixes are the indexes of authorities that are patterns, by the text after the *,
	// which begins with a dot.
	suffixes    map[string]int
	authorities []configs.Authority
	rules       []configs.Rule
	views       []configs.View
	viewsOf     viewIndex
	// viewScopes are the names of the views' scopes. namedViews is how many such names this router and
	// those before it have used.
	viewScopes []string
	namedViews int
}

// New returns a router for cfg, a result of configs.Load or configs.Parse.
func New(cfg *configs.Config) *Router { return After(nil, cfg) }

// After returns the router for cfg that replaces the router before. An authority or view that both
// routers have keeps its topics.
func After(before *Router, cfg *configs.Config) *Router {
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
	r.nameViews(before)
	return r
}

// Leaf routes an xdstp name without directives: to the configured authority of that name,
// otherwise to the pattern with the longest suffix. Each authority that a pattern covers has
// a scope of its own.
//
// The error for a name that cannot be parsed, or is not xdstp, is a *urn.Error; for an authority
// that is not configured, an *UnknownAuthorityError, because the relay connects only to what
// the configuration names; for a missing required context parameter, a
// *MissingParameterError.
func (r *Router) Leaf(name string) (Route, error) {
	key, err := urn.KeyOf(name)
	switch {
	case err != nil:
		return Route{}, err
	case !urn.IsXdstp(name):
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

// Opaque routes a name of a configured authority that Xdstp cannot route because it is
// malformed, has no id, or is requested under another type than its own. The relay requests
// it from its authority unchanged, as gRPC does: a control plane may use such names.
// Opaque does not route names that may lack a required parameter, names with directives,
// which the relay evaluates, and names that are or look like globs.
//
// The key of a malformed name differs from every other key, because the names of other keys are
// canonical spellings.
func (r *Router) Opaque(name string) (Route, bool) {
	var bad *urn.Error
	switch route, err := r.Leaf(name); {
	case err == nil && !urn.HasID(name):
		if route.Key.Name != canonical(name) {
			return Route{}, false // the policy drops parameters, so the key has another name
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

// OldStyle returns the scope of all old-style names, and of the wildcard, that a client requests
// under typeURL. The first matching rule decides. A rule whose when cannot be evaluated does not
// match. An evaluation takes microseconds, and its result depends only on the client and the type,
// so callers evaluate once per stream and type and not per name.
//
// If no rule matches, the error is a *NoRuleError; if the rule's partition cannot be
// evaluated, a *PartitionError.
func (r *Router) OldStyle(client configs.Client, typeURL string) (cache.Scope, error) {
	p, err := r.Partition(client, typeURL)
	return p.Scope, err
}

// Partition is the result of the rule that matches a client.
type Partition struct {
	Scope cache.Scope
	Rule  int // its index
	// Upstream are the fields of the Node that the relay sends to control planes.
	Upstream configs.NodeFields
}

// Partition is like OldStyle, and also returns the rule that matched.
func (r *Router) Partition(client configs.Client, typeURL string) (Partition, error) {
	scope, i, err := r.oldStyle(client, typeURL, func(int, error) {})
	if err != nil {
		return Partition{}, err
	}
	return Partition{Scope: scope, Rule: i, Upstream: r.rules[i].Upstream()}, nil
}

// oldStyle is like OldStyle, and also returns the index of the rule, -1 if none matches. It calls
// skipped for each rule before that one, with the error if the rule could not be evaluated.
func (r *Router) oldStyle(client configs.Client, typeURL string, skipped func(int, error)) (cache.Scope, int, error) {
	for i := range r.rules {
		rule := &r.rules[i]
		if ok, err := rule.Matches(client, typeURL); !ok {
			skipped(i, err)
			continue
		}
		partition, err := rule.PartitionOf(client, typeURL)
		if err != nil {
			return cache.Scope{}, i, &PartitionError{Rule: i, Partition: rule.Partition, Node: client.Node.GetId(), Err: err}
		}
		return cache.Scope{Authority: rule.Authority, Partition: partition, OldStyle: true}, i, nil
	}
	return cache.Scope{}, -1, &NoRuleError{Node: client.Node.GetId(), Cluster: client.Node.GetCluster(), TypeURL: typeURL}
}

// Canonical returns the spelling of an authority to which rights rules apply: the configured spelling,
// found regardless of case, or lower case for an authority that only a pattern covers. Control planes
// may ignore the case.
func (r *Router) Canonical(authority string) string {
	if _, ok := r.exact[authority]; ok {
		return authority
	}
	for i := range r.authorities {
		if name := r.authorities[i].Name; strings.EqualFold(name, authority) && !strings.HasPrefix(name, "*") {
			return name
		}
	}
	return strings.ToLower(authority)
}

// Source returns the configured authority of a scope, with its servers or its directory. All
// scopes of a pattern have the same one. Source returns false if the authority is not configured.
// The caller must not change the result.
func (r *Router) Source(scope cache.Scope) (*configs.Authority, bool) {
	i, ok := r.find(scope.Authority)
	if !ok {
		return nil, false
	}
	return &r.authorities[i], true
}

// Rollout returns the configured rollout of a scope, nil if there is none.
func (r *Router) Rollout(scope cache.Scope) *configs.Rollout {
	if a, ok := r.Source(scope); ok {
		return a.Rollout
	}
	return nil
}

func canonical(name string) string {
	key, _ := urn.KeyOf(name)
	return key.Name
}

// find returns the index of the configured authority for a name: the one with that name, or the
// pattern with the longest suffix.
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

// viewKey is the request that a view replaces: a canonical xdstp name, or a type's wildcard.
type viewKey struct{ typeURL, name string }

// viewIndex are the indexes of the views for each viewKey, in order.
type viewIndex map[viewKey][]int

func newViewIndex(views []configs.View) viewIndex {
	x := viewIndex{}
	for i, v := range views {
		what := viewKey{string(v.Match.Type), cache.Wildcard}
		if !v.Match.Wildcard {
			what = viewKey{name: v.Match.Glob + v.Match.List}
		}
		x[what] = append(x[what], i)
	}
	return x
}
