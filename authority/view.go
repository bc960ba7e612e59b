package authority

// Views: the choice of a view for a client's request.

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// viewKey is what a view replaces: a canonical xdstp name, or a type's wildcard.
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

// ViewScope returns the Scope.Derived of a view's topics.
func ViewScope(i int) string { return fmt.Sprintf("view/%d", i) }

// ViewMatcher reports whether the view with an index matches a client. The error says why its
// expression could not be evaluated.
type ViewMatcher func(i int) (bool, error)

// ViewMatcher returns the matcher for a client with this Node (nil for none). It evaluates the
// expression of a view at most once. It is not safe for concurrent use.
func (r *Router) ViewMatcher(node *corev3.Node) ViewMatcher {
	type answer struct {
		ok  bool
		err error
	}
	var answers map[int]answer
	return func(i int) (bool, error) {
		a, known := answers[i]
		if !known {
			a.ok, a.err = r.views[i].Matches(node)
			if answers == nil {
				answers = map[int]answer{}
			}
			answers[i] = a
		}
		return a.ok, a.err
	}
}

// View returns the topic of the first view for a name under typeURL that matches the client;
// false if there is none. A view whose when cannot be evaluated does not match.
func (r *Router) View(typeURL, name string, matches ViewMatcher) (cache.Key, bool) {
	k, _, ok := r.view(typeURL, name, matches, func(int, error) {})
	return k, ok
}

// view is View, and returns the index of the view. It calls skipped for each view of the same
// name that does not match, with the error if it could not be evaluated.
func (r *Router) view(typeURL, name string, matches ViewMatcher, skipped func(int, error)) (cache.Key, int, bool) {
	if len(r.viewsOf) == 0 {
		return cache.Key{}, 0, false
	}
	what := viewKey{typeURL, name}
	if name != cache.Wildcard {
		key, err := urn.KeyOf(name)
		if err != nil || key.Type == "" || typeURL != "" && key.Type != xdstype.Message(typeURL) {
			return cache.Key{}, 0, false
		}
		what = viewKey{name: key.Name}
	}
	for _, i := range r.viewsOf[what] {
		if ok, err := matches(i); !ok {
			skipped(i, err)
			continue
		}
		return cache.Key{Scope: cache.Scope{Derived: ViewScope(i)}, TypeURL: typeURL, Name: what.name}, i, true
	}
	return cache.Key{}, 0, false
}

// ViewSources returns the scopes of a view's collections and their alternatives, as far as
// the configuration names them.
func (r *Router) ViewSources(view cache.Scope) []cache.Scope {
	var scopes []cache.Scope
	for i := range r.views {
		if ViewScope(i) != view.Derived {
			continue
		}
		for _, collection := range r.views[i].Collections {
			u, err := urn.ParseURL(collection)
			for more := err == nil; more; u, more = u.Alt() {
				if of := (cache.Scope{Authority: u.Key().Authority}); !slices.Contains(scopes, of) {
					scopes = append(scopes, of)
				}
			}
		}
	}
	return scopes
}

// explainView explains which views of a name match the client.
func (r *Router) explainView(steps *strings.Builder, node *corev3.Node, typeURL, name string) (found bool) {
	_, i, found := r.view(typeURL, name, r.ViewMatcher(node), func(i int, err error) {
		when := oneLine(r.views[i].When)
		if err != nil {
			fmt.Fprintf(steps, "views[%d] does not match: %s cannot be evaluated: %v\n", i, when, err)
			return
		}
		fmt.Fprintf(steps, "views[%d] does not match: %s is false\n", i, when)
	})
	if !found {
		return false
	}
	v := &r.views[i]
	if v.When == "" {
		fmt.Fprintf(steps, "views[%d] matches: it has no when\n", i)
	} else {
		fmt.Fprintf(steps, "views[%d] matches: %s is true\n", i, oneLine(v.When))
	}
	fmt.Fprintf(steps, "it is %s\n", describeUnion(v))
	for _, of := range r.ViewSources(cache.Scope{Derived: ViewScope(i)}) {
		r.explainSource(steps, of)
	}
	return true
}

// describeViews describes each view, one per line.
func (r *Router) describeViews(b *strings.Builder) {
	for i := range r.views {
		v := &r.views[i]
		what := v.Match.Glob + v.Match.List
		if v.Match.Wildcard {
			what = "all resources of type " + xdstype.Word(v.ResourceType())
		}
		who := "every client"
		if !v.Always() {
			who = "a client with " + oneLine(v.When)
		}
		fmt.Fprintf(b, "views[%d]: %s that requests %s gets %s\n", i, who, what, describeUnion(v))
	}
}

func describeUnion(v *configs.View) string {
	union := strings.Join(v.Collections, " and ")
	if v.Rename {
		union += ", renamed by its directory"
	}
	return union
}
