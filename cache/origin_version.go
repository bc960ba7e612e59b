package cache

import "sync/atomic"

// OriginVersion is a control plane's version of the resources of one type: version_info, and
// system_version_info in delta. All resources with one version share one OriginVersion. So a
// newer version of the same content is a change in one place, and a comparison of pointers says
// whether all resources of a client have one version.
//
// The source sets the version. Clients see it once an update with it is stored, together with
// the resources of that update.
type OriginVersion struct {
	server any
	latest string // guarded by the source
	// Beside is for who passes updates on between the source and the cache, which ignores it.
	Beside any

	// known is what clients see, nil before the first update with it.
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
	return &OriginVersion{server: server, latest: version}
}

// Set replaces the version for all that share it, from the next update on. Only the source may
// call it.
func (v *OriginVersion) Set(version string) { v.latest = version }

// Latest returns the version that the source has set last. Only the source may
// call it.
func (v *OriginVersion) Latest() string {
	if v == nil {
		return ""
	}
	return v.latest
}

// Fork returns a copy, which from now on changes by itself. Only the source may call it.
func (v *OriginVersion) Fork() *OriginVersion {
	if v == nil {
		return nil
	}
	return NewOriginVersion(v.server, v.latest)
}

// Snapshot returns what clients see as the version now, which does not change any more. It is nil if
// there is none.
func (v *OriginVersion) Snapshot() *OriginVersion {
	version := v.String()
	if version == "" {
		return nil
	}
	return NewOriginVersion(v.server, version)
}

// String returns the version, empty for none. Within a snapshot lock, this and the methods that
// follow belong to the state that the reader sees: see Cache.
func (v *OriginVersion) String() string {
	if v == nil {
		return ""
	}
	if known := v.known.Load(); known != nil {
		return known.version
	}
	return ""
}

// Same reports whether both are the same version of one server.
func (v *OriginVersion) Same(o *OriginVersion) bool {
	version := v.String()
	return version != "" && (v == o || o != nil && v.server == o.server && version == o.String())
}

// SameServer reports whether both are versions of one server.
func (v *OriginVersion) SameServer(o *OriginVersion) bool { return v.server == o.server }

// NewerThan reports whether v came with a later update than o.
func (v *OriginVersion) NewerThan(o *OriginVersion) bool { return v.order() > o.order() }

func (v *OriginVersion) order() uint64 {
	if known := v.known.Load(); known != nil {
		return known.order
	}
	return 0
}

// Left counts the entries that have changed from this version to another. As long as it is the
// same, all that had the version still have it.
func (v *OriginVersion) Left() uint32 { return v.left.Load() }
