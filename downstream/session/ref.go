package session

import (
	"fmt"
	"iter"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// resourceRef is how a client requests something: by a name, or by a ResourceLocator, which may have dynamic parameters
// (TP2).
type resourceRef struct {
	name    string
	locator bool
	params  string // as in cache.Scope
}

func refByName(name string) resourceRef { return resourceRef{name: name} }

func refByLocator(l *discoveryv3.ResourceLocator) resourceRef {
	return resourceRef{name: l.GetName(), locator: true, params: cache.Params(l.GetDynamicParameters()).String()}
}

// String returns what the client requests, for people.
func (a resourceRef) String() string {
	if !a.locator {
		return fmt.Sprintf("%q", a.name)
	}
	return fmt.Sprintf("%q with the dynamic parameters {%s}", a.name, a.params)
}

// key is the key of the subscription: the name, and for a locator a suffix that no name has.
func (a resourceRef) key() string {
	if !a.locator {
		return a.name
	}
	return a.name + "\x00" + a.params
}

// of returns how the client would request another name in the same way.
func (a resourceRef) of(name string) resourceRef {
	a.name = name
	return a
}

// memberKey returns the key of a name's resource in a set.
func memberKey(name string) string {
	if k, err := urn.KeyOf(name); err == nil {
		return k.Name
	}
	return name
}

// globOf returns the glob collection that a canonical xdstp name is in.
// TP1: "Glob": one level, and the same context parameters.
func globOf(name string) string {
	path, params, _ := strings.Cut(name, "?")
	glob := path[:strings.LastIndexByte(path, '/')+1] + "*"
	if params != "" {
		glob += "?" + params
	}
	return glob
}

// canonicalGlob returns the canonical name of the glob that a client requests, without directives, also those folded
// into the name.
func canonicalGlob(name string) string {
	if u, err := urn.Unfold(name); err == nil {
		return u.Key().Name
	}
	return withoutDirectives(name)
}

// isGlob reports whether an xdstp name is that of a glob collection, however it is spelled.
func isGlob(name string) bool {
	if !urn.IsXdstp(name) {
		return false
	}
	if strings.Contains(name, "%") { // escaped, or with directives folded into it
		if u, err := urn.Unfold(name); err == nil {
			return u.Key().Glob
		}
	}
	path, _, _ := strings.Cut(withoutDirectives(name), "?")
	return strings.HasSuffix(path, "/*")
}

func withoutDirectives(name string) string {
	name, _, _ = strings.Cut(name, "#")
	return name
}

// refsIn iterates over everything that a request asks for.
func refsIn(req *discoveryv3.DiscoveryRequest) iter.Seq[resourceRef] {
	return func(yield func(resourceRef) bool) {
		for _, name := range req.GetResourceNames() {
			if !yield(refByName(name)) {
				return
			}
		}
		for _, l := range req.GetResourceLocators() {
			if !yield(refByLocator(l)) {
				return
			}
		}
	}
}

// put adds to a map, and makes the map if it is nil.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}
