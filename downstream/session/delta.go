package session

import (
	"cmp"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// maxUnanswered bounds the responses of which a session remembers what they
// carried, to explain a NACK.
const maxUnanswered = 16

// Delta is the state of one type URL on a delta stream.
// xDS: "Incremental xDS".
type Delta struct {
	subscriptions
	begun bool // a request has been taken
	// explicit: there was a subscription, so that no names do not mean the wildcard.
	explicit bool
	resumed  bool // the client holds something from an earlier stream
	// initial are the versions that the client holds from an earlier stream, of
	// what it has not been told yet. xDS: "initial_resource_versions".
	initial map[string]string
	// gone is what is to be told as removed, by the keys under which it is, or would
	// be, subscribed to. What comes back before that leaves it.
	gone map[string]removal
	// uncovered counts the names in setSub.uncovered, and loose are the sets with
	// those that can be told.
	uncovered int
	loose     []*setSub
	// unsaid waits, and quiet says in which responses: see silence.go.
	unsaid *unsaid
	quiet  bool
	// refusedGlobs are the keys of globs that the relay refuses, and of which the client may
	// hold members: they have no answer.
	refusedGlobs map[string]struct{}
	// handed are what the client has by a name that stands for something else now, while
	// another name gives it, and their constraints.
	handed map[asked]string
	// lent are the names that are absent, and of which the client has what a set gives.
	lent map[*nameSub]struct{}
	// unanswered are the newest responses that the client has not answered.
	unanswered []sentResponse
}

// removal is something to be told as removed.
type removal struct {
	asked asked
	by    *setSub         // the set that it was in, if that is why
	err   *cache.Error    // the reason, if there is one
	was   *cache.Resource // what the client held, if it is known
	// constraints are its constraints, if nothing else of it is known.
	constraints string
}

// NewDelta returns that of a type.
func NewDelta(typeURL string, c *Client) *Delta {
	d := &Delta{subscriptions: newSubscriptions(typeURL, c), gone: map[string]removal{}}
	d.leave = d.hold
	return d
}

// Request takes a client's request, and returns the NACK if it is one.
func (d *Delta) Request(req *discoveryv3.DeltaDiscoveryRequest) *NACK {
	first := !d.begun
	if first {
		d.initial = req.GetInitialResourceVersions()
		d.resumed = len(d.initial) > 0
	}
	add := len(req.GetResourceNamesSubscribe()) + len(req.GetResourceLocatorsSubscribe())
	drop := len(req.GetResourceNamesUnsubscribe()) + len(req.GetResourceLocatorsUnsubscribe())
	// Unsubscribing first: a name that is in both lists is asked for anew.
	for _, name := range req.GetResourceNamesUnsubscribe() {
		d.unsubscribeOne(byName(name))
	}
	for _, l := range req.GetResourceLocatorsUnsubscribe() {
		d.unsubscribeOne(byLocator(l))
	}
	if first && d.offered != nil && drop+len(d.initial)+len(req.GetResourceLocatorsSubscribe()) == 0 && d.joinGroup(d.offered, false) {
		d.begun, d.explicit = true, true
		return nil
	}
	d.expect(add)
	for _, name := range req.GetResourceNamesSubscribe() {
		d.subscribeOne(byName(name))
	}
	for _, l := range req.GetResourceLocatorsSubscribe() {
		d.subscribeOne(byLocator(l))
	}
	d.slab = nil
	// xDS: "Incremental xDS", "How the client specifies what resources to return": a
	// request without names in either list is a wildcard, as long as there was no
	// subscription.
	if add+drop == 0 && !d.explicit && d.wild == nil {
		d.subscribeWildcard(byName(cache.Wildcard))
	}
	if first {
		d.resumeGlobs()
	}
	d.explicit = d.explicit || add > 0 || d.wild != nil
	d.begun = true
	if first {
		return nil
	}
	return d.answer(req.GetResponseNonce(), req.GetErrorDetail())
}

// answer takes the client's answer to a response, and returns it if it is a NACK.
// Several may be on their way; one that answers nothing of those is stale.
func (d *Delta) answer(nonce string, detail *statuspb.Status) *NACK {
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

func (d *Delta) subscribeOne(a asked) {
	if a.name == cache.Wildcard {
		if d.begun && d.wild != nil {
			d.resumed = false
			forgetVersions(d.initial)
			forgetVersions(d.wild.initial)
		}
		d.subscribeWildcard(a)
		return
	}
	key := a.key()
	delete(d.gone, key)
	delete(d.refusedGlobs, key)
	d.settle(a)
	_, resumed := d.initial[a.name]
	held := resumed
	if held && d.begun {
		d.initial[a.name] = "" // the versions were for the first request: see forgetVersions
	}
	if set := d.globs[key]; set != nil {
		forgetVersions(set.initial)
	}
	was := d.named.get(key)
	held = held || was != nil && (was.is(mayHold) || was.told() == toldResource)
	sub, _ := d.subscribe(a)
	if sub == nil {
		return
	}
	if sub.entry() == nil {
		// Of a glob that is refused the client may hold any of what it named.
		held = held || d.mayHold(sub) || len(d.initial) > 0 && isGlob(a.name)
	}
	sub.set(mayHold, held)
	if resumed {
		d.resume(sub)
	}
	if held && sub.entry() == nil && isGlob(a.name) {
		d.noteRefusedGlob(key)
	}
}

// forgetVersions makes all that the client holds of another version than it is:
// it may have forgotten the content, and what is gone must still be removed.
func forgetVersions(initial map[string]string) {
	for name := range initial {
		initial[name] = ""
	}
}

// resumeGlobs notes what the client holds of its globs from an earlier stream.
func (d *Delta) resumeGlobs() {
	if len(d.byGlob) == 0 {
		return
	}
	for name, version := range d.initial {
		set := d.globOf(byName(name))
		for params := range d.params {
			if set == nil {
				set = d.globOf(asked{name, true, params})
			}
		}
		if set == nil {
			continue
		}
		if set.initial == nil {
			set.initial = map[string]string{}
		}
		set.initial[name] = version
		if d.namedIn(set, name) == nil {
			delete(d.initial, name)
		}
	}
}

func (d *Delta) unsubscribeOne(a asked) {
	if a.name == cache.Wildcard {
		d.endWildcard()
		return
	}
	key := a.key()
	if set := d.globs[key]; set != nil {
		delete(d.gone, key)
		held := d.overlap(set)
		if d.unsubscribeGlob(a) != nil {
			d.unsaid.forget("", set, false)
			d.handOver(set, held)
			d.reviewLent()
		}
		return
	}
	name, sub := a.name, d.named.get(key)
	if sub != nil && sub.rare() != nil {
		name = cmp.Or(sub.rare().toldAs, name)
	}
	if !d.unsubscribe(key) {
		return
	}
	delete(d.gone, key)
	delete(d.refusedGlobs, key)
	delete(d.initial, a.name)
	delete(d.lent, sub)
	d.unsaid.forget(key, nil, false)
	d.uncover(a.of(name), true)
}

// endWildcard ends the wildcard: what the client has only by it, it drops.
func (d *Delta) endWildcard() {
	if d.wild == nil {
		return
	}
	ended, held := d.wild, d.overlap(d.wild)
	d.unsubscribeWildcard()
	d.unsaid.forget("", ended, false)
	d.handOver(ended, held)
	d.reviewLent()
	maps.DeleteFunc(d.gone, func(key string, g removal) bool { return !d.wants(key, g) })
	maps.DeleteFunc(d.initial, func(name, _ string) bool { return d.named.get(name) == nil })
	d.resumed = len(d.initial) > 0
}

// wants says that a removal still means something to the client.
func (d *Delta) wants(key string, g removal) bool {
	return d.named.get(key) != nil || d.globs[key] != nil || d.globOf(g.asked) != nil || d.wildOf(g.asked) != nil ||
		g.by != nil && !g.by.ended
}

// Adding says that there may be something new or changed to send, though perhaps not now.
func (d *Delta) Adding() bool {
	return len(d.pending)+len(d.pendingSets)+len(d.loose) > 0 || d.named.shared.behind() || !d.unsaid.empty() && !d.hasOpenSet()
}

// Pending counts what is kept to be sent. With a client that does not read it could grow.
func (d *Delta) Pending() int {
	return len(d.pending) + len(d.gone) + d.uncovered + len(d.initial)
}

// Removing says that there are removals to send that did not go with what is new.
func (d *Delta) Removing() bool { return len(d.gone)+len(d.handed) > 0 }

// AwaitsACK says that what is new can be sent once the client has answered. Types that come later
// in the order wait for that too.
func (d *Delta) AwaitsACK() bool { return false }

// Additions returns the next response of what is new or changed, nil if there is
// none. Removals are in the last one.
func (d *Delta) Additions(may RemovalRule) *Response {
	r := &Response{TypeURL: d.typeURL}
	d.named.shared.tell(r)
	r.expect(len(d.pending))
	fresh := d.wild != nil && d.wild.fresh
	d.quiet = d.hasOpenSet()
	d.takePending(func(sub *nameSub) bool { return d.tell(r, sub) })
	if len(d.pending) == 0 {
		d.takePendingSets(func(set *setSub) bool { return d.tellSet(r, set) })
		if len(d.pendingSets) == 0 {
			d.tellUncovered(r)
			d.sayUnsaid(r)
		}
		if may != RemoveNone && !d.Adding() {
			d.tellGone(r, may)
		}
	}
	// A new wildcard is answered also if it gives nothing, unless the client is
	// known to hold what there is.
	answered := fresh && !d.wild.fresh && !d.resumed
	if r.empty() && !answered {
		return nil
	}
	r.Version = r.systemVersion()
	return r
}

// Removals returns a response with what is gone, nil if nothing is.
func (d *Delta) Removals(may RemovalRule) *Response {
	r := &Response{TypeURL: d.typeURL}
	d.tellGone(r, may)
	if r.empty() {
		return nil
	}
	r.Version = r.systemVersion()
	return r
}

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

// tellError adds to r why a name cannot be given, and says whether it fitted.
func (d *Delta) tellError(r *Response, sub *nameSub, err *cache.Error) bool {
	if !r.fits(sizeError(sub.name(), err), d.Limit) {
		return false
	}
	r.addVariantError(fieldDeltaErrors, sub.name(), sub.constraints(), err)
	sub.setErrTold(markError(err))
	return true
}

// held says whether the client has that content already. A client that was told
// of an error is told the resource again when that is over.
func (d *Delta) held(sub *nameSub, st *cache.State) bool {
	version, ok := d.initial[sub.name()]
	same := sub.told() == toldResource && sub.Note == d.mark(st.Resource) && (sub.errTold() == 0 || st.Err != nil)
	if ok && version == st.Resource.Version() {
		d.knows(sub, st)
		return true
	}
	return same
}

// knows notes that the client has that content.
func (d *Delta) knows(sub *nameSub, st *cache.State) {
	sub.toldOf(st)
	delete(d.gone, sub.key())
	delete(d.initial, sub.name())
}

// takesNamed says whether a removal takes from the client what it asks for by name.
func (d *Delta) takesNamed(sub *nameSub, g removal) bool {
	if g.by != nil || sub == nil {
		return false
	}
	_, initial := d.initial[g.asked.name]
	return initial || sub.told() == toldResource
}

// tellGone adds to r the removals that it may carry.
func (d *Delta) tellGone(r *Response, may RemovalRule) {
	if !d.Removing() {
		return
	}
	if len(d.handed) > 0 {
		defer d.tellHanded(r)
	}
	// What may not go yet stays: then it is not among some for ever.
	stays := func(key string, g removal) bool {
		return may == RemoveUnnamed && d.takesNamed(d.named.get(key), g)
	}
	for more := true; more && d.tellSomeGone(r, stays, &more); {
	}
}

// tellSomeGone is tellGone for some of what is gone, if that is much, and says whether it
// fitted.
func (d *Delta) tellSomeGone(r *Response, stays func(string, removal) bool, more *bool) (fits bool) {
	var keys []string
	keys, *more = some(d.gone, stays)
	for _, key := range keys {
		const overhead = 64
		sub, g := d.named.get(key), d.gone[key]
		if glob := d.globs[key]; glob != nil && glob.set.Len() > 0 || !d.wants(key, g) {
			delete(d.gone, key) // the glob has members by now; or it has ended
			continue
		}
		name := g.asked.name
		if len(d.aliases[key]) > 0 { // by which the client still has it
			delete(d.gone, key)
			continue
		}
		size := 2*len(name) + overhead
		if g.err != nil {
			size += sizeError(name, g.err)
		}
		if g.was != nil {
			size += len(g.was.Name()) + len(g.was.Constraints())
		}
		if !r.fits(size, d.Limit) {
			return false
		}
		d.addGone(r, sub, &g)
		switch {
		case sub != nil:
			r.fromRemoved(sub.state().Origin)
		case g.by != nil && g.by.set != nil:
			r.fromRemoved(g.by.set.Origin())
		}
		// To a client that reads it, NOT_FOUND means a removal too.
		if g.err != nil {
			constraints := ""
			if sub != nil {
				constraints = sub.constraints()
			}
			r.addVariantError(fieldDeltaErrors, name, constraints, g.err)
		}
		delete(d.gone, key)
		delete(d.initial, name)
		if sub != nil {
			sub.setTold(toldAbsent)
			sub.set(mayHold, false)
			sub.setErrTold(markError(g.err))
			sub.has(sub.name())
		}
	}
	return true
}

// some returns keys of a map, in order: all that do not stay if it is small, and of a large
// one some. A response takes so many, and the next the next: to put all in order for each
// would be the work of all for each. It says whether there are more.
func some[V any](m map[string]V, stays func(string, V) bool) (keys []string, more bool) {
	const many = 1024
	for key, v := range m {
		if stays != nil && stays(key, v) {
			continue
		}
		if len(keys) == many {
			more = true
			break
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys, more
}

// addGone adds a removal to r, in the form in which the client was told the
// resource.
func (d *Delta) addGone(r *Response, sub *nameSub, g *removal) {
	constraints := g.constraints
	switch {
	case sub != nil && sub.byLocator():
		constraints = sub.rare().constraints
	case g.was != nil:
		constraints = g.was.Constraints()
	}
	under := g.asked.of(d.goneUnder(r, sub, g))
	d.addRemoved(r, under, constraints)
	if under.name != g.asked.name {
		r.noteRemoved(under.key())
	}
	delete(d.initial, under.name)
}

// InFlight is how many responses the client has not answered, as far as they are remembered,
// and when the first of them was sent.
func (d *Delta) InFlight() (n int, first uint32) {
	if n = len(d.unanswered); n > 0 {
		first = d.unanswered[0].at
	}
	return n, first
}

// Sent notes that r goes to the client as its newest response.
func (d *Delta) Sent(r *Response) {
	if len(d.unanswered) == maxUnanswered {
		d.unanswered = slices.Delete(d.unanswered, 0, 1)
	}
	d.unanswered = append(d.unanswered, sentResponse{nonce: r.Nonce, names: r.Names, at: r.At})
}

// Resend has a name's resource sent again, though the client was told it.
func (d *Delta) Resend(name string) {
	if d.named.shared.holdsNot(name) {
		return
	}
	for sub := range d.subsOf(name) {
		if sub.told() == toldResource {
			sub.setTold(toldNothing)
			sub.MoveToPending()
		}
	}
}

// FastACK implements the stream's typeSession.
func (d *Delta) FastACK(nonce []byte, _ uint64) bool {
	if len(nonce) == 0 || !d.explicit {
		return false
	}
	at := slices.IndexFunc(d.unanswered, func(r sentResponse) bool { return r.nonce == string(nonce) })
	d.unanswered = slices.Delete(d.unanswered, 0, at+1)
	return true
}

// RecordRequest implements the stream's typeSession.
func (d *Delta) RecordRequest([]byte, uint64) {}
