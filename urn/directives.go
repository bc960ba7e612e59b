package urn

// The directives of a URL: an alternative, and an entry of a list collection.

import (
	"errors"
	"strings"
)

const (
	altDirective   = "alt"
	entryDirective = "entry"
)

// EntryCharacters describes a valid entry name, for errors.
const EntryCharacters = "one or more of [a-zA-Z0-9_-./~:]"

// IsEntry reports whether an entry of a list collection may have a name.
// TP1: "List collections with inlining".
func IsEntry(name string) bool { return name != "" && inEntry.hasAll(name) }

// directives checks and prints the text after the '#'.
// TP1: "URI-based xDS resource names".
//
// Another '#' in the value of an alt begins the directives of that URL. RFC 3986 requires it to be
// escaped, so this package prints it escaped. But Envoy accepts it bare, and escapes it when it
// folds directives into a name, so a folded name does not show which form it had.
func (p *printer) directives(fragment span) error {
	var alt, entry string // empty if absent: a value is never empty
	for rest, more := fragment, true; more; {
		var directive span
		directive, rest, more = rest.cut(',')
		name, value, hasValue := directive.cut('=')
		var into *string
		switch name.text {
		case altDirective:
			into = &alt
		case entryDirective:
			into = &entry
		default:
			return &Error{Name: p.name, Offset: name.at, Part: name.text,
				Problem: "unknown directive", Want: "alt or entry, and %2C for a comma within a value"}
		}
		if !hasValue {
			return &Error{Name: p.name, Offset: name.at, Part: name.text,
				Problem: "directive without a value", Want: name.text + "=value"}
		}
		if *into != "" {
			return &Error{Name: p.name, Offset: name.at, Part: name.text,
				Problem: "duplicate directive", Want: "each once"}
		}
		text, err := p.directive(name.text, value)
		if err != nil {
			return err
		}
		*into = text
	}
	p.print("#")
	if alt != "" {
		p.print(altDirective + "=")
		p.print(string(escape(nil, alt, inDirective)))
	}
	if alt != "" && entry != "" {
		p.print(",")
	}
	if entry != "" {
		p.print(entryDirective + "=")
		p.print(entry)
	}
	return nil
}

// directive returns the decoded value of a directive. The value of an alt is returned in its
// canonical spelling.
func (p *printer) directive(name string, value span) (string, error) {
	text, bad := decode(value.text)
	if bad >= 0 {
		return "", badEscape(p.name, span{value.text[bad:], value.at + bad})
	}
	if name == entryDirective {
		if !IsEntry(text) {
			return "", &Error{Name: p.name, Offset: value.at, Part: value.text,
				Problem: "bad entry name", Want: EntryCharacters}
		}
		return text, nil
	}
	url, _, err := canonical(text, globs|directives)
	if err != nil {
		// For a chain of alternatives, report only the first and the last: all names would
		// make the message very long.
		var inner *Error
		if errors.As(err, &inner) && inner.Err != nil {
			err = inner.Err
		}
		return "", &Error{Name: p.name, Offset: value.at, Part: value.text,
			Problem: "bad alt", Err: err}
	}
	return url, nil
}

// directive returns the value of a directive of a canonical name.
func (p *parts) directive(name string) (value string, ok bool) {
	for d := range strings.SplitSeq(p.fragment.text, ",") {
		if key, value, _ := strings.Cut(d, "="); key == name {
			return decoded(value), true
		}
	}
	return "", false
}

// Map returns the URL with the name of each Key, its own and those of its alternatives,
// replaced by the result of f.
func (u URL) Map(f func(Key) Key) URL {
	name := f(u.key).Name
	alt, hasAlt := u.Alt()
	entry, hasEntry := u.Entry()
	sep := "#"
	if hasAlt {
		name += sep + altDirective + "=" + string(escape(nil, alt.Map(f).name, inDirective))
		sep = ","
	}
	if hasEntry {
		name += sep + entryDirective + "=" + entry
	}
	if name == u.name {
		return u
	}
	mapped, err := ParseURL(name)
	if err != nil {
		return u // f returned an invalid name
	}
	return mapped
}
