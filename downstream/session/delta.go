package session

import (
	"cmp"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// NewDelta returns the session of a type on a delta stream.
func NewDelta(typeURL string, c *Client) *Delta {
	t := xdstype.Of(typeURL)
	d := &Delta{subscriptions: newSubscriptions(typeURL, c), unreferenced: !t.Referenced, claims: t.Claims}
	d.form, d.Form = d, d.ttlForm(typeURL, false)
	return d
}

// Request processes a client's request, and returns the NACK if it is one.
func (d *Delta) Request(req *discoveryv3.DeltaDiscoveryRequest) *NACK {
	first := !d.begun
	if first {
		d.initial = req.GetInitialResourceVersions()
		d.resumed = len(d.initial) > 0
	}
	add := len(req.GetResourceNamesSubscribe()) + len(req.GetResourceLocatorsSubscribe())
	drop := len(req.GetResourceNamesUnsubscribe()) + len(req.GetResourceLocatorsUnsubscribe())
	// Unsubscribing comes first: a name in both lists is requested again.
	for i, name := range req.GetResourceNamesUnsubscribe() {
		d.unsubscribeOne(refByName(name))
		yieldAfter(i + 1)
	}
	for _, l := range req.GetResourceLocatorsUnsubscribe() {
		d.unsubscribeOne(refByLocator(l))
	}
	if first && d.offered != nil && drop+len(d.initial)+len(req.GetResourceLocatorsSubscribe()) == 0 && d.joinGroup(d.offered, false, nil) {
		d.begun, d.explicit = true, true
		return nil
	}
	d.expect(add)
	for _, name := range req.GetResourceNamesSubscribe() {
		d.subscribeOne(refByName(name))
	}
	for _, l := range req.GetResourceLocatorsSubscribe() {
		d.subscribeOne(refByLocator(l))
	}
	d.slab = nil
	// xDS: "Incremental xDS", "How the client specifies what resources to return": a
	// request without names in either list is a wildcard, as long as there was no
	// subscription.
	if add+drop == 0 && !d.explicit && d.wild == nil {
		d.subscribeWildcard(refByName(cache.Wildcard))
	}
	if first {
		d.resumeGlobs()
	}
	d.explicit = d.explicit || add > 0 || d.wild != nil
	d.begun = true
	if first {
		return nil
	}
	if drop > 0 && d.nacks.any() {
		d.settleRejections(nil, d.unanswered)
	}
	return d.answer(req.GetResponseNonce(), req.GetErrorDetail())
}

// answer processes the client's answer to a response, and returns it if it is a NACK. Several responses may be in
// flight; an answer to none of them is stale.
func (d *Delta) answer(nonce string, detail *statuspb.Status) *NACK {
	at := slices.IndexFunc(d.unanswered, func(r sentResponse) bool { return r.nonce == nonce })
	if at < 0 {
		if detail != nil && d.acked != nil && d.acked.nonce == nonce {
			return d.reject(d.acked, detail)
		}
		return nil
	}
	r := d.unanswered[at]
	if detail != nil {
		d.unanswered[at].answered((*propagation.Delivery).NACKed)
	}
	d.answered(at, detail == nil)
	if detail == nil {
		return nil
	}
	r.brings = nil
	return d.reject(&r, detail)
}

func (d *Delta) subscribeOne(a resourceRef) {
	if a.name == cache.Wildcard && (d.wild == nil || d.wild.set == nil || d.wild.ref == a) {
		if d.begun && d.wild != nil {
			d.resumed = false
			forgetVersions(d.initial)
			forgetVersions(d.wild.initial)
		}
		d.subscribeWildcard(a)
		return
	}
	key := a.key()
	delete(d.removals, key)
	delete(d.refusedGlobs, key)
	d.endReview(a)
	_, resumed := d.initial[a.name]
	held := resumed
	if held && d.begun {
		d.initial[a.name] = "" // the versions were for the first request: see forgetVersions
	}
	if set := d.globs[key]; set != nil {
		forgetVersions(set.initial)
	}
	was := d.named.get(key)
	held = held || was != nil && (was.is(mayHold) || was.sent() == sentResource)
	sub, _ := d.subscribe(a)
	if sub == nil {
		return
	}
	if sub.entry() == nil {
		// The client may hold anything that it listed in the first request from a glob that is refused.
		held = held || d.mayHold(sub) || len(d.initial) > 0 && isGlob(a.name)
	}
	sub.set(mayHold, held)
	if resumed {
		d.resume(sub)
	}
	if (held || sub.deniedGlob()) && sub.entry() == nil && isGlob(a.name) {
		put(&d.refusedGlobs, key, struct{}{}) // the client would take an error alone for an empty answer
	}
}

// forgetVersions clears the versions that the client holds: the client may have forgotten the content, but removed
// resources must still be removed.
func forgetVersions(initial map[string]string) {
	for name := range initial {
		initial[name] = ""
	}
}

// resumeGlobs records what the client holds of its globs from an earlier stream.
func (d *Delta) resumeGlobs() {
	if len(d.byGlob) == 0 {
		return
	}
	for name, version := range d.initial {
		set := d.globOf(refByName(name))
		for params := range d.params {
			if set == nil {
				set = d.globOf(resourceRef{name, true, params})
			}
		}
		if set == nil {
			continue
		}
		put(&set.initial, name, version)
		if d.namedIn(set, name) == nil {
			delete(d.initial, name)
		}
	}
}

func (d *Delta) unsubscribeOne(a resourceRef) {
	key := a.key()
	if a.name == cache.Wildcard {
		if d.wild != nil && d.wild.ref == a {
			d.endWildcard()
		} else {
			d.unsubscribe(key) // a further one, which was refused
		}
		return
	}
	if set := d.globs[key]; set != nil {
		delete(d.removals, key)
		delete(d.refusedGlobs, key)
		held := d.overlapping(set)
		if d.unsubscribeGlob(a) != nil {
			d.deferred.forget("", set, false)
			d.reassign(set, held)
			d.reviewBorrowed()
		}
		return
	}
	name, sub := a.name, d.named.get(key)
	if sub != nil && sub.rare() != nil {
		name = cmp.Or(sub.rare().sentAs, name)
	}
	if !d.unsubscribe(key) {
		return
	}
	delete(d.removals, key)
	delete(d.refusedGlobs, key)
	delete(d.initial, a.name)
	delete(d.borrowed, sub)
	d.deferred.forget(key, nil, false)
	d.reviewName(a.of(name), review{name: name, ended: true, unsubscribed: true})
}

// endWildcard ends the wildcard: the client drops the resources that only the wildcard covers.
func (d *Delta) endWildcard() {
	if d.wild == nil {
		return
	}
	ended, held := d.wild, d.overlapping(d.wild)
	d.unsubscribeWildcard()
	d.deferred.forget("", ended, false)
	d.reassign(ended, held)
	d.reviewBorrowed()
	maps.DeleteFunc(d.removals, func(key string, g removal) bool { return !d.wants(key, g) })
	maps.DeleteFunc(d.initial, func(name, _ string) bool { return d.named.get(name) == nil })
	d.resumed = len(d.initial) > 0
}

// Adding reports that there may be something new or changed to send, though perhaps not now.
func (d *Delta) Adding() bool {
	return len(d.pending)+len(d.pendingSets)+len(d.reviewable) > 0 || d.named.shared.behind() || !d.deferred.empty() && !d.hasOpenSet()
}

// Pending counts what is kept to be sent. It could grow with a client that does not read.
func (d *Delta) Pending() int {
	return len(d.pending) + len(d.removals) + d.reviewing + len(d.initial)
}

// Unsubscribed counts the names from which the client has unsubscribed and for which it has to get an answer.
func (d *Delta) Unsubscribed() int { return d.unsubscribed }

// AwaitsACK reports that new state can be sent only after the client has answered. Types that come later in the order
// wait for that, too.
func (d *Delta) AwaitsACK() bool { return false }

// Stale is false: in delta, a request counts whatever its nonce is.
func (d *Delta) Stale() (sent uint32, is bool) { return 0, false }

// StartOver has nothing to do.
func (d *Delta) StartOver(string) {}

// Additions returns the next response with what is new or changed, nil if there is none. The last one also has the
// removals that it may carry. If nothing refers to resources of the type, the first one has all removals: what is new
// may need what a removed resource occupies, such as a Listener's address, and clients apply removals first.
func (d *Delta) Additions(may RemovalRule) *Response {
	r := d.newResponse()
	room := 0 // for the removals
	if d.unreferenced {
		d.findRemovals(r)
		room = d.roomForRemovals()
		r.size += room
	}
	d.named.shared.sendNews(r)
	r.expect(len(d.pending))
	fresh := d.wild != nil && d.wild.fresh
	d.defers = d.hasOpenSet()
	sendName := func(sub *nameSub) bool { return d.sendName(r, sub) }
	d.takePending(sendName)
	if len(d.pending) == 0 {
		d.takePendingSets(func(set *setSub) bool { return d.sendSet(r, set) })
		if len(d.pendingSets) == 0 {
			d.takePending(sendName) // borrowed names whose set has lost the resource
			d.sendReviewed(r)
			d.sendDeferred(r)
		}
	}
	r.size -= room
	switch {
	case d.unreferenced && r.Count > 0:
		// A resource that is larger than the limit goes alone, but not without the removals.
		d.sendRemovals(r, RemoveAll, max(d.Limit, r.size+room+responseOverhead+len(r.TypeURL)))
	case may != RemoveNone && !d.Adding():
		d.sendRemovals(r, may, d.Limit)
	}
	// A new wildcard is answered even if it has no members.
	answered := fresh && !d.wild.fresh && !d.resumed
	if r.empty() && !answered && !d.mustConfirm() {
		r.brings.Spared()
		return nil
	}
	r.Version = r.systemVersion()
	return r
}

// Removals returns a response with removals only, nil if there are none.
func (d *Delta) Removals(may RemovalRule) *Response {
	r := d.newResponse()
	d.sendRemovals(r, may, d.Limit)
	if r.empty() {
		return nil
	}
	r.Version = r.systemVersion()
	return r
}

// InFlight returns how many responses the client has not answered, as far as they are remembered, and when the first of
// them was sent.
func (d *Delta) InFlight() (n int, first uint32) {
	if n = len(d.unanswered); n > 0 {
		first = d.unanswered[0].at
	}
	return n, first
}

// Sent records that r goes to the client as its newest response.
func (d *Delta) Sent(r *Response) {
	d.resumed = false
	d.bring(r, d.Adding() || d.Removing())
	if len(d.unanswered) == maxUnanswered {
		notACKed(d.unanswered[:1])
		d.unanswered = slices.Delete(d.unanswered, 0, 1)
	}
	if d.unanswered == nil {
		d.unanswered = d.one[:0]
	}
	d.unanswered = append(d.unanswered, d.sent(r))
}

// Resend has a name's resource sent again, though the client has it, also from an earlier stream.
func (d *Delta) Resend(name string) {
	if _, held := d.initial[name]; held {
		d.initial[name] = "" // see forgetVersions
	}
	if d.named.shared.holdsNothing(name) {
		return
	}
	for sub := range d.subsOf(name) {
		sub.keep()
		if sub.sent() == sentResource {
			sub.Note = ofNoContent // still held: its removal may have to wait
			sub.MoveToPending()
		}
	}
}

// FastACK processes a request in which nothing but the nonce is new, and reports whether it did. asks is a hash over
// what the request asks for.
func (d *Delta) FastACK(nonce []byte, _ uint64) bool {
	if len(nonce) == 0 || !d.explicit {
		return false
	}
	at := slices.IndexFunc(d.unanswered, func(r sentResponse) bool { return r.nonce == string(nonce) })
	d.answered(at, true)
	return true
}

// answered records that the client has answered one of the responses, and with it the earlier ones. acked: the answer is
// an ACK.
func (d *Delta) answered(at int, acked bool) {
	if at < 0 {
		return
	}
	if acked && d.nacks.any() {
		d.settleRejections(d.unanswered[:at+1], d.unanswered[at+1:])
	}
	allACKed(d.unanswered[:at+1])
	d.settled = d.unanswered[at].number
	if d.Relay {
		last := d.unanswered[at]
		d.acked = &last
	}
	d.unanswered = slices.Delete(d.unanswered, 0, at+1)
}

// RecordRequest records a request that FastACK did not process.
func (d *Delta) RecordRequest([]byte, uint64) {}

// sendDeferred adds to r what was deferred, if it need not wait any longer.
func (d *Delta) sendDeferred(r *Response) {
	if d.deferred.empty() || !r.substantial && d.hasOpenSet() {
		return
	}
	u := d.deferred
	d.deferred, d.defers = nil, false
	for _, key := range slices.Sorted(maps.Keys(u.names)) {
		if sub := d.named.get(key); sub != nil && !d.sendName(r, sub) {
			sub.MoveToPending()
		}
	}
	for set := range u.sets {
		if status, err := set.status(); !set.ended && status == cache.Failed && !d.sendSetError(r, set, err) {
			set.MoveToPending()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(u.members)) {
		if err := u.members[name]; r.fits(sizeError(name, err), d.Limit) {
			r.addError(wire.DeltaErrors, name, err)
		} else {
			d.deferLater().addMember(name, err)
		}
	}
}

// inFlight iterates over the responses that the client has not answered, as far as they are remembered.
func (d *Delta) inFlight(yield func(*sentResponse) bool) {
	for i := range d.unanswered {
		if !yield(&d.unanswered[i]) {
			return
		}
	}
}

// Spare records that there is nothing to send now.
func (d *Delta) Spare() { d.spare(d.Adding() || d.Removing()) }

// Close ends all subscriptions.
func (d *Delta) Close() {
	d.subscriptions.Close()
	d.owed.Take().Spared()
	allLost(d.unanswered)
}
