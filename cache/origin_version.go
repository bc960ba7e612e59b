package cache

import "sync/atomic"

// OriginVersion is a control plane's version of the resources of one type: version_info in SotW,
// system_version_info in delta. All resources with one version share one OriginVersion. So a
// newer version of the same content is a change in one place, and comparing pointers shows
// whether all resources of a client have one version.
//
// The source sets the version. Clients see a new version once an update with it is stored, together
// with the resources of that update.
type OriginVersion struct {
	server any
	latest string // guarded by the source
	mark   string // see Distinguish
	// Attachment belongs to code that passes updates on between the source and the cache. The cache
	// ignores it.
	Attachment any

	// known is the version that clients see, nil before the first update with it.
	known atomic.Pointer[knownVersion]
	left  atomic.Uint32
}

type knownVersion struct {
	version string
	order   uint64 // of the update that brought the version
}

// NewOriginVersion returns a version of a server. server is any comparable value: the same version
// string of another server is another version. An empty string is no version.
func NewOriginVersion(server any, version string) *OriginVersion {
	return &OriginVersion{server: server, latest: version}
}

// Set replaces the version of all resources that share it, from the next update on. Only the source
// may call it.
func (v *OriginVersion) Set(version string) { v.latest = version }

// Distinguish adds a mark to the version that clients see, from the next update on: the same version of another server
// names other contents. Only who passes the update on may call it.
func (v *OriginVersion) Distinguish(mark string) {
	if v != nil && v.latest != "" {
		v.mark = mark
	}
}

// visible returns the version that clients see from the next update on.
func (v *OriginVersion) visible() string {
	if v.latest == "" {
		return ""
	}
	return v.latest + v.mark
}

// Latest returns the version that the source has set last. Only the source may
// call it.
func (v *OriginVersion) Latest() string {
	if v == nil {
		return ""
	}
	return v.latest
}

// Fork returns an independent copy. Only the source may call it.
func (v *OriginVersion) Fork() *OriginVersion {
	if v == nil {
		return nil
	}
	fork := NewOriginVersion(v.server, v.latest)
	fork.mark = v.mark
	return fork
}

// Snapshot returns the version that clients see now, as an OriginVersion that does not change. It is
// nil if there is none.
func (v *OriginVersion) Snapshot() *OriginVersion {
	version := v.String()
	if version == "" {
		return nil
	}
	return NewOriginVersion(v.server, version)
}

// String returns the version that clients see, empty for none. Within a snapshot lock, the results of
// String and the methods below belong to the state that the reader sees: see Cache.
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

// NewerThan reports whether the version of v came with a later update than that of o.
func (v *OriginVersion) NewerThan(o *OriginVersion) bool { return v.order() > o.order() }

func (v *OriginVersion) order() uint64 {
	if known := v.known.Load(); known != nil {
		return known.order
	}
	return 0
}

// Left counts the entries that have changed from this version to another. While the count stays the
// same, every entry that had the version still has it.
func (v *OriginVersion) Left() uint32 { return v.left.Load() }
