package urn

// Checks of redirect targets.

import "strings"

// CheckTarget returns an error if the URL cannot be the target of a redirect of a resource of
// type typ. The URL must locate one resource of the type or, with an entry directive, a list
// collection of the type. All its errors are an [*Error].
// TP1: "Server redirects", "List".
func (u URL) CheckTarget(typ string) error {
	p, err := split(u.String())
	if err != nil {
		return err
	}
	want := typ
	if _, ok := u.Entry(); ok {
		want += "Collection"
	}
	if last, glob := p.glob(); glob {
		return &Error{Name: u.String(), Offset: last.at, Part: last.text,
			Problem: "glob as the target of a redirect", Want: "the name of one resource"}
	}
	if u.Key().Type != want {
		return &Error{Name: u.String(), Offset: p.typ.at, Part: p.typ.text,
			Problem: "wrong type", Want: want}
	}
	alt, ok := u.Alt()
	if !ok {
		return nil
	}
	if err := alt.CheckTarget(typ); err != nil {
		return &Error{Name: u.String(), Offset: strings.IndexByte(u.String(), '#') + 1,
			Problem: "bad alt", Err: err}
	}
	return nil
}
