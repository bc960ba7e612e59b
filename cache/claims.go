package cache

import (
	"maps"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache/internal/members"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Claims that move from one member to another: see [resource.Resource.Claims].
//
// Envoy applies the Listeners of a response one after another, after the removals. It refuses one whose address another
// one has, even if that one moves away later in the same response, or has moved and is still warming. Control planes send
// the two in several responses, which a slow client gets as one. So a member that gives up what another one takes is set
// apart: it is removed in the response that has the other one, and comes again in the next. Envoy closes the sockets of a
// Listener whose address changes anyway.

// claimChange is a change of what a member claims.
type claimChange struct {
	key           string
	seq           uint64
	before, after []uint64
	// gone is the change by which the member was removed before, 0 if it was there.
	gone uint64
}

const (
	// minClaimChanges is how many claimChanges a set collects before it first checks which are still needed.
	minClaimChanges = 16
	// maxClaimChanges bounds them, for a client that does not read.
	maxClaimChanges = 4096
)

// claims are the changes of what the members of a set claim. Guarded by topic.mu.
type claims struct {
	changes []claimChange
	newest  uint64 // the newest of them
	sweepAt int
	// givers are the result of Set.givers for watchers at a position, in a state of the set. full is a full state without
	// the members that are set apart.
	givers struct {
		state, held, lost uint64
		keys              []string
	}
	full struct {
		state  uint64
		form   Form
		apart  map[string]struct{}
		result FullState
	}
}

// claimChanges returns how an update changes the members' claims. As with plan, the caller holds gate.storing.
func (s *Set) claimChanges(u *SetUpdate) (changes []claimChange) {
	if s.members.Len() == 0 || u.Err != nil || !xdstype.Of(s.key.TypeURL).OneByOne {
		return nil
	}
	for i := range u.Changes {
		c := &u.Changes[i]
		if c.Resource == nil {
			continue
		}
		m := s.members.Get(c.Name)
		if m.Present() && m.Resource.Hash() == c.Resource.Hash() {
			continue
		}
		change := claimChange{key: strings.Clone(c.Name), after: c.Resource.Claims()}
		if m.Resource != nil {
			change.before = m.Resource.Claims()
		}
		if m.Removed {
			change.gone = m.Seq
		}
		if m.Removed || !slices.Equal(change.before, change.after) {
			changes = append(changes, change)
		}
	}
	return changes
}

// noteClaims records the changes of an update, which has been stored.
func (s *Set) noteClaims(changes []claimChange) {
	if len(changes) == 0 {
		return
	}
	if s.claims == nil {
		s.claims = &claims{sweepAt: minClaimChanges}
	}
	all := s.claims
	for _, c := range changes {
		c.seq = s.members.Get(c.key).Seq
		all.newest = max(all.newest, c.seq)
		all.changes = append(all.changes, c)
	}
	if len(all.changes) <= all.sweepAt {
		return
	}
	needed := s.seq
	for _, w := range s.watchers {
		if from := w.(SetWatcher).claimsFrom(); from > 0 {
			needed = min(needed, from)
		}
	}
	all.changes = slices.DeleteFunc(all.changes, func(c claimChange) bool { return c.seq <= needed })
	all.changes = slices.Clone(all.changes[max(0, len(all.changes)-maxClaimChanges):])
	all.sweepAt = max(minClaimChanges, 2*len(all.changes))
}

// claimsFrom is the position from which on the watcher needs the changes of claims, 0 if it needs none.
func (w *SetWatch) claimsFrom() uint64 {
	if !w.OneByOne {
		return 0
	}
	return w.seenUpTo
}

// givers returns the keys of the members that a watcher has with a claim that another member has taken since. held is the
// watcher's position, and lost its position among the removals. It does not have those that are set apart for it already.
func (s *Set) givers(w *SetWatch) []string {
	held, lost := w.seenUpTo, w.lostAt
	all := s.claims
	if all == nil || held == 0 || all.newest <= held {
		return nil
	}
	shared := len(w.apart) == 0
	if known := &all.givers; shared && known.state == s.seq && known.held == held && known.lost == lost {
		return known.keys
	}
	first, last := map[string]*claimChange{}, map[string]*claimChange{}
	for i := range all.changes {
		c := &all.changes[i]
		if m := s.members.Get(c.key); c.seq <= held || !m.Present() {
			continue
		}
		if first[c.key] == nil {
			first[c.key] = c
		}
		last[c.key] = c
	}
	taken := map[uint64]string{}
	for key, c := range last {
		for _, claim := range c.after {
			taken[claim] = key
		}
	}
	// What comes in the next response takes nothing in this one. So in a circle, not all are set apart.
	var keys []string
	apart := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(first)) {
		given := func(claim uint64) bool {
			by, ok := taken[claim]
			return ok && by != key && !apart[by]
		}
		if c := first[key]; !w.isApart(key) && (c.gone == 0 || lost < c.gone) && slices.ContainsFunc(c.before, given) {
			keys, apart[key] = append(keys, key), true
		}
	}
	if shared {
		all.givers.state, all.givers.held, all.givers.lost, all.givers.keys = s.seq, held, lost, keys
	}
	return keys
}

// toSetApart returns the members that are to be set apart for w's watcher before it gets the changes of the set.
func (s *Set) toSetApart(w *SetWatch) (apart []members.Member) {
	if !w.OneByOne {
		return nil
	}
	if !w.inBatch {
		w.lostAt = w.seq
	}
	for _, key := range s.givers(w) {
		m := s.members.Get(key)
		if m.Seq > w.seenUpTo && !s.withheldFrom(w, m) {
			apart = append(apart, m)
		}
	}
	return apart
}

// setApart sets members apart for w's watcher.
func (s *Set) setApart(w *SetWatch, apart []members.Member) {
	for _, m := range apart {
		if w.apart == nil {
			w.apart = map[string]struct{}{}
		}
		w.apart[strings.Clone(s.members.Key(m))] = struct{}{}
	}
}

// fullWithoutApart returns the full state without the members that are set apart for w's watcher. Watchers for which
// these are the same share it.
func (s *Set) fullWithoutApart(w *SetWatch, f Form) FullState {
	full := &s.claims.full
	if full.state != s.seq || full.form != f || !maps.Equal(full.apart, w.apart) {
		full.state, full.form, full.apart = s.seq, f, w.apart
		full.result = s.encodeIf(f, nil, func(m members.Member) bool { return !m.Removed && !w.isApart(s.members.Key(m)) })
	}
	return full.result
}

// isApart is Set.Apart by the member's key.
func (w *SetWatch) isApart(key string) bool {
	_, ok := w.apart[key]
	return ok
}

// Apart reports whether a member is set apart for w's watcher: the watcher was sent, or is to be sent, its removal, and
// gets it again with Return or Full.
func (s *Set) Apart(w *SetWatch, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.isApart(key)
}

// HasApart reports whether members are set apart for the watcher. Only the watcher may call it.
func (w *SetWatch) HasApart() bool { return len(w.apart) > 0 }

// Return calls yield for each member that RemovedAhead has set apart for w's watcher, until it returns false. It returns
// the range of their last changes, and whether none is left. The rules for yield of Since apply.
func (s *Set) Return(w *SetWatch, yield func(Member) bool) (from, to uint64, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(w.apart)) {
		m := s.members.Get(key)
		if m.Present() {
			if !yield(s.memberOf(m, Changed)) {
				return from, to, false
			}
			if to == 0 {
				from = m.Seq - 1
			}
			from, to = min(from, m.Seq-1), max(to, m.Seq)
		}
		delete(w.apart, key)
	}
	w.apart = nil
	return from, to, true
}
