package session

import "github.com/xds-relay/xds-relay/cache"

// tell adds to r what there is to tell of a name, and says whether it fitted.
func (d *Delta) tell(r *Response, sub *nameSub) bool {
	st := d.stateOf(sub)
	switch st.Status {
	case cache.Requested:
		return true
	case cache.Present:
		if withheldPart(sub, &st, sub.is(mayHold)) {
			return true
		}
		return d.tellResource(r, sub, &st)
	case cache.Absent:
		if waiting, ok := d.gone[sub.key()]; ok {
			if waiting.by == nil {
				waiting.err = st.Err
				d.gone[sub.key()] = waiting
			}
			return true
		}
		if sub.knowsAbsent(st.Err) {
			return true
		}
		d.gone[sub.key()] = removal{asked: sub.asks(), err: st.Err, was: st.Was}
	case cache.Failed:
		silent := st.Err.Silent && !d.Relay && sub.told() != toldResource && !d.mayHold(sub)
		if !silent && sub.told() == toldFailed && sub.errTold() == markError(st.Err) {
			return true
		}
		if d.waits(r) {
			d.later().addName(sub)
			return true
		}
		if silent {
			if sub.told() != toldAbsent {
				d.gone[sub.key()] = removal{asked: sub.asks()}
			}
			return true
		}
		if !d.tellError(r, sub, st.Err) {
			return false
		}
		sub.setTold(toldFailed)
	}
	return true
}

// tellResource adds to r what is new about a name's resource.
func (d *Delta) tellResource(r *Response, sub *nameSub, st *cache.State) bool {
	res, form := st.Resource, sub.form()
	delete(d.gone, sub.key()) // it is back, before that was told
	if own := d.aliasKey(sub, res); own != "" {
		return d.tellAliased(r, sub, own, st)
	}
	held := d.held(sub, st)
	if held && !d.quiet {
		form |= cache.Heartbeat
	}
	switch {
	case held && !sub.beating(st):
	case !r.fits(res.Size(sub.name(), form), d.Limit):
		return false
	case held:
		r.from(st.Origin)
		r.AddDelta(sub.name(), res, form)
		sub.setBeats(st.Beats)
	default:
		r.from(st.Origin)
		r.AddDelta(sub.name(), res, form)
		r.noteChanged(res)
		d.noteNamed(sub)
		d.toldUnder(r, sub, sub.name(), res)
		d.knows(sub, st)
	}
	if st.Err == nil || sub.errTold() == markError(st.Err) {
		return true
	}
	if d.waits(r) {
		d.later().addName(sub)
		return true
	}
	return d.tellError(r, sub, st.Err)
}

// noteNamed notes that a name is told, which may be in a glob that is yet to be
// answered.
func (d *Delta) noteNamed(sub *nameSub) {
	note := func(set *setSub) {
		if set == nil || !set.fresh {
			return
		}
		if set.named == nil {
			set.named = map[*nameSub]bool{}
		}
		set.named[sub] = true
	}
	note(d.globOf(sub.asks()))
	for _, set := range d.views {
		note(set)
	}
}
