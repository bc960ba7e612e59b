package session

import (
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Globs that mean the same are one set, even if clients add context parameters that their authority's policy drops. A
// client knows the members by the names that they have in the glob that it requested (Envoy accepts no others). The
// names are respelled when they are sent, so such a glob costs a subscription and no copies of the members.

// membersOf returns a set as the client knows it. From now on s watches that set.
func (s *setSub) membersOf(of *cache.Set) *members {
	m := &members{Set: of}
	// Of relays in a row, the last one sets apart.
	s.OneByOne = !s.subs.Relay && xdstype.Of(s.subs.typeURL).OneByOne
	if glob := withoutDirectives(of.Key().Name); s.glob() && glob != s.ref.name {
		m.glob, m.as = glob, s.ref.name
		s.Spell = m.spelled
	}
	return m
}

// spelled returns the client's name for the member that the origin calls name.
func (m *members) spelled(name string) string { return urn.MemberOf(m.as, memberKey(name)) }

// nameOf returns the client's name for a member.
func (m *members) nameOf(r *cache.Resource) string {
	if m.as == "" {
		return r.Name()
	}
	return m.spelled(r.Name())
}

// names reports whether a SotW client knows a member by a name with an authority: the member has this name, or the
// client requests the normal form of the member's name.
func (m *members) names(r *cache.Resource, name string) bool {
	has := m.nameOf(r)
	if has == name {
		return true
	}
	key, err := urn.KeyOf(has)
	return err == nil && key.Name == name
}

// key returns the key in the set of the member that the client knows by that canonical name.
func (m *members) key(name string) string {
	if m.as == "" {
		return name
	}
	return urn.MemberOf(m.glob, name)
}

// Since is Set.Since with the client's names.
func (m *members) Since(w *cache.SetWatch, yield func(cache.Member) bool) bool {
	return m.SinceInChunks(w, nil, yield)
}

// SinceInChunks is Set.SinceInChunks with the client's names. In chunks, members have their own names: so there are
// none if the client's names differ.
func (m *members) SinceInChunks(w *cache.SetWatch, runs *cache.ChunkOptions, yield func(cache.Member) bool) bool {
	if m.as == "" {
		return m.Set.SinceInChunks(w, runs, yield)
	}
	return m.Set.Since(w, func(member cache.Member) bool {
		member.Name = m.spelled(member.Name)
		return yield(member)
	})
}

// RemovedAhead is Set.RemovedAhead with the client's names.
func (m *members) RemovedAhead(w *cache.SetWatch, yield func(cache.Member)) {
	m.Set.RemovedAhead(w, func(member cache.Member) {
		if m.as != "" {
			member.Name = m.spelled(member.Name)
		}
		yield(member)
	})
}

// Return is Set.Return with the client's names.
func (m *members) Return(w *cache.SetWatch, yield func(cache.Member) bool) (from, to uint64, all bool) {
	return m.Set.Return(w, func(member cache.Member) bool {
		if m.as != "" {
			member.Name = m.spelled(member.Name)
		}
		return yield(member)
	})
}

// Apart is Set.Apart by the client's name.
func (m *members) Apart(w *cache.SetWatch, name string) bool { return m.Set.Apart(w, m.key(name)) }

// SentTo is Set.SentTo with the client's names.
func (m *members) SentTo(w *cache.SetWatch, yield func(name, version string)) {
	m.Set.SentTo(w, m.each(yield))
}

// RecentlyRemoved is Set.RecentlyRemoved with the client's names.
func (m *members) RecentlyRemoved(yield func(name, constraints string)) {
	m.Set.RecentlyRemoved(m.each(yield))
}

// Names is Set.Names with the client's names.
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

// ChangedAt is Set.ChangedAt by the client's name.
func (m *members) ChangedAt(name string) (change uint64, present bool) {
	return m.Set.ChangedAt(m.key(name))
}

// ChangedIn is Set.ChangedIn with the client's names.
func (m *members) ChangedIn(from, to uint64, yield func(name string) bool) {
	m.Set.ChangedIn(from, to, func(name string) bool {
		if m.as != "" {
			name = m.spelled(name)
		}
		return yield(name)
	})
}

// Member is Set.Member by the client's name.
func (m *members) Member(name string) *cache.Resource { return m.Set.Member(m.key(name)) }

// MemberFor is Set.MemberFor by the client's name.
func (m *members) MemberFor(w *cache.SetWatch, name string) *cache.Resource {
	return m.Set.MemberFor(w, m.key(name))
}

// Failed is Set.Failed by the client's name.
func (m *members) Failed(name string) bool { return m.Set.Failed(m.key(name)) }

// full is Set.Full, or Set.FullWithRemoved if extended, with the client's names. Its version differs from that of the
// same members under other names.
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
