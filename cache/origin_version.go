package cache

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

	// Guarded by Cache.still.
	version string
	order   uint64 // of the update that brought the version; 0 before the first
	left    uint32
}

// NewOriginVersion returns a version of a server, which is any comparable value: equal
// versions of different servers are different. An empty version is none.
func NewOriginVersion(server any, version string) *OriginVersion {
	return &OriginVersion{server: server, said: version}
}

// Set gives everything that has the version another one, from the next update on. It is for
// the feeder.
func (v *OriginVersion) Set(version string) { v.said = version }

// Said returns what the feeder has set last. It is for the feeder.
func (v *OriginVersion) Said() string {
	if v == nil {
		return ""
	}
	return v.said
}

// Fork returns the same version, which from now on changes by itself. It is for the feeder.
func (v *OriginVersion) Fork() *OriginVersion {
	if v == nil {
		return nil
	}
	return NewOriginVersion(v.server, v.said)
}

// String returns the version, empty for none. As for all that follows, no update may be
// stored meanwhile: see Cache.Hold.
func (v *OriginVersion) String() string {
	if v == nil {
		return ""
	}
	return v.version
}

// Same says that both are the same version of one server.
func (v *OriginVersion) Same(o *OriginVersion) bool {
	return v.String() != "" && (v == o || o != nil && v.server == o.server && v.version == o.version)
}

// SameServer says that both are versions of one server.
func (v *OriginVersion) SameServer(o *OriginVersion) bool { return v.server == o.server }

// NewerThan says that an update has brought v after o.
func (v *OriginVersion) NewerThan(o *OriginVersion) bool { return v.order > o.order }

// Left counts the updates of entries that took them from this version to another one. As
// long as it stays, what had the version has it.
func (v *OriginVersion) Left() uint32 { return v.left }

// confirm makes what the feeder has set known. The caller holds still, for writing.
func (c *Cache) confirm(v *OriginVersion) {
	if v != nil && (v.order == 0 || v.version != v.said) {
		c.versions++
		v.version, v.order = v.said, c.versions
	}
}
