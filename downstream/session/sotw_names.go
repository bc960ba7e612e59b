package session

import (
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// sendResource adds to r what is new about a name's resource, and reports whether it fitted.
func (s *SotW) sendResource(r *Response, sub *nameSub, st *cache.State) bool {
	res, form := st.Resource, sub.form()
	switch {
	case !s.changed(sub, st):
		if sub.heartbeatDue(st) {
			s.heartbeatsDue = append(s.heartbeatsDue, sub)
		}
	case !r.fits(res.Size(sub.name(), form), s.Limit):
		return false
	default:
		r.addSotW(sub.name(), res, form)
		r.noteChanged(res)
		s.knowsResource(sub, st)
		sub.setSentIn(s.sending()) // also if the content is as before
	}
	return s.sendError(r, sub, st.Err)
}

var notFound = &cache.Error{Code: codes.NotFound}

// sendMissing records that a name has no resource, and adds the reason to r unless the client can see it from the
// missing name. It reports whether that fitted.
func (s *SotW) sendMissing(r *Response, sub *nameSub, st cache.State) bool {
	if s.leavesGlobUnanswered(sub) {
		return true
	}
	now := sentAbsent
	switch st.Status {
	case cache.Requested, cache.Present:
		return true
	case cache.Failed:
		now = sentFailed
	case cache.Absent:
	}
	if now == sentAbsent && sub.wasSentAbsent(st.Err) || sub.sent() == now && sub.sentErr() == markError(st.Err) {
		return true
	}
	if sub.sent() != now || st.Err == nil {
		sub.setSentErr(0)
	}
	if st.Err == nil && now == sentAbsent && s.full() {
		// gRFC A88: gRPC's C++ core takes an error for the answer, and waits 30 s for a name that is just missing.
		r.addVariantError(wire.SotWErrors, sub.name(), sub.constraints(), notFound)
	}
	if !s.sendError(r, sub, st.Err) {
		return false
	}
	s.knows(sub, now, 0)
	if now == sentAbsent {
		sub.set(mayHold, false)
	}
	return true
}

// sendError adds to r an error that the client was not sent yet, if there is one, and reports whether it fitted.
func (s *SotW) sendError(r *Response, sub *nameSub, err *cache.Error) bool {
	if err == nil || sub.sentErr() == markError(err) {
		return true
	}
	if !s.full() && !r.fits(sizeError(sub.name(), err), s.Limit) {
		return false
	}
	r.addVariantError(wire.SotWErrors, sub.name(), sub.constraints(), err)
	sub.setSentErr(markError(err))
	return true
}

// heartbeats returns a response with the heartbeats that are due, nil if none is. It has the version that the client
// has, which shows the client that nothing else is in it.
// xDS: "SotW TTL".
func (s *SotW) heartbeats() *Response {
	if len(s.heartbeatsDue) == 0 {
		return nil
	}
	r := &Response{TypeURL: s.typeURL, Version: s.last.version}
	r.expect(len(s.heartbeatsDue))
	for i, sub := range s.heartbeatsDue {
		if sub.is(hasEnded) {
			continue
		}
		st := sub.state()
		if st.Status != cache.Present || s.changed(sub, &st) || !sub.heartbeatDue(&st) {
			continue
		}
		form := sub.form()
		if !s.isEnvoy {
			form |= cache.Heartbeat
		}
		if !r.fits(st.Resource.Size(sub.name(), form), s.Limit) {
			s.heartbeatsDue = s.heartbeatsDue[i:]
			return r
		}
		r.addSotW(sub.name(), st.Resource, form)
		sub.setHeartbeats(st.Heartbeats)
	}
	s.heartbeatsDue = nil
	if r.empty() {
		return nil
	}
	return r
}

// changes returns a response with what is new or changed among the names, for types whose responses need not be the
// full state.
func (s *SotW) changes(may RemovalRule) *Response {
	r, all := s.newResponse(), s.mayRemove(may)
	s.named.shared.sendNews(r)
	r.expect(len(s.pending))
	s.takePending(func(sub *nameSub) bool {
		st := s.perceived(sub, sub.state())
		if withheld(sub, &st, sub.is(mayHold)) {
			return true
		}
		if !all && removed(sub, st) && !sub.goes(may) {
			if !sub.is(isWithheld) {
				sub.set(isWithheld, true)
				s.absent = append(s.absent, sub)
			}
			return true
		}
		if st.Status == cache.Present {
			return s.sendResource(r, sub, &st)
		}
		if st.Status == cache.Absent && st.Err == nil {
			st.Err = notFound
		}
		return s.sendMissing(r, sub, st)
	})
	s.withheld = len(s.absent) > 0
	if r.empty() {
		r.brings.Spared()
		return s.heartbeats()
	}
	if r.Version = s.ofNames(); r.Version == "" {
		r.Version = s.namedVersion("")
	}
	return r
}
