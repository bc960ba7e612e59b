package downstream

import (
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// maxUnanswered bounds the responses of which a session remembers what they
// carried, to explain a NACK.
const maxUnanswered = 16

// deltaSession is the state of one type URL on a delta stream.
// xDS: "Incremental xDS".
type deltaSession struct {
	subscriptions
	begun   bool // a request has been taken
	resumed bool // the client holds something from an earlier stream
	// initial are the versions that the client holds from an earlier stream, of
	// what it has not been told yet. xDS: "initial_resource_versions".
	initial map[string]string
	// gone are names to be told as removed, with the reason if there is one. A
	// name that comes back before that leaves it.
	gone map[string]*cache.Error
	// uncovered are names whose subscription ended while the wildcard may cover
	// them, until that is answered. xDS: "Unsubscribing from Resources".
	uncovered map[string]struct{}
	// unanswered are the newest responses that the client has not answered.
	unanswered []sentResponse
}

func newDeltaSession(s subscriptions) *deltaSession {
	return &deltaSession{subscriptions: s, gone: map[string]*cache.Error{}, uncovered: map[string]struct{}{}}
}

// request takes a client's request, and returns the NACK if it is one.
func (d *deltaSession) request(req *discoveryv3.DeltaDiscoveryRequest) *nack {
	first := !d.begun
	if first {
		d.initial = req.GetInitialResourceVersions()
		d.resumed = len(d.initial) > 0
	}
	// Unsubscribing first: a name that is in both lists is asked for anew.
	for _, name := range req.GetResourceNamesUnsubscribe() {
		d.unsubscribeOne(name)
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		d.subscribeOne(name)
	}
	// xDS: "Incremental xDS": a first request without names in either list is a
	// wildcard.
	if first && len(req.GetResourceNamesSubscribe())+len(req.GetResourceNamesUnsubscribe()) == 0 {
		d.subscribeWildcard()
	}
	d.begun = true
	if first {
		return nil
	}
	return d.answer(req.GetResponseNonce(), req.GetErrorDetail())
}

// answer takes the client's answer to a response, and returns it if it is a NACK.
// Several may be on their way; one that answers nothing of those is stale.
func (d *deltaSession) answer(nonce string, detail *statuspb.Status) *nack {
	at := slices.IndexFunc(d.unanswered, func(r sentResponse) bool { return r.nonce == nonce })
	if at < 0 {
		return nil
	}
	r := d.unanswered[at]
	d.unanswered = slices.Delete(d.unanswered, 0, at+1)
	if detail == nil {
		return nil
	}
	return d.reject(&r, detail)
}

func (d *deltaSession) subscribeOne(name string) {
	if name == cache.Wildcard {
		if d.begun && d.wild != nil {
			d.forgetInitial()
		}
		d.subscribeWildcard()
		return
	}
	delete(d.gone, name)
	delete(d.uncovered, name)
	if d.begun && d.named[name] != nil {
		delete(d.initial, name) // it may have forgotten that too
	}
	d.subscribe(name)
}

// forgetInitial makes all that the client holds of another version than it is:
// it may have forgotten the content, and what is gone must still be removed.
func (d *deltaSession) forgetInitial() {
	d.resumed = false
	for name := range d.initial {
		d.initial[name] = ""
	}
}

func (d *deltaSession) unsubscribeOne(name string) {
	if name == cache.Wildcard {
		d.endWildcard()
		return
	}
	if !d.unsubscribe(name) {
		return
	}
	delete(d.gone, name)
	delete(d.initial, name)
	if d.wild != nil {
		d.uncovered[name] = struct{}{}
	}
}

// endWildcard ends the wildcard: what the client has only by it, it drops.
func (d *deltaSession) endWildcard() {
	if d.wild == nil {
		return
	}
	d.unsubscribeWildcard()
	clear(d.uncovered)
	maps.DeleteFunc(d.gone, func(name string, _ *cache.Error) bool { return d.named[name] == nil })
	maps.DeleteFunc(d.initial, func(name, _ string) bool { return d.named[name] == nil })
	d.resumed = len(d.initial) > 0
}

func (d *deltaSession) adding() bool {
	return len(d.pending) > 0 || d.wild != nil && d.wild.pending || len(d.uncovered) > 0 && d.covers()
}

// covers says that there is a wildcard, and that it is known what it gives.
func (d *deltaSession) covers() bool {
	if d.wild == nil {
		return false
	}
	status, _ := d.wild.status()
	return status == cache.Present
}

func (d *deltaSession) untold() int {
	return len(d.pending) + len(d.gone) + len(d.uncovered) + len(d.initial)
}

func (d *deltaSession) removing() bool { return len(d.gone) > 0 }

func (d *deltaSession) catchingUp() bool { return false }

// additions returns the next response of what is new or changed, nil if there is
// none. With all, the response may carry the removals too, if it is the last.
func (d *deltaSession) additions(all bool) *response {
	r := &response{typeURL: d.typeURL}
	fresh := false
	d.takePending(func(sub *nameSub) bool { return d.tell(r, sub) })
	if len(d.pending) == 0 && d.wild != nil && d.wild.pending {
		fresh = d.wild.fresh
		d.tellWildcard(r)
	}
	if len(d.pending) == 0 && (d.wild == nil || !d.wild.pending) {
		d.tellUncovered(r)
		if all {
			d.tellGone(r)
		}
	}
	// A new wildcard is answered also if it gives nothing, unless the client is
	// known to hold what there is.
	answered := fresh && !d.wild.fresh && !d.resumed
	if r.empty() && !answered {
		return nil
	}
	return r
}

// removals returns a response with what is gone, nil if nothing is.
func (d *deltaSession) removals() *response {
	r := &response{typeURL: d.typeURL}
	d.tellGone(r)
	if r.empty() {
		return nil
	}
	return r
}

// tell adds to r what there is to tell of a name, and says whether it fitted.
func (d *deltaSession) tell(r *response, sub *nameSub) bool {
	st := sub.state()
	switch st.Status {
	case cache.Requested:
		return true
	case cache.Present:
		if d.held(sub, st.Resource) {
			return true
		}
		if !r.fits(st.Resource.Size()+2*len(sub.name), d.limit) {
			return false
		}
		r.addDelta(sub.name, st.Resource)
		r.noteChanged(st.Resource)
		d.knows(sub, st.Resource)
	case cache.Absent:
		_, waiting := d.gone[sub.name]
		if waiting || sub.told == toldAbsent {
			return true
		}
		d.gone[sub.name] = st.Err
	case cache.Failed:
		if sub.told == toldFailed {
			return true
		}
		if !d.tellError(r, sub.name, st.Err) {
			return false
		}
		sub.told = toldFailed
	}
	return true
}

// tellError adds to r why a name cannot be given, and says whether it fitted.
func (d *deltaSession) tellError(r *response, name string, err *cache.Error) bool {
	if !r.fits(sizeError(name, err), d.limit) {
		return false
	}
	r.addError(fieldDeltaErrors, name, err)
	return true
}

// held says whether the client has that content already.
func (d *deltaSession) held(sub *nameSub, res *cache.Resource) bool {
	version, ok := d.initial[sub.name]
	if sub.told == toldResource && sub.hash == res.Hash() || ok && version == res.Version() {
		d.knows(sub, res)
		return true
	}
	return false
}

// knows notes that the client has that content.
func (d *deltaSession) knows(sub *nameSub, res *cache.Resource) {
	sub.told, sub.hash = toldResource, res.Hash()
	delete(d.gone, sub.name)
	delete(d.initial, sub.name)
}

// tellWildcard adds to r what has changed in the wildcard.
func (d *deltaSession) tellWildcard(r *response) {
	w := d.wild
	switch status, err := w.status(); status {
	case cache.Requested, cache.Absent:
		w.pending = false
		return
	case cache.Failed:
		w.errTold = w.errTold || d.tellError(r, cache.Wildcard, err)
		w.pending = !w.errTold
		return
	}
	all := w.set.Since(&w.SetWatch, func(name string, res *cache.Resource) bool {
		return d.tellMember(r, name, res)
	})
	if !all {
		return
	}
	w.pending = false
	if w.fresh {
		w.fresh = false
		// What the client holds and the wildcard does not have is gone.
		for name := range d.initial {
			if d.named[name] == nil && w.set.Member(name) == nil && !w.set.Failed(name) {
				d.gone[name] = nil
				delete(d.initial, name)
			}
		}
	}
}

// tellMember adds to r one change of the wildcard, and says whether it fitted.
func (d *deltaSession) tellMember(r *response, name string, res *cache.Resource) bool {
	sub := d.named[name]
	if sub != nil && sub.known() {
		return true // its own entry tells
	}
	if res == nil {
		d.gone[name] = nil
		return true
	}
	if sub != nil && d.held(sub, res) {
		return true
	}
	if version, ok := d.initial[name]; ok && d.wild.fresh && version == res.Version() {
		delete(d.initial, name)
		return true
	}
	if !r.fits(res.Size(), d.limit) {
		return false
	}
	r.addDelta(name, res)
	r.noteChanged(res)
	delete(d.gone, name)
	delete(d.initial, name)
	delete(d.uncovered, name)
	if sub != nil {
		d.knows(sub, res)
	}
	return true
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
			d.gone[name] = nil
		case r.fits(res.Size(), d.limit):
			r.addDelta(name, res)
		default:
			return
		}
		delete(d.uncovered, name)
	}
}

func (d *deltaSession) tellGone(r *response) {
	if len(d.gone) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.gone)) {
		size, err := len(name)+5, d.gone[name]
		if err != nil {
			size += sizeError(name, err)
		}
		if !r.fits(size, d.limit) {
			return
		}
		r.addRemoved(name)
		// To a client that reads it, NOT_FOUND means a removal too.
		if err != nil {
			r.addError(fieldDeltaErrors, name, err)
		}
		delete(d.gone, name)
		delete(d.initial, name)
		if sub := d.named[name]; sub != nil {
			sub.told = toldAbsent
		}
	}
}

// sent notes that r goes to the client as its newest response.
func (d *deltaSession) sent(r *response) {
	if len(d.unanswered) == maxUnanswered {
		d.unanswered = slices.Delete(d.unanswered, 0, 1)
	}
	d.unanswered = append(d.unanswered, sentResponse{nonce: r.nonce, names: r.names})
}

// resend has a name's resource sent again, though the client was told it.
func (d *deltaSession) resend(name string) {
	if sub := d.named[name]; sub != nil && sub.told == toldResource {
		sub.told = toldNothing
		sub.moveToPending()
	}
}
