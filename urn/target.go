package urn

// What may be taken in the place of a resource.

import "strings"

// CheckTarget says why a URL cannot say where to find one resource of a type, as a
// redirect does; nil if it can. It must locate one resource of that type, or with an
// entry directive a list collection of such. All its errors are an [*Error].
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
			Problem: "glob in the place of a resource", Want: "the name of one resource"}
	}
	if u.Key().Type != want {
		return &Error{Name: u.String(), Offset: p.typ.at, Part: p.typ.text,
			Problem: "type in the place of another", Want: want}
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
