package urn

import "strings"

// TP1: "Glob". The names of a glob collection's members.

// MemberOf returns the name of a resource as a member of a glob collection: the glob, with the
// resource's last segment in place of the *. glob and name are canonical. For an entry of a list
// collection (name#entry=x), the segment is the entry's name; for an old-style name, the text after
// its last slash.
func MemberOf(glob, name string) string {
	xdstp := IsXdstp(name)
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
