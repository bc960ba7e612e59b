package urn

// The two forms of xdstp names, as values.

import "strings"

// URN is the name of one resource, without directives and not a glob. URNs can be compared with
// ==. The zero URN names nothing, prints as "" and has the zero Key.
// TP1: "URI-based xDS resource names".
type URN struct{ key Key }

// ParseURN parses the name of a resource. All its errors are an [*Error]. A glob, a name with
// directives and an old-style name are errors.
func ParseURN(name string) (URN, error) {
	_, key, err := canonical(name, 0)
	return URN{key}, err
}

// String returns the canonical spelling.
func (u URN) String() string { return u.key.Name }

// Key returns the URN's key.
func (u URN) Key() Key { return u.key }

// Authority returns the authority, decoded. It may be empty.
func (u URN) Authority() string { return u.key.Authority }

// Type returns the resource type, such as envoy.config.cluster.v3.Cluster.
func (u URN) Type() string { return u.key.Type }

// ID returns the segments of the id, decoded. An empty id has none; single segments may be
// empty.
func (u URN) ID() []string {
	p, _ := split(u.key.Name)
	if p.id.text == "" {
		return nil
	}
	segments := strings.Split(p.id.text, "/")
	for i, s := range segments {
		segments[i] = decoded(s)
	}
	return segments
}

// Params returns the context parameters, decoded; nil if there are none. The caller may keep and
// change the map.
func (u URN) Params() map[string]string {
	p, _ := split(u.key.Name)
	return p.params()
}

// params returns the context parameters of a canonical name.
func (p *parts) params() map[string]string {
	if p.query.text == "" {
		return nil
	}
	params := make(map[string]string)
	for pair := range strings.SplitSeq(p.query.text, "&") {
		key, value, _ := strings.Cut(pair, "=")
		params[decoded(key)] = decoded(value)
	}
	return params
}

// URL locates a resource or a glob collection: it is a name with directives. URLs can be
// compared with ==. The zero URL locates nothing, prints as "" and has the zero Key.
// TP1: "URI-based xDS resource names".
type URL struct {
	name string // in canonical spelling, with the directives
	key  Key
}

// ParseURL parses a locator. It accepts every name that [ParseURN] accepts. All its errors are
// an [*Error].
func ParseURL(name string) (URL, error) {
	s, key, err := canonical(name, globs|directives)
	return URL{s, key}, err
}

// String returns the canonical spelling, with the directives.
func (u URL) String() string { return u.name }

// Key returns the key of the located resource, without the directives: the key with which to
// request it from its authority.
func (u URL) Key() Key { return u.key }

// URN returns the name of the located resource, or false if it is a glob collection.
func (u URL) URN() (URN, bool) {
	if u.key.Glob {
		return URN{}, false
	}
	return URN{u.key}, true
}

// Alt returns the alternative of the URL, or false if there is none. The alternative may have an
// Alt of its own.
// TP1: "Alternatives".
func (u URL) Alt() (URL, bool) {
	p, _ := split(u.name)
	alt, ok := p.directive(altDirective)
	if !ok {
		return URL{}, false
	}
	url, err := ParseURL(alt)
	return url, err == nil // no error: it was parsed with the URL
}

// Entry returns the name of an inline entry of a list collection, or false if the URL locates the
// whole resource.
// TP1: "List collections with inlining".
func (u URL) Entry() (string, bool) {
	p, _ := split(u.name)
	return p.directive(entryDirective)
}
