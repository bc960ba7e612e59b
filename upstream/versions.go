package upstream

import (
	"github.com/xds-relay/xds-relay/cache"
)

// Which version of the control plane's a resource has: version_info, or in delta
// system_version_info.
//
// In delta a response has what differs from what the client holds. So its version is that of
// everything that is held, and there is one cache.OriginVersion, from the first answer on.
//
// In SotW a resource has the version of the last response that it was in: a control plane
// that cuts its answer, or answers each name by itself, does not say of the others that they
// are the same. Most have in a response all that was asked for. Then, too, the version that
// all of it has changes as one; otherwise what is in the response leaves it for a new one.

// server is a control plane as what says the versions of a scope.
type server struct {
	scope cache.Scope
	peers *peers
}

// saidBy notes which control plane gives the versions.
func (s *subscriptions) saidBy(server any) {
	s.server, s.origin = server, cache.NewOriginVersion(server, "")
}

// version takes a response's version, before the rest of it. s.now is what becomes the
// version of what is in the response.
func (s *subscriptions) version(v *verdicts, sotw bool, version string) {
	switch {
	case v.onlyBeats():
		s.now = nil // nothing was said anew
		return
	case !sotw && (v.hidden || v.wildcard != nil):
		// Something that is held is not what the control plane calls so, and it is not
		// known what.
		s.now = cache.NewOriginVersion(s.server, version)
		return
	case !sotw:
	case version == "":
		s.now = nil
		return
	case s.origin.Latest() == version:
	case v.nack != "" || v.hidden || v.wildcard != nil || !s.hasAll(v):
		s.origin, s.having = cache.NewOriginVersion(s.server, ""), 0
	}
	s.origin.Set(version)
	s.now = s.origin
}

// hasAll says that a SotW response has all names that have the present version.
func (s *subscriptions) hasAll(v *verdicts) bool {
	n := 0
	for i := range v.list {
		o := &v.list[i]
		if o.resource == nil && o.variant == nil {
			continue
		}
		if sub := s.names[o.key]; sub != nil && s.has(&sub.answer) {
			n++
		}
	}
	return n == s.having
}

// has says that a resource has the present version.
func (s *subscriptions) has(c *cache.Change) bool { return c.Resource != nil && c.Origin == s.origin }

// versionOf returns the version of something that is known without a response having it
// just now: in delta the present one, in SotW none.
func (s *subscriptions) versionOf() *cache.OriginVersion {
	if s.sotw {
		return nil
	}
	return s.origin
}

// versionIn returns the version of what the present response says of a name.
func (s *subscriptions) versionIn(c *cache.Change) *cache.OriginVersion {
	if c.Err != nil && !c.Gone {
		return s.notVersion()
	}
	return s.now
}

// notVersion returns the version of what is held and is not what the control plane calls so
// now: in delta none, in SotW what it was.
func (s *subscriptions) notVersion() *cache.OriginVersion {
	if s.sotw {
		return nil
	}
	return cache.NewOriginVersion(s.server, "")
}

// formed begins to take versions as one form of the protocol has them.
func (s *subscriptions) formed(sotw bool) {
	if s.sotw != sotw {
		s.origin, s.having = cache.NewOriginVersion(s.server, ""), 0
	}
	s.sotw = sotw
}

// memberVersion returns the version of the set that has a member, nil if there is none.
func (s *subscriptions) memberVersion(key string) *cache.OriginVersion {
	for c := range s.sets(key) {
		if c.members.Get(key) != nil {
			return c.origin
		}
	}
	return nil
}

// adoptVersion takes what another stream to the same control plane has said of a name for
// what was said here. In delta it has the version of all, once there is one.
func (s *subscriptions) adoptVersion(c *cache.Change) {
	version := c.Origin.Latest()
	if version == "" || c.Resource == nil || s.sotw {
		return
	}
	if s.origin.Latest() == "" {
		s.origin.Set(version)
	}
	if s.live || s.origin.Latest() == version {
		c.Origin = s.origin
	}
}
