package session

import (
	"github.com/xds-relay/xds-relay/cache"
)

// Which version a response has: the origin's, where all that the client holds of the type
// came with one. xDS: "ACK/NACK and resource type instance version".

// commonVersion is the version of the origin that everything has which was added, if it is
// one.
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

// version is empty if there is not one.
func (c *commonVersion) version() string {
	if c.mixed {
		return ""
	}
	return c.origin.String()
}
