package cache

import "sync/atomic"

// OriginVersion is the version that a control plane has given to what it says of one type:
// version_info, and system_version_info in delta. Everything that has one version shares one
// OriginVersion, so that a newer version over the same content is a change in one place, and
// whether all that a client holds came with one version is a comparison of pointers.
//
// It has two sides. Who feeds topics sets the version; clients see it once an update with it
// is stored, together with what came in that update.
type OriginVersion struct {
	server any
	said   string // guarded by who feeds

	// known is what clients see, nil before the first update with it. An update replaces it.
	known atomic.Pointer[knownVersion]
	left  atomic.Uint32
}

type knownVersion struct {
	version string
	order   uint64 // of the update that brought the version
}

// NewOriginVersion returns a version of a server, which is any comparable value: equal
// versions of different servers are different. An empty version is none.
func NewOriginVersion(server any, version string) *OriginVersion {
	return &OriginVersion{server: server, said: version}
}

// Set gives everything that has the version another one, from the next update on. It is for
// the source.
func (v *OriginVersion) Set(version string) { v.said = version }

// Latest returns the version that the source has set last. It is for the source.
func (v *OriginVersion) Latest() string {
	if v == nil {
		return ""
	}
	return v.said
}

// Fork returns the same version, which from now on changes by itself. It is for the source.
func (v *OriginVersion) Fork() *OriginVersion {
	if v == nil {
		return nil
	}
	return NewOriginVersion(v.server, v.said)
}

// String returns the version, empty for none. As with all that follows, that is what belongs
// to what a reader sees while it holds the scope: see Cache.
func (v *OriginVersion) String() string {
	if v == nil {
		return ""
	}
	if known := v.known.Load(); known != nil {
		return known.version
	}
	return ""
}

// Same says that both are the same version of one server.
func (v *OriginVersion) Same(o *OriginVersion) bool {
	version := v.String()
	return version != "" && (v == o || o != nil && v.server == o.server && version == o.String())
}

// SameServer says that both are versions of one server.
func (v *OriginVersion) SameServer(o *OriginVersion) bool { return v.server == o.server }

// NewerThan says that an update has brought v after o.
func (v *OriginVersion) NewerThan(o *OriginVersion) bool { return v.order() > o.order() }

func (v *OriginVersion) order() uint64 {
	if known := v.known.Load(); known != nil {
		return known.order
	}
	return 0
}

// Left counts the updates of entries that took them from this version to another one. As
// long as it stays, what had the version has it.
func (v *OriginVersion) Left() uint32 { return v.left.Load() }

// confirm makes what the source has set known. It is for the source, in an update.
func (c *Cache) confirm(v *OriginVersion) {
	if v == nil {
		return
	}
	if known := v.known.Load(); known == nil || known.version != v.said {
		v.known.Store(&knownVersion{version: v.said, order: c.versions.Add(1)})
	}
}
