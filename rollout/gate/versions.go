package gate

import "github.com/xds-relay/xds-relay/cache"

// mirrors replace an origin version of the source in accepted and in new topics. The source updates its version in
// place for everything that refers to it, also for changes that are not accepted.
type mirrors struct {
	accepted, newest *cache.OriginVersion
	latest           string
}

// mirrorsOf returns the mirrors of a source's version, or of one of its mirrors. It returns nil if v is nil. Only the
// source may call it concurrently with an update.
func mirrorsOf(v *cache.OriginVersion) *mirrors {
	if v == nil {
		return nil
	}
	m, _ := v.Attachment.(*mirrors)
	return m
}

// note records the newest value of a source's version. If newest, the new topics get that value. If accept, the
// accepted topics do. It returns nil if v is nil.
func note(v *cache.OriginVersion, accept, newest bool) *mirrors {
	if v == nil {
		return nil
	}
	m := mirrorsOf(v)
	if m == nil {
		m = &mirrors{accepted: v.Fork(), newest: v.Fork()}
		if !accept {
			m.accepted.Set("")
		}
		if !newest {
			m.newest.Set("")
		}
		v.Attachment, m.accepted.Attachment, m.newest.Attachment = m, m, m
	}
	m.latest = v.Latest()
	if newest {
		m.newest.Set(m.latest)
	}
	if accept {
		m.accepted.Set(m.latest)
	}
	return m
}

func (m *mirrors) ofAccepted() *cache.OriginVersion {
	if m == nil {
		return nil
	}
	return m.accepted
}

func (m *mirrors) ofNew() *cache.OriginVersion {
	if m == nil {
		return nil
	}
	return m.newest
}

// accept gives the accepted topics the newest version.
func (m *mirrors) accept() *cache.OriginVersion {
	if m == nil {
		return nil
	}
	m.accepted.Set(m.latest)
	return m.accepted
}
