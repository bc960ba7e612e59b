package urn

// Parsing: a name is split at its raw delimiters, and a printer then converts each
// component to the canonical spelling.

import "strings"

// MaxLength is the maximal length of a name in bytes, as given and in canonical spelling.
const MaxLength = 4096

const (
	scheme = "xdstp:"
	prefix = scheme + "//"

	wantName = "xdstp://authority/type/id"
)

// span is a part of a name, with its offset.
type span struct {
	text string
	at   int
}

// cut splits the span before and after the first sep.
func (s span) cut(sep byte) (before, after span, found bool) {
	i := strings.IndexByte(s.text, sep)
	if i < 0 {
		return s, span{at: s.at + len(s.text)}, false
	}
	return span{s.text[:i], s.at}, span{s.text[i+1:], s.at + i + 1}, true
}

// parts is a name that is split at its raw delimiters, and not decoded.
type parts struct {
	authority   span
	typ         span
	id          span
	query       span
	fragment    span
	hasFragment bool // the name has a '#', even if nothing follows it
}

// split finds the parts of a name. It does not check their content.
func split(name string) (p parts, err error) {
	if len(name) > MaxLength {
		return p, &Error{Name: name, Offset: MaxLength,
			Problem: "name is too long", Want: "at most 4096 bytes"}
	}
	if !IsXdstp(name) {
		return p, &Error{Name: name, Problem: "not an xdstp name", Want: wantName}
	}
	if !strings.HasPrefix(name, prefix) {
		return p, &Error{Name: name, Offset: len(scheme),
			Problem: "no // after the scheme", Want: wantName}
	}
	rest := span{name[len(prefix):], len(prefix)}
	rest, p.fragment, p.hasFragment = rest.cut('#')
	rest, p.query, _ = rest.cut('?')
	p.authority, rest, _ = rest.cut('/')
	p.typ, p.id, _ = rest.cut('/')
	if p.typ.text == "" {
		return p, &Error{Name: name, Offset: p.typ.at,
			Problem: "no resource type", Want: wantName}
	}
	return p, nil
}

// AuthorityOf returns the authority of an xdstp name, even if the name is malformed after the
// authority.
func AuthorityOf(name string) (authority string, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return "", false
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	p := printer{name: name, same: len(prefix)}
	if p.component(span{rest, len(prefix)}, inAuthority) != nil {
		return "", false
	}
	return decoded(rest), true
}

// HasID reports whether an xdstp name has an id, which may be empty. Canonical spellings
// always have one. gRPC does not accept a name without an id.
func HasID(name string) bool {
	rest, _ := strings.CutPrefix(name, prefix)
	if end := strings.IndexAny(rest, "?#"); end >= 0 {
		rest = rest[:end]
	}
	return strings.Count(rest, "/") > 1
}

// glob returns the last segment of the id, and whether it is a glob.
// TP1: "Glob".
func (p *parts) glob() (span, bool) {
	i := strings.LastIndexByte(p.id.text, '/') + 1
	last := span{p.id.text[i:], p.id.at + i}
	return last, last.text == "*" || strings.EqualFold(last.text, "%2A")
}

// allowed says what a name may contain that a URN may not.
type allowed uint8

const (
	globs allowed = 1 << iota
	directives
)

// canonical returns the canonical spelling of a name, and its key. If the name is canonical already,
// the spelling is the given string.
func canonical(name string, may allowed) (string, Key, error) {
	parts, err := split(name)
	if err != nil {
		return "", Key{}, err
	}
	if parts.hasFragment && may&directives == 0 {
		at := parts.fragment.at - 1
		return "", Key{}, &Error{Name: name, Offset: at, Part: name[at:],
			Problem: "directives on a resource name", Want: "none, or %23 for a # in the name"}
	}
	last, glob := parts.glob()
	if glob && may&globs == 0 {
		return "", Key{}, &Error{Name: name, Offset: last.at, Part: last.text,
			Problem: "glob in a URN", Want: "the name of one resource"}
	}

	p := printer{name: name}
	p.print(prefix)
	if err := p.component(parts.authority, inAuthority); err != nil {
		return "", Key{}, err
	}
	authorityEnd := p.printed()
	p.print("/")
	if err := p.component(parts.typ, inSegment); err != nil {
		return "", Key{}, err
	}
	typEnd := p.printed()
	p.print("/")
	if err := p.id(parts.id); err != nil {
		return "", Key{}, err
	}
	if err := p.params(parts.query); err != nil {
		return "", Key{}, err
	}
	nameEnd := p.printed()
	if parts.hasFragment {
		if err := p.directives(parts.fragment); err != nil {
			return "", Key{}, err
		}
	}
	if p.printed() > MaxLength {
		return "", Key{}, &Error{Name: name, Offset: len(name),
			Problem: "name is too long in its escaped form", Want: "at most 4096 bytes"}
	}

	s := p.String()
	return s, Key{
		Name:      s[:nameEnd],
		Authority: decoded(s[len(prefix):authorityEnd]),
		Type:      decoded(s[authorityEnd+1 : typEnd]),
		Glob:      glob,
	}, nil
}
