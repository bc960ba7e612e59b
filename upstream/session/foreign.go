package session

import (
	"fmt"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/urn"
)

// Names of other authorities. A control plane speaks for the authority that the relay requests from
// it, for old-style names, and for the authorities with the same origin: a relay as control plane
// has several, and its views have members of all of them. The relay accepts nothing from it
// about any other authority.
//
// For an authority with xdstp names, only requested names matter anyhow, which are the authority's own,
// and the members of its globs. So the control plane could serve another authority's name only as an
// alias of its own resource. A redirect may lead anywhere: it says where a resource is, not what is in it.

// speaker is the authority for which a control plane speaks.
type speaker struct {
	authority string // as in cache.Scope
	oldStyle  bool
	speaks    func(authority string) bool // see Config
}

// foreign returns the authority of a name, if the speaker does not speak for that.
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

// foreignAlias returns an error for the first foreign alias, if any.
func (s speaker) foreignAlias(aliases []string) error {
	for _, alias := range aliases {
		if authority, foreign := s.foreign(alias); foreign {
			return fmt.Errorf("has the alias %q, of authority %q: the relay does not accept it from authority %q", loglines.Clip(alias), authority, s.authority)
		}
	}
	return nil
}

// errForeign is the error of a foreign name.
func (s speaker) errForeign(authority string) error {
	return fmt.Errorf("is of authority %q: the relay does not accept it from authority %q", authority, s.authority)
}
