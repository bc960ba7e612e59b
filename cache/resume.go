package cache

// A client that reconnects may have a resource that the relay does not know, as after a restart of
// the relay. Some delta control planes send a removal only to clients that have named the resource
// in initial_resource_versions. So the relay has to name it on behalf of its clients.

// Resumer is a [Source] that can ask whether a resource still exists.
type Resumer interface {
	// Resume is called when a client has the resource of a topic from an earlier stream, and
	// the topic has no answer yet. It is called after Start, must not block and must not call
	// the cache.
	Resume(Key)
}

// Resume calls [Resumer.Resume] of a source that is one.
func Resume(s Source, k Key) {
	if r, ok := s.(Resumer); ok {
		r.Resume(k)
	}
}

// Resume notes that a client of the reader has an entry's resource from an earlier stream. The
// reader watches the entry.
func (r *Reader) Resume(e *Entry) {
	switch e.Snapshot().Status {
	case Present, Absent:
	default:
		Resume(r.cache.source, e.key)
	}
}
