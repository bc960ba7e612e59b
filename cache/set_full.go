package cache

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache/internal/members"
	"github.com/xds-relay/xds-relay/cache/resource"
)

// Full returns the set's whole state in a form, and moves w's position past it. Each state is encoded
// once per form and shared. Full calls changed for each member that is new or changed for the
// watcher, or removed, and for each name that has an error. It calls look once, with a function that returns the
// state's resource under a key (such as the Key.Name of an entry). For both, the rules for yield of
// Since apply. If except is not nil, Full omits the members for whose key it returns true. It also omits the members that
// it sets apart for the watcher, because others take their claims: HasApart says so, and the next Full has them.
func (s *Set) Full(w *SetWatch, f Form, except func(key string) bool, changed func(Member), look func(has func(key string) *Resource)) FullState {
	s.mu.Lock()
	defer s.mu.Unlock()
	back, apart := w.apart, s.toSetApart(w)
	w.apart = nil
	s.setApart(w, apart)
	s.changes(w, true, changed)
	for key := range back {
		if m := s.members.Get(key); m.Present() && m.Seq <= w.seenUpTo {
			changed(Member{Name: m.Resource.Name(), News: Changed, Resource: m.Resource})
		}
	}
	look(func(key string) *Resource {
		if m := s.members.Get(key); m.Present() && !s.withheldFrom(w, m) {
			return m.Resource
		}
		return nil
	})
	w.seq, w.seenUpTo, w.between, w.noteSeq = s.seq, s.seq, nil, s.seq
	withholds := s.withholds(w)
	if !withholds {
		w.began = 0
	}
	if except != nil || w.Spell != nil || withholds {
		full := s.encodeIf(f, w.Spell, func(m members.Member) bool {
			key := s.members.Key(m)
			return !m.Removed && !s.withheldFrom(w, m) && !w.isApart(key) && (except == nil || !except(key))
		})
		if !withholds && len(w.apart) == 0 {
			full.Origin = s.origin
		}
		return full
	}
	if s.withTTL == 0 {
		f &^= WithTTL | Heartbeat
	}
	if len(w.apart) > 0 {
		return s.fullWithoutApart(w, f)
	}
	body := s.bodies[f]
	if body == nil {
		body = s.encodeIf(f, nil, func(m members.Member) bool { return !m.Removed }).Resources
		if s.bodies == nil {
			s.bodies = map[Form]*Body{}
		}
		s.bodies[f] = body
	}
	hash := s.sum
	if f&WithTTL != 0 {
		hash += 3 * s.ttlSum
	}
	full := FullState{Version: resource.FormatHash(s.sum), Resources: body, Len: s.present, Hash: hash}
	full.Origin, full.Exact = s.origin, !s.inexact
	return full
}

// FullWithRemoved is like Full, but its state still has the removed members that the watcher knows, with
// their last resources. The removals stay pending.
func (s *Set) FullWithRemoved(w *SetWatch, f Form, except func(key string) bool, changed func(Member), look func(has func(key string) *Resource)) FullState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes(w, false, changed)
	look(func(key string) *Resource {
		if m := s.members.Get(key); m.Resource != nil && (!m.Removed && !s.withheldFrom(w, m) || m.Removed && w.knew(m)) {
			return m.Resource
		}
		return nil
	})
	if e := &s.extended; except != nil || w.Spell != nil || e.full.Resources == nil || e.state != s.seq || e.seq != w.seq || e.ahead != w.seenUpTo || e.form != f || !slices.Equal(e.between, w.between) {
		*e = extended{state: s.seq, seq: w.seq, ahead: w.seenUpTo, between: w.between, form: f}
		e.full = s.encodeIf(f, w.Spell, func(m members.Member) bool {
			if m.Removed && !w.knew(m) || !m.Removed && s.withheldFrom(w, m) {
				return false
			}
			return except == nil || !except(s.members.Key(m))
		})
	}
	full := s.extended.full
	if except != nil || w.Spell != nil {
		s.extended = extended{} // no other watcher can use it
	}
	w.between = s.between(w)
	w.seenUpTo, w.noteSeq = s.seq, s.seq
	return full
}

// between returns the value of w.between after seenUpTo has moved to s.seq: for each removed member
// that the watcher knows, the watcher's newest position at which the member existed.
func (s *Set) between(w *SetWatch) []uint64 {
	var between []uint64
	for m := range s.members.After(w.seq) {
		if !m.Removed || !w.knew(m) {
			continue
		}
		newest := w.seq
		for _, position := range w.positions() {
			if position < m.Seq {
				newest = max(newest, position)
			}
		}
		if newest != w.seq {
			between = append(between, newest)
		}
	}
	slices.Sort(between)
	return slices.Compact(between)
}

// changes calls changed for each member that is new or changed for the watcher, and for each name that
// has an error. With removals, it also calls changed for each removed member that the watcher knows.
func (s *Set) changes(w *SetWatch, removals bool, changed func(Member)) {
	for m := range s.members.After(w.seq) {
		if m.Removed {
			if removals && w.knew(m) {
				changed(Member{Name: m.Resource.Name(), News: Removed, Resource: m.Resource})
			}
			continue
		}
		if m.Seq > w.seenUpTo && !s.withheldFrom(w, m) && (len(w.apart) == 0 || !w.isApart(s.members.Key(m))) {
			changed(Member{Name: m.Resource.Name(), News: Changed, Resource: m.Resource})
		}
	}
	// Errors are repeated: to the client, a resource without its error would mean that the error is over.
	for n := range s.notes.after(0) {
		if s.arrivedAgain(w, n) {
			r := s.members.Get(n.key).Resource
			changed(Member{Name: r.Name(), News: Changed, Resource: r})
		}
		if n.err != nil {
			changed(Member{Name: n.key, Err: n.err})
		}
	}
}

// encodeIf returns the state of the members for which include returns true. Its version is a hash
// over them. spell is as in SetWatch.
func (s *Set) encodeIf(f Form, spell func(string) string, include func(members.Member) bool) FullState {
	var full FullState
	resources := make([]*Resource, 0, s.members.Len())
	var ttlSum uint64
	secret := false
	for m := range s.members.All() {
		if include(m) {
			resources = append(resources, m.Resource)
			full.Hash += digest(m.Resource)
			secret = secret || m.Resource.HoldsSecret()
			if m.Resource.SentWithTTL(f) {
				ttlSum += digest(m.Resource)
			}
		}
	}
	full.Len, full.Version = len(resources), resource.FormatHash(full.Hash)
	full.Resources = &Body{form: f, spell: spell, secret: secret, resources: resources}
	full.Hash += 3 * ttlSum
	return full
}

// Pending reports what a watcher of full states has not received yet: new or changed
// members, removals, and heartbeats. f is the watcher's form.
func (s *Set) Pending(w *SetWatch, f Form) (changes, removals, beats bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members.After(w.seq) {
		if changes && removals {
			break
		}
		if m.Removed {
			removals = removals || w.knew(m)
		} else {
			changes = changes || m.Seq > w.seenUpTo && !s.withheldFrom(w, m) && s.newsOf(m, w.seenUpTo) == Changed
		}
	}
	for n := range s.notes.after(w.noteSeq) {
		changes = changes || n.err != nil && n.failed > w.noteSeq || f&WithTTL != 0 && n.ttlChange > w.noteSeq
		changes = changes || s.arrivedAgain(w, n)
		beats = beats || f&WithTTL != 0 && n.heartbeat > w.noteSeq
	}
	if !changes && !beats {
		w.noteSeq = s.seq
	}
	changes = changes || len(w.apart) > 0
	return changes, removals, beats
}

// digest is a member's part of the hash over a set. The hash is the sum over all members, so it does
// not depend on their order, and a change costs only the work for the changed members.
func digest(r *Resource) uint64 {
	h := xxhash.NewWithSeed(r.Hash())
	_, _ = h.WriteString(r.Name())
	return h.Sum64()
}
