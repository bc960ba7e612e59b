package urn

import "strings"

// TP1: "Glob". The names of a glob collection's members.

// MemberOf returns the name that a resource of that canonical name has as a member of
// a glob collection, which is given by its canonical name: the glob's, with the
// resource's last segment for the *. Of an entry of a list collection (name#entry=x)
// that is the entry's, and of a name that is not xdstp what follows its last slash.
func MemberOf(glob, name string) string {
	xdstp := IsName(name)
	if id, entry, ok := strings.Cut(name, "#"); xdstp && ok {
		name, xdstp = strings.TrimPrefix(entry, entryDirective+"="), false
	} else if xdstp {
		name, _, _ = strings.Cut(id, "?")
	}
	segment := name[strings.LastIndexByte(name, '/')+1:]
	if !xdstp {
		segment = string(escape(nil, segment, inSegment))
	}
	directory, params, _ := strings.Cut(glob, "?")
	member := strings.TrimSuffix(directory, "*") + segment
	if params != "" {
		member += "?" + params
	}
	return member
}
