package gate

import "github.com/xds-relay/xds-relay/cache"

// mirrors are what stands for a version of the source in accepted and in new topics. The source
// changes its version in place for all that have it, also when something came that is not accepted.
type mirrors struct {
	accepted, newest *cache.OriginVersion
	latest           string
}

// mirrorsOf returns the mirrors of a source's version, or of one of its mirrors; nil if it is nil.
// The source, or nobody, calls it meanwhile.
func mirrorsOf(v *cache.OriginVersion) *mirrors {
	if v == nil {
		return nil
	}
	m, _ := v.Beside.(*mirrors)
	return m
}

// note notes what a source says of its version: new topics have it if newest, and accepted ones if
// accept. It returns nil if v is nil.
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
		v.Beside, m.accepted.Beside, m.newest.Beside = m, m, m
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

// accept has accepted topics have the newest version.
func (m *mirrors) accept() *cache.OriginVersion {
	if m == nil {
		return nil
	}
	m.accepted.Set(m.latest)
	return m.accepted
}
