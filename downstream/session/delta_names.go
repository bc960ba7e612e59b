package session

import "github.com/xds-relay/xds-relay/cache"

// sendName adds to r what is new about a name, and reports whether it fitted.
func (d *Delta) sendName(r *Response, sub *nameSub) bool {
	if sub.deniedGlob() && !d.errorsAlone {
		return true
	}
	st := d.stateOf(sub)
	switch st.Status {
	case cache.Requested:
		return true
	case cache.Present:
		if withheld(sub, &st, sub.is(mayHold)) {
			return true
		}
		return d.sendResource(r, sub, &st)
	case cache.Absent:
		if waiting, ok := d.removals[sub.key()]; ok {
			if waiting.by == nil {
				waiting.err = st.Err
				put(&d.removals, sub.key(), waiting)
			}
			return true
		}
		if sub.wasSentAbsent(st.Err) {
			return true
		}
		put(&d.removals, sub.key(), removal{ref: sub.ref(), err: st.Err, was: st.Previous})
	case cache.Failed:
		silent := st.Err.Unanswered && !d.Relay && sub.sent() != sentResource && !d.mayHold(sub)
		if !silent && sub.sent() == sentFailed && sub.sentErr() == markError(st.Err) {
			return true
		}
		if d.mustDefer(r) {
			put(&d.deferLater().names, sub.key(), struct{}{})
			return true
		}
		if silent {
			if sub.sent() != sentAbsent && !d.timesOut(sub) {
				put(&d.removals, sub.key(), removal{ref: sub.ref()})
			}
			return true
		}
		if !d.sendError(r, sub, st.Err) {
			return false
		}
		sub.setSent(sentFailed)
	}
	return true
}

// sendResource adds to r what is new about a name's resource.
func (d *Delta) sendResource(r *Response, sub *nameSub, st *cache.State) bool {
	res, form := st.Resource, sub.form()
	delete(d.removals, sub.key()) // it is back, before the removal was sent
	if own := d.aliasKey(sub, res); own != "" {
		return d.sendAliased(r, sub, own, st)
	}
	held := d.held(sub, st)
	if held && !d.defers {
		form |= cache.Heartbeat
	}
	switch {
	case held && !sub.heartbeatDue(st):
	case !r.fits(res.Size(sub.name(), form), d.Limit):
		return false
	case held:
		r.from(st.Origin)
		r.addDelta(sub.name(), res, form)
		sub.setHeartbeats(st.Heartbeats)
	default:
		r.from(st.Origin)
		r.addDelta(sub.name(), res, form)
		r.noteChanged(res)
		d.noteSentByName(sub)
		d.sentUnder(r, sub, sub.name(), res)
		d.knows(sub, st)
		sub.setSentIn(d.sending()) // also if the content is as before
	}
	if st.Err == nil || sub.sentErr() == markError(st.Err) {
		return true
	}
	if d.mustDefer(r) {
		put(&d.deferLater().names, sub.key(), struct{}{})
		return true
	}
	return d.sendError(r, sub, st.Err)
}

// noteSentByName records that a name is sent that may be in a glob that has not been answered yet.
func (d *Delta) noteSentByName(sub *nameSub) {
	note := func(set *setSub) {
		if set == nil || !set.fresh {
			return
		}
		put(&set.sentByName, sub, true)
	}
	note(d.globOf(sub.ref()))
	for _, set := range d.views {
		note(set)
	}
}
