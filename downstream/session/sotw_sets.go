package session

import (
	"maps"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// The part of sets in a full state: of the wildcard, and of glob collections.

// setStates is what a full state has of sets.
type setStates struct {
	full    []cache.FullState
	version string        // a hash over all of the sets
	same    commonVersion // the origin's version
	exact   bool          // the origin's version identifies the whole content, for every client
	hash    uint64
	fresh   bool // the state answers one of the sets
}

// content is a version that only clients with exactly this content have. The origin's version is one for a wildcard
// alone, because a wildcard means the same for all clients that share it.
func (s *setStates) content() string {
	if origin := s.same.version(); origin != "" && s.exact {
		return origin
	}
	return s.version
}

// setKnown reports whether a full state can have what a set has. A glob that is unavailable is left out, and its error
// sent, if the client holds nothing of it.
func (s *SotW) setKnown(set *setSub) bool {
	switch status, _ := set.status(); status {
	case cache.Present:
		if s.lacksHeld(set) || !set.glob() && !set.sent && set.set.Len() == 0 && set.set.HasGaps(anyError) {
			return false
		}
		// The client may hold, from an earlier stream, a member that the set withholds from new watchers.
		return !set.fresh || s.last.nonce != "" || s.resumed == "" || !set.set.Withholds(&set.SetWatch)
	case cache.Failed:
		return set.glob() && !set.sent && !set.mayHold
	case cache.Requested, cache.Absent:
	}
	return false
}

// setStates adds to r the errors of sets, and returns the rest of what a full state has of them.
func (s *SotW) setStates(r *Response, form cache.Form) setStates {
	var all setStates
	var versions []string
	named, elsewhere := s.namedBySet()
	add := func(set *setSub, except func(string) bool) {
		if status, err := set.status(); status != cache.Present {
			for _, name := range set.names() {
				if !set.errSent {
					r.addError(wire.SotWErrors, name, err)
				}
			}
			set.errSent = true
			return
		}
		before, _ := set.Seen()
		if set.fresh {
			before = 0
		}
		full := s.setState(r, set, form|set.form(), except, named[set])
		after, _ := set.Seen()
		s.noteSpan(set, before, after)
		all.full = append(all.full, full)
		all.hash += full.Hash
		all.fresh = all.fresh || set.fresh
		versions = append(versions, set.ref.key()+"="+full.Version)
		all.version = full.Version
		all.same.add(full.Origin)
		all.exact = full.Exact && set.ref == refByName(cache.Wildcard) && len(versions) == 1
		set.setFresh(false)
		set.moved, set.sent, set.mayHold = false, true, false
	}
	// A response has a resource only once: the views leave out what a glob has, and the wildcard what either has.
	sent := s.ownedByNames()
	for _, set := range s.byGlob {
		if !s.isView(set) {
			add(set, s.memberFilter(sent, set, elsewhere))
		}
	}
	for _, set := range s.views {
		add(set, s.memberFilter(sent, set, elsewhere))
	}
	if s.wild != nil {
		add(s.wild, s.without(elsewhere))
	}
	if len(versions) > 1 {
		slices.Sort(versions)
		all.version = s.namedVersion(strings.Join(versions, "\n"))
	}
	return all
}

// without returns a function that leaves out those members of the wildcard. It returns nil if the wildcard has none of
// them, so that its part can be the one that all clients share.
func (s *SotW) without(keys map[string]bool) func(string) bool {
	if !s.withheld { // otherwise there may be removed members
		maps.DeleteFunc(keys, func(key string, _ bool) bool { return s.wild.set.Member(key) == nil })
	}
	if len(keys) == 0 {
		return nil
	}
	return func(key string) bool { return keys[key] }
}

// setState returns a set's part of a full state. It marks which of subs the set covers.
func (s *SotW) setState(r *Response, set *setSub, form cache.Form, except func(string) bool, subs []*nameSub) cache.FullState {
	changed := func(m cache.Member) {
		if m.News == cache.Removed {
			r.noteGone(m.Resource)
			return
		}
		if m.Resource != nil {
			r.noteChanged(m.Resource)
		}
		// The error of a member that is also requested by name is sent with the name.
		if m.Err != nil && s.namedIn(set, m.Name) == nil {
			r.addError(wire.SotWErrors, m.Name, m.Err)
		}
	}
	look := func(has func(string) *cache.Resource) {
		for _, sub := range subs {
			res := has(sub.memberKey())
			// If the client spells the name in another way, the member has another name for it.
			sub.set(isCovered, sub.is(isCovered) || res != nil && (!urn.IsXdstp(sub.name()) || set.set.names(res, sub.name())))
		}
	}
	return set.set.full(s.withheld, &set.SetWatch, form, except, changed, look)
}

// namedBySet returns the names that each set may cover. None is marked as covered yet. The wildcard belongs to the
// client's Node, so a member with an xdstp name is not the authority's resource of this name: elsewhere has the keys
// of the xdstp names whose own resources the client is sent.
func (s *SotW) namedBySet() (named map[*setSub][]*nameSub, elsewhere map[string]bool) {
	named, elsewhere = map[*setSub][]*nameSub{}, map[string]bool{}
	for sub := range s.named.all() {
		sub.set(isCovered, false)
		if !sub.meansSomething() {
			continue
		}
		if set := s.globOf(sub.ref()); set != nil && !s.ownsOverView(sub, set) {
			named[set] = append(named[set], sub)
		}
		switch set := s.wildOf(sub.ref()); {
		case set == nil:
		case !urn.IsXdstp(sub.name()):
			named[set] = append(named[set], sub)
		case sub.state().Status == cache.Present || s.withheld && removed(sub, sub.state()):
			elsewhere[sub.memberKey()] = true
		}
	}
	return named, elsewhere
}

// inFull is the state of a name in a full state: the member of a set that gives it, or else the name's own state. The
// control plane sends the two separately.
func (s *SotW) inFull(sub *nameSub) cache.State {
	st := s.perceived(sub, sub.state())
	if s.Rights != nil && !s.Relay {
		if why := sub.denial(); why != nil { // also if a set has the resource
			st.Err = why
		}
	}
	if r, by := s.given(sub); r != nil {
		if st.Status == cache.Absent {
			st.Err = nil // not both in one response
		}
		st.Status, st.Resource, st.Heartbeats = cache.Present, r, sub.heartbeats() // the set's heartbeats are sent anyway
		st.Origin = by.set.Origin()
	}
	return st
}

// given returns the resource that a set has under a name, in the client's spelling, and the set; nil if none has it.
func (s *SotW) given(sub *nameSub) (r *cache.Resource, by *setSub) {
	if !sub.meansSomething() || !s.hasSets() {
		return nil, nil
	}
	set := s.standIn(sub.ref())
	if set == nil || !present(set) || s.ownsOverView(sub, set) {
		return nil, nil
	}
	r = set.set.MemberFor(&set.SetWatch, sub.memberKey())
	if r == nil || urn.IsXdstp(sub.name()) && !set.set.names(r, sub.name()) {
		return nil, nil
	}
	return r, set
}

// ownsOverView reports that a name is in a glob that is a view, and is present by itself: then it is another resource
// than the view's member.
func (s *SotW) ownsOverView(sub *nameSub, set *setSub) bool {
	return s.isView(set) && sub.state().Status == cache.Present
}

// hasMovedSets reports that there are sets that have moved since the client was sent them. A full state would leave out
// what only the previous sets had.
func (s *SotW) hasMovedSets() bool {
	for set := range s.sets() {
		if set.moved {
			return true
		}
	}
	return false
}

// sentKeys are the keys of what a full state has, by the way in which it is requested.
type sentKeys map[resourceRef]map[string]bool

// ownedByNames returns the keys of the names that own themselves, which views leave out; nil if there are no views.
func (s *SotW) ownedByNames() sentKeys {
	if len(s.views) == 0 {
		return nil
	}
	sent := sentKeys{}
	for sub := range s.named.all() {
		if sub.meansSomething() && (sub.state().Status == cache.Present || s.withheld && removed(sub, s.inFull(sub))) {
			sent.add(sub.ref(), sub.memberKey())
		}
	}
	return sent
}

func (t sentKeys) add(a resourceRef, key string) {
	way := a.of("")
	if t[way] == nil {
		t[way] = map[string]bool{}
	}
	t[way][key] = true
}

// memberFilter returns a function that records the members of a glob: as sent, and in elsewhere, so that the wildcard
// leaves them out. For a view, the function also reports what is sent already: a response has a resource only once.
func (s *SotW) memberFilter(sent sentKeys, set *setSub, elsewhere map[string]bool) func(string) bool {
	view, underWild := s.isView(set), s.wildOf(set.ref.of(cache.Wildcard)) != nil
	if !s.sharesMembers(set) && !underWild && len(sent) == 0 {
		return nil
	}
	return func(key string) bool {
		if view && sent[set.ref.of("")][key] {
			return true
		}
		if sent != nil {
			sent.add(set.ref, key)
		}
		if underWild {
			elsewhere[key] = true
		}
		return false
	}
}

// nothingKnown reports that a full state would have no resource in it, and that this is not the authority's answer.
func (s *SotW) nothingKnown() bool {
	if s.held > 0 || s.errorsAlone {
		return false // what is missing is gone; or the client does not take a missing resource as removed
	}
	unknown, missingIsNoAnswer := false, !s.hasSets() && !xdstype.Of(s.typeURL).FullState
	for set := range s.sets() {
		status, err := set.status()
		switch {
		case set.sent, status == cache.Present && set.set.Len() > 0:
			return false
		case status == cache.Failed && s.polls && !err.Transient():
			// A request that is answered once gets no better answer.
		case status != cache.Present, set.set.HasGaps(anyError):
			unknown = true
		}
	}
	for sub := range s.named.all() {
		switch st := sub.state(); {
		case st.Status == cache.Present:
			return false
		case missingIsNoAnswer && s.perceived(sub, st).Status == cache.Absent:
			// A missing name of such a type is no answer; an error is.
		case st.Status == cache.Requested, st.Status == cache.Failed && st.Err.Transient():
			unknown = true
		}
	}
	return unknown
}

// lacksHeld reports that a set may lack something that the client holds from an earlier stream, only because it is
// unavailable or has not come yet.
func (s *SotW) lacksHeld(set *setSub) bool {
	resumed := set.mayHold || s.resumed != "" && s.last.nonce == ""
	return resumed && !set.sent && (set.set.Stale() || set.set.Incomplete() || set.set.HasGaps((*cache.Error).Inconclusive))
}
