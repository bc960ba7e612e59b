package session

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// IsSet reports whether a canonical name is the wildcard or that of a glob collection.
func IsSet(name string) bool { return name == cache.Wildcard || isGlob(name) }

// isGlob reports whether a canonical name is that of a glob collection.
func isGlob(name string) bool {
	return name != cache.Wildcard && cache.Key{Name: name}.IsSet()
}

// canonical returns the key of a name (cache.Key.Name). A name that is no xdstp name, or
// has no id, is its own key.
func canonical(name string) string {
	if key, err := urn.KeyOf(name); err == nil && (key.Name == name || urn.HasID(name)) {
		return key.Name
	}
	return name
}

// isKey reports whether a name is valid and canonical. A bad name is in no
// directory, whichever it seems to be in.
func isKey(name string) bool {
	k, err := urn.KeyOf(name)
	return err == nil && k.Name == name
}

// directoryOf returns the glob of the directory that a name is in, empty if it is in none.
func directoryOf(name string) string {
	if glob, ok := urn.GlobOf(name); ok && isKey(name) {
		return glob
	}
	return ""
}
