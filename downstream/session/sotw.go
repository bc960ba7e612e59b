package session

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// NewSotW returns the session of a type on a SotW stream.
func NewSotW(typeURL string, c *Client) *SotW {
	t := xdstype.Of(typeURL)
	s := &SotW{subscriptions: newSubscriptions(typeURL, c), fullType: t.FullState, unreferenced: !t.Referenced}
	s.sotw, s.form, s.Form = true, s, s.ttlForm(typeURL, true)
	return s
}

func (s *SotW) beforeMove(*setSub) {}

func (s *SotW) takenOut(sub *nameSub) {
	s.count(sub)
	s.version.origin = nil // to be recomputed
}

// Request processes a client's request, and returns the NACK if it is one.
func (s *SotW) Request(req *discoveryv3.DiscoveryRequest) (rejection *NACK) {
	nonce := req.GetResponseNonce()
	switch {
	case !s.begun:
		// On a type's first request, a nonce belongs to an earlier stream, or to another type: Istio's client sends the
		// latter.
		s.begun, s.resumed = true, req.GetVersionInfo()
		s.legacyWildcard = len(req.GetResourceNames())+len(req.GetResourceLocators()) == 0
	case nonce == "" || s.last.nonce == "":
		// The request answers nothing: before the first response, a nonce is none of this type on this stream either.
	case nonce != s.last.nonce:
		s.waiting = !s.answered
		rejection = s.rejectEarlier(nonce, req.GetErrorDetail()).accepted(req.GetVersionInfo())
		s.legacyWildcard = s.legacyWildcard && len(req.GetResourceNames())+len(req.GetResourceLocators()) == 0
		return rejection
	default:
		detail := req.GetErrorDetail()
		if detail != nil {
			rejection = s.reject(&s.last, detail).accepted(req.GetVersionInfo())
		}
		s.answer(detail == nil)
	}
	s.setNames(req)
	if rejection == nil && s.nacks.any() {
		s.settleRejections(nil, s.unanswered())
	}
	return rejection
}

// rejectEarlier processes the rejection of a response that is not the newest: the names in the request are stale, the
// rejection is not.
func (s *SotW) rejectEarlier(nonce string, detail *statuspb.Status) *NACK {
	at := slices.IndexFunc(s.earlier, func(r sentResponse) bool { return r.nonce == nonce })
	if at < 0 {
		return nil
	}
	if detail == nil {
		allACKed(s.earlier[:at+1])
		return nil
	}
	return s.reject(&s.earlier[at], detail)
}

// Stale reports that the client's last request answered an earlier response than the newest, which is unanswered, and
// when that was sent.
func (s *SotW) Stale() (sent uint32, is bool) { return s.last.at, s.waiting }

// StartOver ends the wait for an answer to the newest response. The client may lack everything that was in the responses
// that it has not answered. So it is treated like one that has just connected, with that version, and whose next request
// is the first; but no names still mean what they meant before.
func (s *SotW) StartOver(version string) {
	legacy := s.legacyWildcard
	s.legacyWildcard = false
	s.setNames(new(discoveryv3.DiscoveryRequest))
	allLost(s.earlier)
	s.last.lost()
	s.legacyWildcard, s.resumed = legacy, version
	s.last, s.earlier, s.answered, s.waiting, s.requested = sentResponse{}, nil, false, false, 0
}

// setNames makes the names in a request the complete subscription.
// xDS: "How the client specifies what resources to return".
func (s *SotW) setNames(req *discoveryv3.DiscoveryRequest) {
	if s.sharesNames(req) {
		return
	}
	n := len(req.GetResourceNames()) + len(req.GetResourceLocators())
	s.legacyWildcard = s.legacyWildcard && n == 0
	wild, wildcard := s.wildcardIn(req)
	known := 0
	for a := range refsIn(req) {
		if a == wildcard {
			continue
		}
		if sub := s.named.get(a.key()); sub != nil && !sub.is(isWanted) {
			sub.set(isWanted, true)
			known++
		}
	}
	s.endNames(known)
	s.expect(n - known)
	var refused, wildcards []resourceRef
	for a := range refsIn(req) {
		switch sub := s.named.get(a.key()); {
		case a == wildcard:
		case sub == nil && a.name == cache.Wildcard:
			wildcards = append(wildcards, a)
		case sub != nil && sub.refused():
			refused = append(refused, a)
		case sub == nil && s.globs[a.key()] == nil:
			s.begin(a)
		}
	}
	s.slab = nil
	s.endGlobs(req)
	s.requestAgain(refused)
	switch {
	case wild && (s.wild == nil || s.wild.ref != wildcard):
		s.subscribeWildcard(wildcard)
	case !wild && s.wild != nil:
		s.unsubscribeWildcard()
		s.dropped()
	}
	for _, a := range wildcards {
		s.begin(a) // it is refused
	}
}

// wildcardIn returns the wildcard that a request asks for, and whether it does. If it asks for several, by locators, the
// one that the client has stays.
func (s *SotW) wildcardIn(req *discoveryv3.DiscoveryRequest) (is bool, wildcard resourceRef) {
	is, wildcard = s.legacyWildcard, refByName(cache.Wildcard)
	for a := range refsIn(req) {
		if a.name == cache.Wildcard && (!is || s.wild != nil && s.wild.ref == a) {
			is, wildcard = true, a
		}
	}
	return is, wildcard
}

// sharesNames processes a request whose names are those of a group, which the client joins with its first request, or
// is in already. It reports whether that is so.
func (s *SotW) sharesNames(req *discoveryv3.DiscoveryRequest) bool {
	if s.offered == nil || len(req.GetResourceLocators()) > 0 {
		return false
	}
	if m := s.named.shared; m != nil {
		return m.group.List() == s.offered && int(m.nTaken) == s.named.table.Len() && !s.hasSets()
	}
	if s.named.len() > 0 || s.hasSets() || s.fullType || s.polls {
		return false
	}
	s.legacyWildcard = false
	return s.joinGroup(s.offered, s.last.nonce == "" && s.resumed != "", nil)
}

// begin begins a subscription to a name or to a glob. The client may hold the resource from an earlier stream, or from
// a set that it gives up for the name.
func (s *SotW) begin(a resourceRef) {
	resumed := s.last.nonce == "" && s.resumed != ""
	if sub, set := s.subscribe(a); sub != nil {
		given, _ := s.given(sub)
		sub.set(mayHold, resumed || given != nil)
		if resumed {
			s.resume(sub)
		}
	} else {
		set.mayHold = resumed
	}
}

// requestAgain begins subscriptions that were refused and are requested again, as far as the limits allow them now that
// others have ended.
func (s *SotW) requestAgain(refused []resourceRef) {
	for _, a := range refused {
		if key, err := s.lookUpName(a); err == nil && s.Host.Admits(key) == nil {
			was := s.named.get(a.key())
			held := was.is(mayHold)
			s.knows(was, sentNothing, 0)
			s.begin(a)
			if sub := s.named.get(a.key()); sub != nil && held {
				sub.set(mayHold, true)
			}
		}
	}
}

// endNames ends the names that the request does not have. known is how many it has.
func (s *SotW) endNames(known int) {
	unwanted := make([]*nameSub, 0, s.named.len()-known)
	for sub := range s.named.all() {
		if !sub.is(isWanted) {
			unwanted = append(unwanted, sub)
		}
		sub.set(isWanted, false)
	}
	for i, sub := range unwanted {
		s.knows(sub, sentNothing, 0)
		s.unsubscribeName(sub)
		yieldAfter(i + 1)
	}
}

// endGlobs ends the globs that the request does not have.
func (s *SotW) endGlobs(req *discoveryv3.DiscoveryRequest) {
	if len(s.globs) == 0 {
		return
	}
	wanted := map[string]struct{}{}
	for a := range refsIn(req) {
		wanted[a.key()] = struct{}{}
	}
	var unwanted []resourceRef
	for _, set := range s.byGlob {
		for _, name := range set.spelled.all() {
			a := set.ref.of(name)
			if _, ok := wanted[a.key()]; !ok {
				unwanted = append(unwanted, a)
			}
		}
	}
	ended := false
	for _, a := range unwanted {
		ended = s.unsubscribeGlob(a) != nil || ended
	}
	if ended {
		s.dropped()
	}
}

// dropped records that the client drops what it held by a set.
func (s *SotW) dropped() {
	s.resumed = ""
	s.leftIn = s.leftIn && s.hasSets()
	for sub := range s.named.all() {
		if sub.is(isCovered) { // the client has what the set gave
			sub.set(isCovered, false)
			sub.MoveToPending()
		}
	}
}

// Adding reports that there may be something new or changed to send, though perhaps not now.
func (s *SotW) Adding() bool {
	return len(s.pending)+len(s.pendingSets)+len(s.heartbeatsDue) > 0 || s.named.shared.behind()
}

// Pending counts what is kept to be sent. It could grow with a client that does not read.
func (s *SotW) Pending() int { return len(s.pending) + len(s.absent) + len(s.heartbeatsDue) }

// Unsubscribed is 0: in SotW, unsubscribing needs no answer.
func (s *SotW) Unsubscribed() int { return 0 }

// Removing reports that there are removals to send that did not go with what is new.
func (s *SotW) Removing() bool { return s.withheld }

// AwaitsACK reports that new state can be sent only after the client has answered. Types that come later in the order
// wait for that, too.
func (s *SotW) AwaitsACK() bool { return s.waiting && (s.Adding() || s.Removing()) }

// InFlight returns how many responses the client has not answered, as far as they are remembered, and when the first of
// them was sent.
func (s *SotW) InFlight() (n int, first uint32) {
	switch {
	case s.answered || s.last.nonce == "":
		return 0, 0
	case len(s.earlier) > 0:
		return len(s.earlier) + 1, s.earlier[0].at
	}
	return 1, s.last.at
}

// Additions returns the next response, nil if there is none to send now.
func (s *SotW) Additions(may RemovalRule) *Response {
	if s.waiting {
		return nil
	}
	if s.full() {
		return s.fullState(s.mayRemove(may))
	}
	// Heartbeats that were left for a response of their own go before further changes, or they would come too late while
	// other resources change all the time.
	if r := s.heartbeats(); r != nil {
		return r
	}
	return s.changes(may)
}

// mayRemove reports whether removals may be sent.
func (s *SotW) mayRemove(may RemovalRule) bool {
	return may == RemoveAll || may == RemoveUnnamed && s.hasSets()
}

// Removals returns the response with the withheld removals, which are removals of what the client holds.
func (s *SotW) Removals(may RemovalRule) *Response {
	if s.waiting {
		return nil
	}
	all := s.mayRemove(may)
	some := all
	s.absent = slices.DeleteFunc(s.absent, func(sub *nameSub) bool {
		goes := all || sub.goes(may)
		if goes {
			some = true
			sub.set(isWithheld, false)
			sub.MoveToPending()
		}
		return goes
	})
	if len(s.absent) == 0 {
		s.absent = nil
	}
	if !some {
		return nil
	}
	return s.Additions(may)
}

// Sent records that a response goes to the client as the newest.
func (s *SotW) Sent(r *Response) {
	s.bring(r, s.Adding() || s.Removing())
	if !s.answered && s.last.nonce != "" {
		if len(s.earlier) == maxUnanswered {
			notACKed(s.earlier[:1])
			s.earlier = slices.Delete(s.earlier, 0, 1)
		}
		s.earlier = append(s.earlier, s.last)
	}
	s.last = s.sent(r)
	s.answered = false
}

// answer records that the client has answered the newest response, and with it the earlier ones.
func (s *SotW) answer(acked bool) {
	allACKed(s.earlier)
	s.last.answered((*propagation.Delivery).ACKed) // unless it was rejected
	// A client that has rejected the response and changes its subscriptions then repeats the nonce.
	switch acked = acked && !s.last.rejected; {
	case !acked || !s.nacks.any():
	case s.full():
		s.endRejections() // the response had everything in it
	default:
		s.settleRejections(append(s.earlier, s.last), nil)
	}
	s.answered, s.waiting, s.earlier, s.settled = true, false, nil, s.newest
}

// Resend has a name's resource sent again, though the client has it. The session treats it as changed, since the client
// still holds it. Several clusters may request that before it is sent.
func (s *SotW) Resend(name string) {
	if s.named.shared.holdsNothing(name) {
		return
	}
	for sub := range s.subsOf(name) {
		sub.keep()
		if sub.sent() == sentResource {
			s.knows(sub, sentResource, ofNoContent)
			sub.MoveToPending()
		}
	}
}

// FastACK processes a request in which nothing but the nonce is new, and reports whether it did. asks is a hash over
// what the request asks for.
func (s *SotW) FastACK(nonce []byte, asks uint64) bool {
	if len(nonce) == 0 || string(nonce) != s.last.nonce || asks != s.requested || s.requested == 0 {
		return false
	}
	s.answer(true)
	return true
}

// RecordRequest records a request that FastACK did not process.
func (s *SotW) RecordRequest(nonce []byte, asks uint64) {
	if stale := len(nonce) > 0 && s.last.nonce != "" && string(nonce) != s.last.nonce; !stale {
		s.requested = asks
	}
}

// unanswered are the responses that the client has not answered, as far as they are remembered.
func (s *SotW) unanswered() []sentResponse {
	if s.answered || s.last.nonce == "" {
		return s.earlier
	}
	return append(slices.Clone(s.earlier), s.last)
}

// inFlight iterates over the responses that the client has not answered, as far as they are remembered.
func (s *SotW) inFlight(yield func(*sentResponse) bool) {
	for i := range s.earlier {
		if !yield(&s.earlier[i]) {
			return
		}
	}
	if !s.answered && s.last.nonce != "" {
		yield(&s.last)
	}
}

// Spare records that there is nothing to send now.
func (s *SotW) Spare() { s.spare(s.Adding() || s.Removing()) }

// Close ends all subscriptions.
func (s *SotW) Close() {
	s.subscriptions.Close()
	s.owed.Take().Spared()
	allLost(s.earlier)
	s.last.lost()
}
