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
func (c *core) saidBy(server any) {
	c.server = server
	c.newOrigin()
}

func (c *core) newOrigin() { c.origin = cache.NewOriginVersion(c.server, "") }

// takeVersion takes a response's version, before the rest of it. c.now is what becomes the
// version of what is in the response. In SotW, what is in a response leaves the present
// version for a new one if not all of it is good, or the response does not have all that
// has the present version: left says that.
func (c *core) takeVersion(v *verdicts, version string, hasAll func(*verdicts) bool) (left bool) {
	switch {
	case v.onlyBeats(), c.sotw && version == "":
		c.now = nil // nothing was said anew
	case !c.sotw && (v.hidden || v.wildcard != nil):
		// Something that is held is not what the control plane calls so, and it is not
		// known what.
		c.now = cache.NewOriginVersion(c.server, version)
	default:
		if left = c.sotw && c.origin.Latest() != version && (v.nack != "" || v.hidden || v.wildcard != nil || !hasAll(v)); left {
			c.newOrigin()
		}
		c.origin.Set(version)
		c.now = c.origin
	}
	return left
}

// versionOf returns the version of something that is known without a response having it
// just now: in delta the present one, in SotW none.
func (c *core) versionOf() *cache.OriginVersion {
	if c.sotw {
		return nil
	}
	return c.origin
}

// versionIn returns the version of what the present response says of a name.
func (c *core) versionIn(change *cache.Change) *cache.OriginVersion {
	if change.Err != nil && !change.Gone {
		return c.notVersion()
	}
	return c.now
}

// notVersion returns the version of what is held and is not what the control plane calls so
// now: in delta none, in SotW what it was.
func (c *core) notVersion() *cache.OriginVersion {
	if c.sotw {
		return nil
	}
	return cache.NewOriginVersion(c.server, "")
}

// formed begins to take versions as one form of the protocol has them.
func (c *core) formed(sotw bool) {
	if c.sotw != sotw {
		c.newOrigin()
	}
	c.sotw = sotw
}

// adoptVersion takes what another stream to the same control plane has said of a name for
// what was said here. In delta it has the version of all, once there is one.
func (c *core) adoptVersion(change *cache.Change) {
	version := change.Origin.Latest()
	if version == "" || change.Resource == nil || c.sotw {
		return
	}
	if c.origin.Latest() == "" {
		c.origin.Set(version)
	}
	if c.live || c.origin.Latest() == version {
		change.Origin = c.origin
	}
}
