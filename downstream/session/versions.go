package session

import (
	"github.com/xds-relay/xds-relay/cache"
)

// The version of a response: the origin's, if everything that the client holds of the type came with the same version.
// xDS: "ACK/NACK and resource type instance version".

// commonVersion is the version of the origin that everything added has, if there is one.
type commonVersion struct {
	origin *cache.OriginVersion
	mixed  bool
}

func (c *commonVersion) add(o *cache.OriginVersion) {
	switch {
	case c.mixed:
	case o.String() == "", c.origin != nil && c.origin != o && !c.origin.Same(o):
		c.mixed = true
	case c.origin == nil:
		c.origin = o
	}
}

// version returns the common version, empty if there is none.
func (c *commonVersion) version() string {
	if c.mixed {
		return ""
	}
	return c.origin.String()
}
