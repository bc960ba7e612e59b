package urn

// Keys: the parsed form of a name from the wire.

import "strings"

// Key identifies a resource name. Two spellings of one name have equal keys, and two
// different names differ in Name.
type Key struct {
	// Name is the canonical spelling, itself a valid name. For an old-style name, it is the
	// name itself.
	Name string
	// Authority is the authority, decoded. It may be empty.
	Authority string
	// Type is the resource type, decoded: the part of a type URL after the slash. It is
	// empty exactly for old-style names.
	Type string
	// Glob: the name is that of a glob collection.
	// TP1: "Glob".
	Glob bool
}

// IsXdstp reports whether a resource name begins like an xdstp name. It may still be
// malformed. All other names are old-style names and opaque.
// TP1: "Discovery request and responses".
func IsXdstp(name string) bool { return strings.HasPrefix(name, scheme) }

// KeyOf returns the key of a name on the wire: a URN or a glob collection. A name with directives
// is an error, because directives "do not appear in a xDS transport discovery request"
// (ResourceLocator.Directive).
//
// An old-style name is never an error. It is its own key, without type and authority.
// [IsXdstp] reports false for it.
//
// If the name is spelled canonically, the key shares its memory and KeyOf allocates nothing;
// otherwise it allocates once. Rare names cost a few allocations more: those with escapes in
// the authority or type, with more than eight parameters, or with a spelling that is much
// shorter than the canonical one.
func KeyOf(name string) (Key, error) {
	if !IsXdstp(name) {
		return Key{Name: name}, nil
	}
	_, key, err := canonical(name, globs)
	return key, err
}
