package session

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// What a delta client holds, and what is kept to be sent to it.

// removal is a removal to send.
type removal struct {
	ref resourceRef
	by  *setSub         // the set that has lost it, if that is the reason
	err *cache.Error    // the reason the authority gave, if any
	was *cache.Resource // what the client held, if it is known
	// constraints are the resource's constraints, if nothing else is known of it.
	constraints string
}

// Delta is the state of one type URL on a delta stream.
// xDS: "Incremental xDS".
type Delta struct {
	subscriptions
	begun bool // a request has been taken
	// explicit: there was a subscription, so a request without names does not mean the wildcard.
	explicit bool
	// resumed: the client holds something from an earlier stream, and was sent nothing since it said so. confirmed: some
	// of that is current.
	resumed, confirmed bool
	// defers is set for responses in which errors have to wait: see silence.go.
	defers bool
	// unreferenced: nothing refers to resources of the type, so removals go with the additions that came with them.
	unreferenced bool
	// claims: the type has claims, see xdstype.Type.Claims.
	claims bool
	// initial has the versions that the client holds from an earlier stream, for what it has not been sent yet. xDS:
	// "initial_resource_versions".
	initial map[string]string
	// removals has the removals to send, by the keys under which the resources are, or would be, subscribed to. A resource
	// that comes back before its removal was sent leaves the map.
	removals map[string]removal
	// reviewing counts the names in setSub.reviews, and unsubscribed those from which the client has unsubscribed.
	// reviewable are the sets with reviews that can be sent.
	reviewing    int
	unsubscribed int
	reviewable   []*setSub
	// deferred has errors that wait.
	deferred *deferredErrors
	// refusedGlobs are the keys of globs that the relay refuses, and of which the client may hold members: they are
	// without an answer.
	refusedGlobs map[string]struct{}
	// former are resources that the client has under a name that now stands for something else, while another name
	// gives them. The values are their constraints.
	former map[resourceRef]string
	// borrowed are the absent names for which the client has what a set gives. It is false for names that wait until a set
	// that has moved has an answer: the client has what the name was before.
	borrowed map[*nameSub]bool
	// unanswered are the newest responses that the client has not answered. one is room for a single response.
	unanswered []sentResponse
	one        [1]sentResponse
	// acked is the last response that the client has answered, if the client is a relay: a relay may reject it later,
	// when its own clients have rejected it.
	acked *sentResponse
}

// held reports whether the client already has the content of a state. A client that was sent an error is sent the
// resource again when the error is over.
func (d *Delta) held(sub *nameSub, st *cache.State) bool {
	version, ok := d.initial[sub.name()]
	same := sub.sent() == sentResource && sub.Note == d.mark(st.Resource) && !sub.renewed(st) && (sub.sentErr() == 0 || st.Err != nil)
	if ok && version == st.Resource.Version() {
		d.confirmed = true
		d.knows(sub, st)
		return true
	}
	return same
}

// knows records that the client has the content of a state.
func (d *Delta) knows(sub *nameSub, st *cache.State) {
	sub.setSentResource(st)
	delete(d.removals, sub.key())
	delete(d.initial, sub.name())
}

// sendError adds to r the error of a name that the client cannot get, and reports whether it fitted.
func (d *Delta) sendError(r *Response, sub *nameSub, err *cache.Error) bool {
	if !r.fits(sizeError(sub.name(), err), d.Limit) {
		return false
	}
	r.addVariantError(wire.DeltaErrors, sub.name(), sub.constraints(), err)
	sub.setSentErr(markError(err))
	return true
}

// takesNamed reports whether a removal may take a resource from the client that the client requests by name.
func (d *Delta) takesNamed(sub *nameSub, g removal) bool {
	if g.by != nil || sub == nil {
		return false
	}
	_, initial := d.initial[g.ref.name]
	return initial || sub.is(mayHold) || sub.sent() == sentResource
}

// wants reports whether a removal still means something to the client.
func (d *Delta) wants(key string, g removal) bool {
	return d.named.get(key) != nil || d.globs[key] != nil || d.globOf(g.ref) != nil || d.wildOf(g.ref) != nil ||
		g.by != nil && !g.by.ended
}

// maxUnanswered bounds the responses whose content a session remembers in order to explain a NACK.
const maxUnanswered = 16

// deferLater returns the deferred errors, to which the caller adds one.
func (d *Delta) deferLater() *deferredErrors {
	if d.deferred == nil {
		d.deferred = &deferredErrors{}
	}
	return d.deferred
}

// hasOpenSet reports that a wildcard or a glob of the client has no answer yet.
func (d *Delta) hasOpenSet() bool { return int(d.freshSets)+len(d.refusedGlobs) > 0 }

// mustConfirm reports that the client is to be sent an empty response, because it has resumed with the current state of
// all that it holds.
//
// A client of a wildcard waits for an answer; other control planes send it, too. Names and globs need none. But Envoy
// waits longer before each further connection until it has received a response, so no stream stays without one.
func (d *Delta) mustConfirm() bool {
	if !d.resumed || !d.confirmed || d.wild == nil && d.Answered || d.hasOpenSet() || d.Removing() {
		return false
	}
	for set := range d.sets() {
		if set.lacks || set.stale {
			return false
		}
	}
	return true
}

// mustDefer reports that the client would take r, with an error in it, for an empty answer to a set.
func (d *Delta) mustDefer(r *Response) bool {
	return d.defers && !r.substantial && !d.errorsAlone
}

// mayHold reports that the client may hold the resource of a name of which it was sent nothing on this stream: the
// client has stated so, or a set has given it the resource, or will.
func (d *Delta) mayHold(sub *nameSub) bool {
	if _, held := d.initial[sub.name()]; held || sub.is(mayHold) {
		return true
	}
	a := sub.ref()
	for _, set := range d.covering(a) {
		if set.holds(sub.name()) || set.set.Member(memberKey(sub.name())) != nil {
			return true
		}
	}
	return false
}
