package urn

// The glob collection of a resource.

import "strings"

// GlobOf returns the glob collection of the resource with a canonical name ([Key].Name): all
// resources in its directory, one level deep, with exactly its parameters. It returns false
// for an old-style name, a glob, and a name without an id, which is in no directory.
// TP1: "Glob".
func GlobOf(name string) (glob string, ok bool) {
	path, query, ok := directoryOf(name)
	if !ok {
		return "", false
	}
	return path + "*" + query, true
}

// AppendGlobOf is like GlobOf, but appends the glob to b. It saves allocations for callers with
// very many names.
func AppendGlobOf(b []byte, name string) (glob []byte, ok bool) {
	path, query, ok := directoryOf(name)
	if !ok {
		return b, false
	}
	b = append(b, path...)
	b = append(b, '*')
	return append(b, query...), true
}

// directoryOf returns the parts of a name before and after the last segment of its id. It returns false for a name
// that is not in a directory.
func directoryOf(name string) (path, query string, ok bool) {
	if !strings.HasPrefix(name, prefix) {
		return "", "", false
	}
	path = name
	if i := strings.IndexByte(name, '?'); i >= 0 {
		path, query = name[:i], name[i:]
	}
	last := strings.LastIndexByte(path, '/')
	// After the authority and the type there is a slash each, and then the id.
	slashes := strings.Count(path[len(prefix):last+1], "/")
	const root = 2
	if id := path[last+1:]; slashes < root || slashes == root && id == "" || id == "*" {
		return "", "", false
	}
	return path[:last+1], query, true
}
