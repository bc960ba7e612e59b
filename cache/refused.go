package cache

import (
	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache/internal/members"
	"github.com/xds-relay/xds-relay/internal/uptime"
)

// What a client has refused is not what it has. A control plane may send it again with a new version and the same
// content, because the reason has passed: an address that was in use. To those who have accepted it, that is nothing
// new. So an equal resource with a new version is a change only after a client has refused it, once for each refusal,
// and the watchers decide whom it concerns.

// Release is a hash of the version of a state and that of its origin, not 0. In SotW, only the origin has versions.
type Release uint32

func releaseOf(r *Resource, origin string) Release {
	h := xxhash.New()
	_, _ = h.WriteString(r.Version())
	_, _ = h.Write([]byte{0})
	_, _ = h.WriteString(origin)
	return Release(h.Sum64()) | 1 //nolint:gosec // a part of the hash
}

// Release returns that of a state that has a resource.
func (s *State) Release() Release { return releaseOf(s.Resource, s.Origin.String()) }

// Refused is what a client has refused of an entry. The zero value is nothing.
type Refused struct {
	release Release
	// resource is that of a derived entry, which has no version of its origin: each Resource is a release.
	resource *Resource
}

// missedRelease makes a Release another one.
const missedRelease Release = 1 << 31

// Renewed reports whether a state, which has a resource, has another Release than the one that was refused.
func (r *Refused) Renewed(st *State) bool {
	switch {
	case r.release == 0:
		return false
	case r.resource != nil:
		return st.Resource != r.resource
	}
	return st.Release() != r.release
}

// Refuse records that a client has refused the entry's resource: its watchers are notified when it comes again with
// another Release. sent is when the client was sent the resource, by uptime.Millis: if it has come again since, on the way
// of the refusal, the watchers are notified soon.
func (e *Entry) Refuse(sent uint32) (refused Refused) {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.state.Load()
	if st.Resource == nil {
		return refused
	}
	e.refused = st.Release()
	switch refused.release = e.refused; {
	case e.restatedAfter(sent):
		refused.release ^= missedRelease
		e.table.scope.missed.add(e, nil, "", e.table.scope.renewMissed)
	case e.key.Scope.Derived != "":
		refused.resource = st.Resource
	}
	return refused
}

// restatedAfter reports whether something came again after a time, with equal content. The caller holds mu.
func (t *topic) restatedAfter(sent uint32) bool {
	return t.restated != 0 && uptime.After(t.restated, sent)
}

// renewed reports that a refused resource has come again with another Release. The caller holds mu.
func (e *Entry) renewed(old, next *State) bool {
	if e.refused == 0 || next.Resource != nil && sameContent(old.Resource, next.Resource) && e.isRelease(old, next) {
		return false
	}
	e.refused = 0
	return next.Status == Present && next.Resource != nil
}

// isRelease reports that a refused resource has come again with the Release that was refused. The caller holds mu.
func (e *Entry) isRelease(old, next *State) bool {
	if e.key.Scope.Derived != "" {
		return old.Resource == next.Resource
	}
	return next.Release() == e.refused
}

// Refuser is a [Source] of topics that it makes of others. Those that it makes do not come again unless the others do.
type Refuser interface {
	// Refused is called when a client has refused a topic's resource, or a member of a set with that name, which it was
	// sent at a time by uptime.Millis. It must not block and must not call the cache.
	Refused(k Key, name string, sent uint32)
}

// Refused passes on to the source that a client has refused a resource of a topic that the source makes of others.
func (r *Reader) Refused(k Key, name string, sent uint32) {
	if by, ok := r.cache.source.(Refuser); ok && k.Scope.Derived != "" {
		by.Refused(k, name, sent)
	}
}

// Refuse records that a client has refused a member: the set's watchers are notified when it comes again with another
// Release (Renewed). sent is when the client was sent the member, by uptime.Millis: if a member has come again since, on
// the way of the refusal, it may be this one, and the watchers are notified soon.
func (s *Set) Refuse(key string, sent uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members.Get(key)
	if !m.Present() || m.Resource.DoNotCache() || m.Resource.TTL() > 0 {
		return
	}
	if s.refused == nil {
		s.refused = map[string]Release{}
	}
	s.refused[key] = releaseOf(m.Resource, s.stated)
	if s.restatedAfter(sent) {
		s.table.scope.missed.add(nil, s, key, s.table.scope.renewMissed)
	}
}

// putRenewed stores a refused member that has come again with another Release, and reports whether it is one. origin is
// the version of the update.
func (s *Set) putRenewed(key string, r *Resource, origin string) bool {
	refused, ok := s.refused[key]
	if !ok {
		return false
	}
	m, n := s.members.Get(key), s.notes.byKey[key]
	same := m.Present() && r != nil && m.Resource.Hash() == r.Hash() && (n == nil || n.err == nil)
	if same && s.isRelease(refused, m.Resource, r, origin) {
		return false
	}
	delete(s.refused, key)
	if !same || m.Resource.TTL() > 0 || r.TTL() > 0 || r.DoNotCache() {
		return false // it is another change
	}
	s.first.note(key, r)
	s.renewMember(key, m, r)
	return true
}

// renewMember has a member with a resource of the same content count as Renewed.
func (s *Set) renewMember(key string, m members.Member, r *Resource) {
	before := m.Seq
	if n := s.notes.byKey[key]; n != nil && n.renewed > 0 {
		before = n.renewed
	}
	s.count(m, -1)
	s.seq++
	m.Seq, m.Resource = s.seq, r
	s.members.Put(key, &m)
	s.count(m, 1)
	s.notes.renew(key, s.seq).renewed, s.renewed = before, true
	s.bodies, s.extended = nil, extended{}
}

// isRelease reports that a member has come again with the Release that was refused. A derived set has no versions of its
// origins: there, the same Resource is the same release.
func (s *Set) isRelease(refused Release, was, r *Resource, origin string) bool {
	if s.key.Scope.Derived != "" {
		return was == r
	}
	return releaseOf(r, origin) == refused
}

// Renewed calls yield for the name of each member that is Renewed since w's position, until it returns false. The rules
// for yield of Since apply.
func (s *Set) Renewed(w *SetWatch, yield func(name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.renewed {
		return
	}
	for m := range s.members.After(w.seq) {
		if !m.Removed && m.Seq > w.seenUpTo && s.newsOf(m, w.seenUpTo) == Renewed && !yield(m.Resource.Name()) {
			return
		}
	}
}

// RenewedIn calls yield with the last change of each member that is Renewed, and has had its content since a change after
// from, up to and including to. The rules for yield of Since apply.
func (s *Set) RenewedIn(from, to uint64, yield func(change uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.renewed {
		return
	}
	for key, n := range s.notes.byKey {
		if m := s.members.Get(key); from < n.renewed && n.renewed <= to && m.Present() {
			yield(m.Seq)
		}
	}
}

// newsOf returns what a changed member is to a watcher that has received everything up to a change.
func (s *Set) newsOf(m members.Member, upTo uint64) News {
	if n := s.notes.byKey[s.members.Key(m)]; n != nil && 0 < n.renewed && n.renewed <= upTo {
		return Renewed
	}
	return Changed
}
