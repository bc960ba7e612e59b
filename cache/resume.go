package cache

// A client that resumes may hold a resource of which the relay knows nothing, as after a
// restart of the relay. Some delta control planes say that a resource is gone only if the
// client has said that it holds it. So the relay has to ask on behalf of its clients.

// Resumer is a [Source] that can ask whether a resource still exists.
type Resumer interface {
	// Resume is called when a client comes that holds the resource of a topic from an
	// earlier stream, and nothing is known of that topic. It is called after Start, must
	// not block and must not call the cache.
	Resume(Key)
}

// Resume calls [Resumer.Resume] of a source that is one.
func Resume(s Source, k Key) {
	if r, ok := s.(Resumer); ok {
		r.Resume(k)
	}
}

// Resume notes that a client of the reader holds an entry's resource from an earlier stream.
// The entry is watched for the reader.
func (r *Reader) Resume(e *Entry) {
	switch e.Snapshot().Status {
	case Present, Absent:
	default:
		Resume(r.cache.source, e.key)
	}
}
