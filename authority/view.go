package authority

// Views: the choice of a view for a client's request.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// ViewScope returns the Scope.Derived of a view's topics, by the view's index.
func (r *Router) ViewScope(i int) string { return r.viewScopes[i] }

// nameViews names the scopes of views. A view that the previous router had keeps its name. Any other
// view gets a name that no view has had, so that it gets new topics.
func (r *Router) nameViews(before *Router) {
	names := map[string][]string{}
	if before != nil {
		r.namedViews = before.namedViews
		for i := range before.views {
			content := viewContent(&before.views[i])
			names[content] = append(names[content], before.viewScopes[i])
		}
	}
	for i := range r.views {
		content := viewContent(&r.views[i])
		if same := names[content]; len(same) > 0 {
			r.viewScopes, names[content] = append(r.viewScopes, same[0]), same[1:]
			continue
		}
		r.viewScopes = append(r.viewScopes, fmt.Sprintf("view/%d", r.namedViews))
		r.namedViews++
	}
}

// viewContent returns a fingerprint of the settings on which a view's topics depend.
func viewContent(v *configs.View) string {
	return configs.Fingerprint(struct {
		Match       any
		Collections []string
		Rename      bool
	}{v.Match, v.Collections, v.Rename})
}

// ViewMatcher reports whether the view with an index matches a client. The error says why its
// expression could not be evaluated.
type ViewMatcher func(i int) (bool, error)

// ViewMatcher returns the matcher for a client. It evaluates the
// expression of a view at most once. It is not safe for concurrent use.
func (r *Router) ViewMatcher(client configs.Client) ViewMatcher {
	if len(r.views) == 0 {
		return matchesNone
	}
	type answer struct {
		ok  bool
		err error
	}
	var answers map[int]answer
	return func(i int) (bool, error) {
		a, known := answers[i]
		if !known {
			a.ok, a.err = r.views[i].Matches(client)
			if answers == nil {
				answers = map[int]answer{}
			}
			answers[i] = a
		}
		return a.ok, a.err
	}
}

func matchesNone(int) (bool, error) { return false, nil }

// View returns the topic of the first view for a name under typeURL that matches the client. It
// returns false if there is none. A view whose when cannot be evaluated does not match.
func (r *Router) View(typeURL, name string, matches ViewMatcher) (cache.Key, bool) {
	k, _, ok := r.view(typeURL, name, matches, func(int, error) {})
	return k, ok
}

// view is like View, and also returns the index of the view. It calls skipped for each earlier view
// of the same name that does not match, with the error if the view could not be evaluated.
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
		return cache.Key{Scope: cache.Scope{Derived: r.ViewScope(i)}, TypeURL: typeURL, Name: what.name}, i, true
	}
	return cache.Key{}, 0, false
}

// Shadows returns the index of a view that the client would get for another spelling of its request:
// of the type, of the authority, or with context parameters that the authority's policy drops. It
// returns false if no such view matches the client. name has no directives.
//
// Rights rules do not distinguish such spellings. A client may have the name only because it is to
// get the view, so it must not get the collection itself under another spelling.
func (r *Router) Shadows(typeURL, name string, matches ViewMatcher) (int, bool) {
	for i := range r.views {
		if !r.spelledAlike(&r.views[i], typeURL, name) {
			continue
		}
		if ok, _ := matches(i); ok {
			return i, true
		}
	}
	return 0, false
}

// spelledAlike reports whether rights rules cannot distinguish a request from the request that a view
// replaces.
func (r *Router) spelledAlike(v *configs.View, typeURL, name string) bool {
	match := v.Match.Glob + v.Match.List
	if v.Match.Wildcard || name == cache.Wildcard {
		return v.Match.Wildcard && name == cache.Wildcard && xdstype.OfResources(typeURL) == xdstype.OfResources(string(v.Match.Type))
	}
	requested, ok := r.asRulesSee(name)
	if !ok {
		return false
	}
	matched, ok := r.asRulesSee(match)
	return ok && requested == matched
}

// seenName is a name as rights rules see it.
type seenName struct{ authority, path string }

// asRulesSee returns a name as rights rules see it, or false for a name that has no canonical spelling.
func (r *Router) asRulesSee(name string) (seenName, bool) {
	if !urn.IsXdstp(name) {
		return seenName{}, false
	}
	key, err := urn.KeyOf(name)
	if err != nil {
		return seenName{}, false
	}
	key = r.withPolicies(key)
	_, path, _ := strings.Cut(strings.TrimPrefix(key.Name, "xdstp://"), "/")
	return seenName{r.Canonical(key.Authority), path}, true
}

// ViewSources returns the scopes of the collections of a view, and of their alternatives, that the
// configuration names.
func (r *Router) ViewSources(view cache.Scope) []cache.Scope {
	var scopes []cache.Scope
	for i := range r.views {
		if r.ViewScope(i) != view.Derived {
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
