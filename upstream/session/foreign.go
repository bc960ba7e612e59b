package session

import (
	"fmt"

	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// Names of other authorities. What a control plane says of those is not believed,
// whichever way it says it: it speaks for the authority that it was asked as, for
// old-style names, and for the authorities that are served from the same place: a relay
// has several, and its views have members of all of them. Among xdstp names only those are looked at that were asked for, which
// are the authority's own, and the members of its globs: so it could give another's only
// by an alias of its own. A redirect may lead anywhere: it says where something is, not
// what.

// speaker is as whom a control plane is asked.
type speaker struct {
	authority string // as in cache.Scope
	oldStyle  bool
	speaks    func(authority string) bool // see Config
}

// foreign returns the authority of which a name is, if the speaker does not speak for that.
func (s speaker) foreign(name string) (authority string, foreign bool) {
	if !urn.IsXdstp(name) {
		return "", false
	}
	authority, ok := urn.AuthorityOf(name)
	if !ok || authority == s.authority || s.speaks != nil && s.speaks(authority) {
		return "", false
	}
	return authority, true
}

// foreignAlias is foreign of the first alias that is.
func (s speaker) foreignAlias(aliases []string) error {
	for _, alias := range aliases {
		if authority, foreign := s.foreign(alias); foreign {
			return fmt.Errorf("has the alias %q, of authority %q: what authority %q says of that is not believed", loglines.Clip(alias), authority, s.authority)
		}
	}
	return nil
}

// errForeign says why what is said of a name is not believed.
func (s speaker) errForeign(authority string) error {
	return fmt.Errorf("is of authority %q: what authority %q says of that is not believed", authority, s.authority)
}
