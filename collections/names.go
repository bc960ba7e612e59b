package collections

import (
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// Names of entries and members.

// entryName returns the name of an inline entry.
func entryName(collection, entry string) string { return collection + "#entry=" + entry }

// canonical returns the canonical name. A bad xdstp name stays as it is.
func canonical(name string) string {
	if key, err := urn.KeyOf(name); err == nil {
		return key.Name
	}
	return name
}

// bare returns a URL without its directives.
func bare(u urn.URL) urn.URL {
	b, _ := urn.ParseURL(u.Key().Name) // parsed before
	return b
}

// isCollection reports whether a locator in a list collection locates many members.
func isCollection(u urn.URL) bool {
	_, entry := u.Entry()
	return u.Key().Glob || !entry && strings.HasSuffix(u.Key().Type, "Collection")
}

// checkAuthority returns an error if an authority may not send a resource with a name: the name is of
// another authority, and the same servers do not serve both.
func (r *Resolver) checkAuthority(authority, name string) error {
	of, ok := urn.AuthorityOf(name)
	if !ok || of == authority || r.speaksFor != nil && r.speaksFor(authority, of) {
		return nil
	}
	return fmt.Errorf("its resource is %q of authority %q, which authority %q may not send", loglines.Clip(name), loglines.Clip(of), authority)
}

// memberKey returns the key of a member, and its name as clients see it.
func (s *setContext) memberKey(name string) (key, spelled string) {
	name = strings.Clone(name) // the name may share the bytes of a resource
	key = canonical(name)
	if s.renameTo != "" {
		key = urn.MemberOf(s.renameTo, key)
		return key, key
	}
	return key, name
}

// named returns the resource of a result under a name, with the name inside (empty as in [cache.Resource.Renamed]).
// Resources that have the name at their authority keep what is inside. If the result's origin is neither name nor home,
// named appends a hash of the origin to the version, because two origins may use one version for different contents.
func named(name, inside, home string, is *result) *cache.Resource {
	r := is.Resource
	version := r.Version()
	switch is.origin {
	case name:
		if inside == "" || !r.Unspelled() {
			return r
		}
	case home:
	default:
		version = fmt.Sprintf("%s~%08x", version, uint32(xxhash.Sum64String(is.origin)))
	}
	r = r.Renamed(name, inside, version)
	if is.aliasOf != "" {
		r = r.FoundByAlias(is.aliasOf)
	}
	return r
}
