package cache

// A client that reconnects may have a resource that the relay does not know, for example after a restart of
// the relay. Some delta control planes send a removal only to clients that have named the resource
// in initial_resource_versions. So the relay has to name it there on behalf of its clients.

// Resumer is a [Source] that can find out whether a resource still exists.
type Resumer interface {
	// Resume is called when a client has the resource of a topic from an earlier stream, and
	// the topic has no answer yet. It is called after Start, must not block and must not call
	// the cache.
	Resume(Key)
}

// Resume calls [Resumer.Resume] if the source is a Resumer.
func Resume(s Source, k Key) {
	if r, ok := s.(Resumer); ok {
		r.Resume(k)
	}
}

// Resume calls [Resumer.Resume] for an entry that has no answer: a client of the reader has the entry's
// resource from an earlier stream. The reader must watch the entry.
func (r *Reader) Resume(e *Entry) {
	switch e.Snapshot().Status {
	case Present, Absent:
	default:
		Resume(r.cache.source, e.key)
	}
}
