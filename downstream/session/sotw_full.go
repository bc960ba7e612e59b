package session

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// Responses that are the full state of a client's subscriptions.
// xDS: "Grouping Resources into Responses".

// fullState returns a response with everything that the client subscribes to. It returns nil if the client was sent
// that last, or if not all of it is known. Unless all is set, removed resources are still in the response, with their
// last content as far as it is known, and their removal is withheld. If nothing refers to resources of the type, removals
// are withheld only as long as nothing else has changed.
func (s *SotW) fullState(all bool) *Response {
	s.replaceKept()
	if !s.known() || s.nothingKnown() || s.Settles && s.hasMovedSets() {
		return nil
	}
	changes, removals, beats, renewed := s.due()
	if !s.hasSets() && s.named.len() == 0 {
		s.withheld, s.leftIn = false, false
		return nil // the client wants nothing, and has dropped what it held
	}
	s.withheld = removals && !all && !(changes && s.unreferenced)
	onlyBeats := !changes && (!removals || s.withheld)
	if onlyBeats && !beats {
		return nil
	}
	s.leftIn = s.withheld && s.hasSets()
	r := s.newResponse()
	r.expect(s.named.len())
	var version string
	var same, missing commonVersion
	var form cache.Form
	if onlyBeats && !s.isEnvoy {
		form = cache.Heartbeat
	}
	if s.hasSets() {
		sets := s.setStates(r, form)
		version, same = sets.version, sets.same
		s.content = sets.content()
		// xDS: "ACK/NACK and resource type instance version": the version that a client states on a new stream is what
		// it has, if the version identifies the content.
		has := s.hasState && sets.hash == s.state // the content has changed, and changed back
		if sets.fresh {
			has = s.last.nonce == "" && s.content == s.resumed
		}
		s.state, s.hasState = sets.hash, s.named.len() == 0 && r.empty()
		if has && s.hasState && !onlyBeats && !renewed && r.empty() {
			s.dropSpans()
			return nil
		}
		for _, full := range sets.full {
			r.addFull(full)
		}
		for set := range s.sets() {
			if set.HasApart() {
				set.MoveToPending() // the next full state has what this one has not
			}
		}
	}
	for sub := range s.named.all() {
		s.sendInFullState(r, sub, form|sub.form(), &same, &missing)
	}
	s.withheld = s.leftIn
	if same == (commonVersion{}) {
		same = missing // all that is known is that there is nothing
	}
	switch origin := same.version(); {
	case onlyBeats:
		version = s.last.version
	case origin != "":
		version = origin
	case s.named.len() > 0 || version == "":
		version = s.namedVersion(version)
	}
	r.Version = version
	return r
}

// replaceKept lets the sets give what they have in place of what the client keeps of refused names.
func (s *SotW) replaceKept() {
	if s.trouble == nil || s.trouble.refused == 0 {
		return
	}
	for sub := range s.named.all() {
		if (sub.sent() == sentResource || sub.is(mayHold)) && s.isReplaced(sub) {
			sub.takeFromSet()
			s.knows(sub, sentNothing, 0)
			sub.set(mayHold, false)
			sub.MoveToPending()
		}
	}
}

// isReplaced reports that a name is refused, and that a set has a resource under it.
func (s *SotW) isReplaced(sub *nameSub) bool {
	res, by := s.replacement(sub)
	return res != nil && (!urn.IsXdstp(sub.name()) || by.set.names(res, sub.name()))
}

// due reports what of a full state the client has not been sent. renewed: some of the changes have the content that the
// client has refused.
func (s *SotW) due() (changes, removals, beats, renewed bool) {
	for set := range s.sets() {
		if status, _ := set.status(); status != cache.Present {
			changes = changes || !set.errSent // see known
			continue
		}
		c, r, b := set.set.Pending(&set.SetWatch, s.Form)
		renewed = renewed || s.renewedIn(set)
		changes, removals, beats = changes || c || renewed || set.fresh || set.moved, removals || r, beats || b
	}
	s.takePendingSets(func(*setSub) bool { return true })
	removals = removals || s.leftIn
	if s.withheld {
		for sub := range s.named.all() {
			removals = removals || removed(sub, s.inFull(sub))
		}
	}
	s.takePending(func(sub *nameSub) bool {
		st := s.inFull(sub)
		switch {
		case s.leavesGlobUnanswered(sub):
			// It is not answered, so there is nothing new.
		case sub.sent() == sentNothing && sub.state().Status == cache.Requested:
			// It counts as answered when its own state is known, even if a set gives it.
		case removed(sub, st):
			removals = true
		default:
			changes = changes || s.differs(sub, &st)
			beats = beats || st.Status == cache.Present && sub.heartbeatDue(&st)
		}
		return true
	})
	return changes, removals, beats, renewed
}

// sendInFullState adds to r what a full state has of a name. It adds the origin's version to there if the name has a
// resource, or to missing if the resource does not exist.
func (s *SotW) sendInFullState(r *Response, sub *nameSub, form cache.Form, there, missing *commonVersion) {
	st := s.inFull(sub)
	switch {
	case st.Status == cache.Present:
	case s.withheld && removed(sub, st) && sub.is(isCovered):
		return // the set's part has it with its last content
	case s.withheld && removed(sub, st) && st.Previous != nil:
		s.leftIn = true
		st.Resource, st.Origin, st.Err = st.Previous, nil, nil // the reason goes with the removal
	default:
		if st.Status == cache.Absent {
			missing.add(st.Origin)
		}
		sub.set(isMissed, st.Status == cache.Requested)
		if st.Status == cache.Absent && s.isReplaced(sub) { // not both in one response
			s.knows(sub, sentAbsent, 0)
			sub.setSentErr(markError(st.Err))
			return
		}
		if removed(sub, st) {
			r.noteGone(st.Previous)
		}
		s.sendMissing(r, sub, st)
		return
	}
	sub.set(isMissed, false)
	isNew := sub.sent() != sentResource || sub.Note != s.mark(st.Resource) || sub.renewed(&st)
	if isNew {
		r.noteChanged(st.Resource)
	}
	there.add(st.Origin)
	s.knowsResource(sub, &st)
	s.sendError(r, sub, st.Err)
	sub.set(mayHold, false)
	if sub.is(isCovered) && s.hasSets() {
		return
	}
	names := r.Names.First
	r.addSotW(sub.name(), st.Resource, form)
	if !isNew {
		r.Names.First = names
		r.unchanged++
	}
}

// differs reports whether the client would notice a name's state.
func (s *SotW) differs(sub *nameSub, st *cache.State) bool {
	switch st.Status {
	case cache.Present:
		return s.changed(sub, st) || st.Err != nil && sub.sentErr() != markError(st.Err)
	case cache.Absent:
		if sub.is(isMissed) && st.Err == nil {
			s.knows(sub, sentAbsent, 0) // in that state it was missing
		}
		return !sub.wasSentAbsent(st.Err)
	case cache.Failed:
		return sub.sent() != sentFailed || sub.sentErr() != markError(st.Err)
	}
	return false
}

// known reports whether a full state can be sent. A client deletes what it holds and the state does not have. So
// nothing that the client holds may be missing only because it is not known yet, or is unavailable. A name that is new
// to the client may be missing: the response may have been sent before the request came, and clients wait for what they
// never had. xDS: "Knowing When a Requested Resource Does Not Exist".
func (s *SotW) known() bool {
	for set := range s.sets() {
		if !s.setKnown(set) {
			return false
		}
	}
	if s.onlyDenies() {
		return false
	}
	for sub := range s.named.all() {
		if !sub.is(mayHold) && sub.sent() != sentResource {
			continue
		}
		switch st := s.inFull(sub); st.Status {
		case cache.Requested:
			return false
		case cache.Failed:
			// What the authority itself reports about a name is sent as an error, with a state that does not have the
			// name.
			if st.Err.Inconclusive() && !s.sentErrorAsRelay(sub) {
				return false
			}
		case cache.Present:
			if withheld(sub, &st, sub.is(mayHold)) {
				return false
			}
		case cache.Absent:
		}
	}
	return true
}
