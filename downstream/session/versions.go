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

// namesVersion is the version of the origin that all names have which a client holds, as far
// as it is known: names whose content does not change may leave it unnoticed, so left is how
// many had when it was found out.
type namesVersion struct {
	origin *cache.OriginVersion // nil if it is to be found out
	left   uint32
	moves  int // subscriptions.moves, as of then
	// apart are two names that had different versions then, or one that had none.
	apart [2]*nameSub
}

// noteVersion notes that a client was told a resource of that version; first, that it held no other.
func (s *SotW) noteVersion(o *cache.OriginVersion, first bool) {
	v := &s.version
	switch {
	case first && o != nil:
		v.origin, v.left, v.moves = o, o.Left(), s.moves
	case v.origin != o:
		v.origin = nil
	}
}

// ofNames is the version of the origin that all names have which the client holds, empty if
// they have not one. Mostly that is known without a look at them.
func (s *SotW) ofNames() string {
	if s.named.shared != nil {
		return s.ofGroup()
	}
	if s.held == 0 || len(s.absent) > 0 || s.behind() {
		return ""
	}
	v := &s.version
	if v.origin != nil && v.left == v.origin.Left() && v.moves == s.moves {
		return v.origin.String()
	}
	v.origin = nil
	if a, b := v.apart[0], v.apart[1]; a != nil && s.holds(a) && s.holds(b) && !a.state().Origin.Same(b.state().Origin) {
		return ""
	}
	v.apart = [2]*nameSub{}
	var first *nameSub
	var origin *cache.OriginVersion
	one := true
	for sub := range s.named.all() {
		if !s.holds(sub) {
			continue
		}
		o := sub.state().Origin
		switch {
		case first == nil:
			first, origin = sub, o
			fallthrough
		default:
			if !o.Same(origin) {
				v.apart = [2]*nameSub{first, sub}
				return ""
			}
			one = one && o == origin
		}
	}
	if one {
		v.origin, v.left, v.moves = origin, origin.Left(), s.moves
	}
	return origin.String()
}

// ofGroup is ofNames of a client that shares its names with others, and was told everything
// of those.
func (s *SotW) ofGroup() string {
	m := s.named.shared
	held, _ := m.held()
	if held+s.held == 0 || len(s.absent) > 0 || s.behind() {
		return ""
	}
	var origin *cache.OriginVersion
	if held > 0 {
		if origin = m.group.Origin(m.taken); origin == nil {
			return ""
		}
	}
	for sub := range s.named.own() {
		if !s.holds(sub) {
			continue
		}
		o := sub.state().Origin
		if origin == nil {
			origin = o
		}
		if !o.Same(origin) {
			return ""
		}
	}
	return origin.String()
}

// holds says that the client was told a name's resource.
func (s *SotW) holds(sub *nameSub) bool {
	return !sub.is(hasEnded) && sub.told() == toldResource
}

// behind says that there are names of which the client holds something older than what is
// known: what did not fit into a response.
func (s *SotW) behind() bool {
	for _, sub := range s.pending {
		if s.holds(sub) {
			return true
		}
	}
	return false
}

// from notes the version of the origin of something that a delta response tells.
func (r *Response) from(o *cache.OriginVersion) {
	switch {
	case o.String() == "", r.origin != nil && !o.SameServer(r.origin):
		r.severalOrigins = true
	case r.origin == nil || o.NewerThan(r.origin):
		r.origin = o
	}
}

// fromRemoved is from for something that is gone, which may be known in other ways.
func (r *Response) fromRemoved(o *cache.OriginVersion) {
	if o.String() != "" {
		r.from(o)
	}
}

// systemVersion is the newest version of the origin that a delta response brings the client
// to, empty if what it tells is of several origins, or of one that has no versions.
func (r *Response) systemVersion() string {
	if r.severalOrigins {
		return ""
	}
	return r.origin.String()
}
