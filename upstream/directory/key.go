package directory

import (
	"fmt"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// keyOf returns what a resource of the authority is kept under, as
// [cache.Key.Name] is: a name in a file is a resource's own, so an xdstp one is
// neither a glob nor has it directives.
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

// anyAuthority is the configured authority of files that may have names of all. No authority has
// this name.
const anyAuthority = "*"

// owns reports whether names of that authority belong to the one that is
// configured as a name or as *.suffix.
func owns(configured, authority string) bool {
	if suffix, ok := strings.CutPrefix(configured, "*."); ok {
		return strings.HasSuffix(authority, "."+suffix)
	}
	return configured == authority || configured == anyAuthority
}
