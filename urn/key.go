package urn

// Keys: what the relay needs of a name that it is asked for.

import "strings"

// Key is what a resource name is known by. Two spellings of the same name have
// equal keys, and Name alone tells different names apart.
type Key struct {
	// Name is the canonical spelling: itself a valid name. Of a name that is
	// not xdstp, it is the name.
	Name string
	// Authority is the authority, decoded. May be empty.
	Authority string
	// Type is the resource type, decoded: a type URL's part after the slash. It
	// is empty exactly if the name is not xdstp.
	Type string
	// Glob says that the name is that of a glob collection.
	// TP1: "Glob".
	Glob bool
}

// IsName says whether a resource name is an xdstp name, by its beginning: it
// may still be a bad one. All other names are old-style names and opaque.
// TP1: "Discovery request and responses".
func IsName(name string) bool { return strings.HasPrefix(name, scheme) }

// KeyOf returns the key of a name as it is asked for or sent on the wire: a
// URN or a glob collection. Directives are an error, for they "do not appear in
// a xDS transport discovery request" (ResourceLocator.Directive).
//
// A name that is not xdstp is never an error. It is its own key, without type
// and authority; callers who want to know ask [IsName].
//
// If the name is spelled canonically the key shares its memory and nothing is
// allocated; otherwise there is one allocation. What is rare costs a few more:
// an authority or a type with escapes, which are decoded, more than eight
// parameters, or a spelling that is much shorter than the canonical one.
func KeyOf(name string) (Key, error) {
	if !IsName(name) {
		return Key{Name: name}, nil
	}
	_, key, err := canonical(name, globs)
	return key, err
}
