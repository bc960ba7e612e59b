package directory

import (
	"fmt"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// keyOf returns the key of a resource of the authority, for
// [cache.Key.Name]. A name in a file is the resource's own, so an xdstp name is
// no glob and has no directives.
func keyOf(authority, typeURL, name string) (string, error) {
	if !urn.IsXdstp(name) {
		if name == cache.Wildcard {
			return "", fmt.Errorf("%q is no resource's name: it stands for all of a type", name)
		}
		return name, nil
	}
	u, err := urn.ParseURN(name)
	if err != nil {
		return "", err
	}
	k := u.Key()
	if !owns(authority, k.Authority) {
		return "", fmt.Errorf("%s: authority %q is not the directory's (want %q)", name, k.Authority, authority)
	}
	if k.Type != strings.TrimPrefix(typeURL, xdstype.Prefix) {
		return "", fmt.Errorf("%s: type %q is not the resource's (want %q)", name, k.Type, strings.TrimPrefix(typeURL, xdstype.Prefix))
	}
	return k.Name, nil
}

// anyAuthority is the configured authority for files that may have names of all authorities. No
// authority has this name.
const anyAuthority = "*"

// owns reports whether an authority belongs to the configured one, which is
// a name or *.suffix.
func owns(configured, authority string) bool {
	if suffix, ok := strings.CutPrefix(configured, "*."); ok {
		return strings.HasSuffix(authority, "."+suffix)
	}
	return configured == authority || configured == anyAuthority
}
