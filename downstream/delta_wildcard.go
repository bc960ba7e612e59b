package downstream

import (
	"maps"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
)

// What a delta client is told of its wildcard.

// tellWildcard adds to r what has changed in the wildcard.
func (d *deltaSession) tellWildcard(r *response) {
	w := d.wild
	switch status, err := w.status(); status {
	case cache.Requested, cache.Absent:
		w.pending = false
		return
	case cache.Failed:
		if !w.errTold && r.fits(sizeError(cache.Wildcard, err), d.limit) {
			r.addError(fieldDeltaErrors, cache.Wildcard, err)
			w.errTold = true
		}
		w.pending = !w.errTold
		return
	}
	all := w.set.Since(&w.SetWatch, func(m cache.Member) bool { return d.tellMember(r, m) })
	if !all {
		return
	}
	w.pending = false
	if w.fresh {
		w.fresh = false
		// What the client holds and the wildcard does not have is gone.
		for name := range d.initial {
			if d.covering(name) == nil && w.set.Member(name) == nil && !w.set.Failed(name) {
				d.gone[name] = removal{}
				delete(d.initial, name)
			}
		}
	}
}

// tellMember adds to r what is new about a member of the wildcard, and says whether
// it fitted.
func (d *deltaSession) tellMember(r *response, m cache.Member) bool {
	sub := d.covering(m.Name)
	if sub != nil {
		m.Err = nil
	}
	form, size := d.wildForm(), 0
	switch {
	case sub != nil && sub.known():
		return true // its own entry tells
	case m.News == cache.Removed:
		d.gone[m.Name] = removal{was: m.Resource}
		return true
	case m.News == cache.Alive:
		form |= cache.Heartbeat
	}
	if m.News != cache.Changed && form&cache.WithTTL == 0 || d.holds(sub, m) {
		m.News = cache.Nothing
	}
	if m.News != cache.Nothing {
		size = m.Resource.Size(m.Name, form)
	}
	if m.Err != nil {
		size += sizeError(m.Name, m.Err)
	}
	if !r.fits(size, d.limit) {
		return false
	}
	if m.News != cache.Nothing {
		r.addDelta(m.Name, m.Resource, form)
	}
	if m.Err != nil {
		r.addError(fieldDeltaErrors, m.Name, m.Err)
	}
	if m.News == cache.Changed {
		r.noteChanged(m.Resource)
		delete(d.gone, m.Name)
		delete(d.uncovered, m.Name)
		if sub != nil {
			d.knows(sub, &cache.State{Resource: m.Resource})
		}
	}
	delete(d.initial, m.Name)
	return true
}

// holds says whether the client has a member's content already.
func (d *deltaSession) holds(sub *nameSub, m cache.Member) bool {
	if m.News != cache.Changed {
		return false
	}
	if sub != nil {
		return d.held(sub, &cache.State{Status: cache.Present, Resource: m.Resource})
	}
	version, ok := d.initial[m.Name]
	return ok && d.wild.fresh && version == m.Resource.Version()
}

// tellUncovered answers the names that ended while a wildcard goes on: with the
// resource if the wildcard has it, otherwise with its removal.
func (d *deltaSession) tellUncovered(r *response) {
	if len(d.uncovered) == 0 || !d.covers() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.uncovered)) {
		res := d.wild.set.Member(name)
		switch {
		case res == nil:
			d.gone[name] = removal{}
		case r.fits(res.Size(name, d.wildForm()), d.limit):
			r.addDelta(name, res, d.wildForm())
		default:
			return
		}
		delete(d.uncovered, name)
	}
}
