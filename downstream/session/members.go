package session

import (
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Globs that mean the same are one set, whatever context parameters a client gives that
// their authority's policy drops. The client knows the members by the names that they
// have in the glob that it asks for (Envoy takes no others): they are spelled so when
// they are sent, so that such a glob costs a subscription and no copies of the members.

// membersOf returns a set as the client knows it, which watches the set from now on.
func (s *setSub) membersOf(of *cache.Set) *members {
	m := &members{Set: of}
	if glob := withoutDirectives(of.Key().Name); s.glob() && glob != s.ref.name {
		m.glob, m.as = glob, s.ref.name
		s.Spell = m.spelled
	}
	return m
}

// spelled is what the client calls the member that the origin calls name.
func (m *members) spelled(name string) string { return urn.MemberOf(m.as, memberKey(name)) }

// nameOf is what the client calls a member.
func (m *members) nameOf(r *cache.Resource) string {
	if m.as == "" {
		return r.Name()
	}
	return m.spelled(r.Name())
}

// key is what the set keeps a member under that the client knows by that canonical name.
func (m *members) key(name string) string {
	if m.as == "" {
		return name
	}
	return urn.MemberOf(m.glob, name)
}

// Since is that of the set.
func (m *members) Since(w *cache.SetWatch, yield func(cache.Member) bool) bool {
	return m.SinceInChunks(w, nil, yield)
}

// SinceInChunks is that of the set. In chunks members have their own names.
func (m *members) SinceInChunks(w *cache.SetWatch, runs *cache.ChunkOptions, yield func(cache.Member) bool) bool {
	if m.as == "" {
		return m.Set.SinceInChunks(w, runs, yield)
	}
	return m.Set.Since(w, func(member cache.Member) bool {
		member.Name = m.spelled(member.Name)
		return yield(member)
	})
}

// SentTo is that of the set.
func (m *members) SentTo(w *cache.SetWatch, yield func(name, version string)) {
	m.Set.SentTo(w, m.each(yield))
}

// RecentlyRemoved is that of the set.
func (m *members) RecentlyRemoved(yield func(name, constraints string)) {
	m.Set.RecentlyRemoved(m.each(yield))
}

// Names is that of the set.
func (m *members) Names(yield func(name string)) {
	each := m.each(func(name, _ string) { yield(name) })
	m.Set.Names(func(name string) { each(name, "") })
}

func (m *members) each(yield func(name, more string)) func(string, string) {
	if m.as == "" {
		return yield
	}
	return func(name, more string) { yield(m.spelled(name), more) }
}

// Member is that of the set.
func (m *members) Member(name string) *cache.Resource { return m.Set.Member(m.key(name)) }

// MemberFor is that of the set.
func (m *members) MemberFor(w *cache.SetWatch, name string) *cache.Resource {
	return m.Set.MemberFor(w, m.key(name))
}

// Failed is that of the set.
func (m *members) Failed(name string) bool { return m.Set.Failed(m.key(name)) }

// full returns Full of the set, or FullWithRemoved. Its version is
// another than that of the same members under other names.
func (m *members) full(extended bool, w *cache.SetWatch, f cache.Form, except func(string) bool, changed func(cache.Member), look func(func(string) *cache.Resource)) cache.FullState {
	if m.as == "" {
		if extended {
			return m.FullWithRemoved(w, f, except, changed, look)
		}
		return m.Full(w, f, except, changed, look)
	}
	but := except
	if except != nil {
		but = func(key string) bool { return except(m.spelled(key)) }
	}
	changedAs := func(member cache.Member) {
		member.Name = m.spelled(member.Name)
		changed(member)
	}
	looked := func(has func(string) *cache.Resource) {
		look(func(name string) *cache.Resource { return has(m.key(name)) })
	}
	var is cache.FullState
	if extended {
		is = m.FullWithRemoved(w, f, but, changedAs, looked)
	} else {
		is = m.Full(w, f, but, changedAs, looked)
	}
	is.Version = strconv.FormatUint(xxhash.Sum64String(m.as+"\n"+is.Version), 16)
	return is
}
