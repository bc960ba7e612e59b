package session

import (
	"iter"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/xdstype"
)

// SotW is the state of one type URL on a state-of-the-world stream.
// xDS: "The xDS transport Protocol", variants "SotW" and "ADS SotW".
type SotW struct {
	subscriptions

	// All that is true or false is in one place, as there are very many sessions.

	begun bool // a request has been taken
	// legacyWildcard: the client has never named anything, and so has the
	// wildcard of the old rule.
	legacyWildcard bool
	// fullType: a response is the full state of what is subscribed to, so that
	// what is missing in it is gone. So it is for Listener and Cluster; for the
	// other types only while there is a wildcard or a glob.
	fullType bool
	// once: there is one request, and one response.
	once bool
	// withheld: the client is yet to be told of removals, which have to wait for
	// what other types have to say. xDS: "Eventual consistency considerations".
	withheld bool
	// leftIn: the last full state had members in it that were removed. One
	// without them has to follow, whatever becomes of them until then.
	leftIn   bool
	stated   bool // state is set
	answered bool // the client has answered last
	// waiting: a request came that was stale, and its successors would be if
	// more were sent in between. The client is let catch up first.
	waiting bool

	// resumed is the version_info with which the client came, from an earlier
	// stream.
	resumed string
	// held is the number of names under which the client holds a resource, and
	// sum a hash over those resources: see namedVersion.
	held int
	sum  uint64
	// version is the origin's of those, where responses are not full states.
	version namesVersion

	absent []*nameSub // withheld, unless responses are full states
	// beats are those of which there is nothing to tell but a heartbeat, which goes
	// in a response of its own, unless responses are full states.
	beats []*nameSub
	// state is the hash of the last full state, if stated: if there was one, and
	// it was of the sets alone.
	state uint64
	// content is a version of the sets in it which stands for them alone.
	content string

	last sentResponse
	// asks is what the last request asked for that counted, as in glance.
	asks uint64
	// earlier are those before last that the client has not answered, the newest.
	earlier []sentResponse
}

// NewSotW returns that of a type.
func NewSotW(typeURL string, c *Client) *SotW {
	s := &SotW{subscriptions: newSubscriptions(typeURL, c), fullType: xdstype.Of(typeURL).FullState}
	s.sotw = true
	s.took = func(sub *nameSub) {
		s.count(sub)
		s.version.origin = nil // it is to be found out
	}
	return s
}

// Request takes a client's request, and returns the NACK if it is one.
func (s *SotW) Request(req *discoveryv3.DiscoveryRequest) (rejection *NACK) {
	nonce := req.GetResponseNonce()
	switch {
	case !s.begun:
		// On a type's first request a nonce belongs to an earlier stream, or to
		// another type: Istio's client sends that.
		s.begun, s.resumed = true, req.GetVersionInfo()
		s.legacyWildcard = len(req.GetResourceNames())+len(req.GetResourceLocators()) == 0
	case nonce == "" || s.last.nonce == "":
		// It answers nothing: before the first response, too, a nonce is none of
		// this type on this stream.
	case nonce != s.last.nonce:
		s.waiting = !s.answered
		rejection = s.rejectEarlier(nonce, req.GetErrorDetail())
		s.legacyWildcard = s.legacyWildcard && len(req.GetResourceNames())+len(req.GetResourceLocators()) == 0
		return rejection
	default:
		s.answered, s.waiting, s.earlier = true, false, nil
		if detail := req.GetErrorDetail(); detail != nil {
			rejection = s.reject(&s.last, detail)
		}
	}
	s.setNames(req)
	return rejection
}

// rejectEarlier takes the rejection of a response that is not the newest: what the
// request asks for is stale, what the client says of the response is not.
func (s *SotW) rejectEarlier(nonce string, detail *statuspb.Status) *NACK {
	at := slices.IndexFunc(s.earlier, func(r sentResponse) bool { return r.nonce == nonce })
	if at < 0 || detail == nil {
		return nil
	}
	return s.reject(&s.earlier[at], detail)
}

// setNames makes a request's names the whole of what is subscribed to.
// xDS: "How the client specifies what resources to return".
func (s *SotW) setNames(req *discoveryv3.DiscoveryRequest) {
	if s.sharesNames(req) {
		return
	}
	n := len(req.GetResourceNames()) + len(req.GetResourceLocators())
	s.legacyWildcard = s.legacyWildcard && n == 0
	wild, wildcard, known := s.legacyWildcard, byName(cache.Wildcard), 0
	for a := range askedIn(req) {
		if a.name == cache.Wildcard {
			wild, wildcard = true, a
		} else if sub := s.named.get(a.key()); sub != nil && !sub.is(isWanted) {
			sub.set(isWanted, true)
			known++
		}
	}
	s.endNames(known)
	s.expect(n - known)
	var refused []asked
	for a := range askedIn(req) {
		switch sub := s.named.get(a.key()); {
		case a.name == cache.Wildcard:
		case sub != nil && sub.refused():
			refused = append(refused, a)
		case sub == nil && s.globs[a.key()] == nil:
			s.begin(a)
		}
	}
	s.slab = nil
	s.endGlobs(req)
	s.askAgain(refused)
	switch {
	case wild && (s.wild == nil || s.wild.asked != wildcard):
		s.subscribeWildcard(wildcard)
	case !wild && s.wild != nil:
		s.unsubscribeWildcard()
		s.dropped()
	}
}

// sharesNames takes the names of a request that are those of a group: one that the client
// joins with its first request, or is in.
func (s *SotW) sharesNames(req *discoveryv3.DiscoveryRequest) bool {
	if s.offered == nil || len(req.GetResourceLocators()) > 0 {
		return false
	}
	if m := s.named.shared; m != nil {
		return m.group.List() == s.offered && m.nTaken == s.named.n && !s.hasSets()
	}
	if s.named.len() > 0 || s.hasSets() || s.fullType || s.once {
		return false
	}
	s.legacyWildcard = false
	return s.joinGroup(s.offered, s.last.nonce == "" && s.resumed != "")
}

// begin begins a subscription to a name or to a glob. The client may hold it from an
// earlier stream, or by a set, which may be given up for the name.
func (s *SotW) begin(a asked) {
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

// askAgain takes up what was refused and is asked for again, as far as it can be given now
// that others have ended.
func (s *SotW) askAgain(refused []asked) {
	for _, a := range refused {
		if key, err := s.lookUp(a); err == nil && s.Host.Admits(key) == nil {
			was := s.named.get(a.key())
			held := was.is(mayHold)
			s.knows(was, toldNothing, 0)
			s.begin(a)
			if sub := s.named.get(a.key()); sub != nil && held {
				sub.set(mayHold, true)
			}
		}
	}
}

// endNames ends the names that are not wanted any more, of which known are.
func (s *SotW) endNames(known int) {
	unwanted := make([]*nameSub, 0, s.named.len()-known)
	for sub := range s.named.all() {
		if !sub.is(isWanted) {
			unwanted = append(unwanted, sub)
		}
		sub.set(isWanted, false)
	}
	for _, sub := range unwanted {
		s.knows(sub, toldNothing, 0)
		s.unsubscribeName(sub)
	}
}

// endGlobs ends the globs that are not wanted any more.
func (s *SotW) endGlobs(req *discoveryv3.DiscoveryRequest) {
	if len(s.globs) == 0 {
		return
	}
	wanted := map[string]struct{}{}
	for a := range askedIn(req) {
		wanted[a.key()] = struct{}{}
	}
	var unwanted []asked
	for _, set := range s.byGlob {
		for _, name := range set.spelled.all() {
			a := set.asked.of(name)
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

// dropped notes that the client drops what it held by a set.
func (s *SotW) dropped() {
	s.resumed = ""
	s.leftIn = s.leftIn && s.hasSets()
	for sub := range s.named.all() {
		if sub.is(isCovered) { // of which the client has what the set gave
			sub.set(isCovered, false)
			sub.MoveToPending()
		}
	}
}

// askedIn yields all that a request asks for.
func askedIn(req *discoveryv3.DiscoveryRequest) iter.Seq[asked] {
	return func(yield func(asked) bool) {
		for _, name := range req.GetResourceNames() {
			if !yield(byName(name)) {
				return
			}
		}
		for _, l := range req.GetResourceLocators() {
			if !yield(byLocator(l)) {
				return
			}
		}
	}
}

// Adding says that there may be something new or changed to send, though perhaps not now.
func (s *SotW) Adding() bool {
	return len(s.pending)+len(s.pendingSets)+len(s.beats) > 0 || s.named.shared.behind()
}

// Pending counts what is kept to be sent. With a client that does not read it could grow.
func (s *SotW) Pending() int { return len(s.pending) + len(s.absent) + len(s.beats) }

// Removing says that there are removals to send that did not go with what is new.
func (s *SotW) Removing() bool { return s.withheld }

// AwaitsACK says that what is new can be sent once the client has answered. Types that come later
// in the order wait for that too.
func (s *SotW) AwaitsACK() bool { return s.waiting && (s.Adding() || s.Removing()) }

// InFlight is how many responses the client has not answered, as far as they are remembered,
// and when the first of them was sent.
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
	return s.changes(s.mayRemove(may))
}

// mayRemove says whether removals may be sent.
func (s *SotW) mayRemove(may RemovalRule) bool {
	return may == RemoveAll || may == RemoveUnnamed && s.hasSets()
}

// Removals returns the response with the removals that were withheld, which are all
// of what the client holds.
func (s *SotW) Removals(may RemovalRule) *Response {
	if s.waiting || !s.mayRemove(may) {
		return nil
	}
	for _, sub := range s.absent {
		sub.set(isWithheld, false)
		sub.MoveToPending()
	}
	s.absent = nil
	return s.Additions(RemoveAll)
}

// full says that a response is the full state of what is subscribed to.
func (s *SotW) full() bool { return s.hasSets() || s.fullType }

// changes returns a response with what is new or changed among the names: for
// types of which a response need not be the full state.
func (s *SotW) changes(all bool) *Response {
	r := &Response{TypeURL: s.typeURL}
	s.named.shared.tell(r)
	r.expect(len(s.pending))
	s.takePending(func(sub *nameSub) bool {
		st := s.perceived(sub, sub.state())
		if withheldPart(sub, &st, sub.is(mayHold)) {
			return true
		}
		if !all && removed(sub, st) {
			if !sub.is(isWithheld) {
				sub.set(isWithheld, true)
				s.absent = append(s.absent, sub)
			}
			return true
		}
		if st.Status == cache.Present {
			return s.tellResource(r, sub, &st)
		}
		if st.Status == cache.Absent && st.Err == nil {
			st.Err = notFound
		}
		return s.tellMissing(r, sub, st)
	})
	s.withheld = len(s.absent) > 0
	if r.empty() {
		return s.heartbeats()
	}
	if r.Version = s.ofNames(); r.Version == "" {
		r.Version = s.namedVersion("")
	}
	return r
}

// tellResource adds to r what is new about a name's resource, and says whether it
// fitted.
func (s *SotW) tellResource(r *Response, sub *nameSub, st *cache.State) bool {
	res, form := st.Resource, sub.form()
	switch {
	case !s.changed(sub, st):
		if sub.beating(st) {
			s.beats = append(s.beats, sub)
		}
	case !r.fits(res.Size(sub.name(), form), s.Limit):
		return false
	default:
		r.AddSotW(sub.name(), res, form)
		r.noteChanged(res)
		s.knowsResource(sub, st)
	}
	return s.tellError(r, sub, st.Err)
}

// changed says whether a resource is new to the client, or what it was told last
// was an error that is over.
func (s *SotW) changed(sub *nameSub, st *cache.State) bool {
	return sub.told() != toldResource || sub.Note != s.mark(st.Resource) || sub.errTold() != 0 && st.Err == nil
}

// heartbeats returns a response of those that are due, nil if none is. It has the
// version that the client has, by which it knows that there is nothing else in it.
// xDS: "SotW TTL".
func (s *SotW) heartbeats() *Response {
	r := &Response{TypeURL: s.typeURL, Version: s.last.version}
	r.expect(len(s.beats))
	for i, sub := range s.beats {
		if sub.is(hasEnded) {
			continue
		}
		st := sub.state()
		if st.Status != cache.Present || s.changed(sub, &st) || !sub.beating(&st) {
			continue
		}
		form := sub.form() | cache.Heartbeat
		if !r.fits(st.Resource.Size(sub.name(), form), s.Limit) {
			s.beats = s.beats[i:]
			return r
		}
		r.AddSotW(sub.name(), st.Resource, form)
		sub.setBeats(st.Beats)
	}
	s.beats = nil
	if r.empty() {
		return nil
	}
	return r
}

var notFound = &cache.Error{Code: codes.NotFound}

// tellMissing notes that a name has no resource, and adds to r why, if that is
// not clear from its missing. It says whether that fitted.
func (s *SotW) tellMissing(r *Response, sub *nameSub, st cache.State) bool {
	now := toldAbsent
	switch st.Status {
	case cache.Requested, cache.Present:
		return true
	case cache.Failed:
		now = toldFailed
	case cache.Absent:
	}
	if now == toldAbsent && sub.knowsAbsent(st.Err) || sub.told() == now && sub.errTold() == markError(st.Err) {
		return true
	}
	if sub.told() != now || st.Err == nil {
		sub.setErrTold(0)
	}
	if !s.tellError(r, sub, st.Err) {
		return false
	}
	s.knows(sub, now, 0)
	return true
}

// tellError adds to r an error that the client was not told, if there is one, and
// says whether it fitted.
func (s *SotW) tellError(r *Response, sub *nameSub, err *cache.Error) bool {
	if err == nil || sub.errTold() == markError(err) {
		return true
	}
	if !s.full() && !r.fits(sizeError(sub.name(), err), s.Limit) {
		return false
	}
	r.addVariantError(fieldSotWErrors, sub.name(), sub.constraints(), err)
	sub.setErrTold(markError(err))
	return true
}

// knowsResource notes that the client was told a resource.
func (s *SotW) knowsResource(sub *nameSub, st *cache.State) {
	s.noteVersion(st.Origin, s.held == 0)
	s.knows(sub, toldResource, s.mark(st.Resource))
	sub.toldOf(st)
}

// knows notes what the client was told of a name.
func (s *SotW) knows(sub *nameSub, now told, hash uint64) {
	if sub.told() == toldResource {
		s.held--
		s.sum -= digest(sub)
	}
	sub.setTold(now)
	sub.Note = hash
	if now == toldResource {
		s.count(sub)
	}
}

// count counts a resource that the client holds.
func (s *SotW) count(sub *nameSub) {
	s.held++
	s.sum += digest(sub)
}

func digest(sub *nameSub) uint64 { return Digest(sub.Note, sub.key()) }

// Digest is digest of a resource with a mark, under a key.
func Digest(mark uint64, key string) uint64 {
	h := xxhash.NewWithSeed(mark)
	_, _ = h.WriteString(key)
	return h.Sum64()
}

// removed says that the client holds a resource that does not exist any more.
func removed(sub *nameSub, st cache.State) bool {
	return !sub.is(hasEnded) && sub.told() == toldResource && st.Status == cache.Absent
}

// namedVersion is the version_info of what the client holds if the origin has none for all
// of it: of a single resource that resource's, else a hash over all of them and the sets.
func (s *SotW) namedVersion(sets string) string {
	held, sum := s.named.shared.held()
	held, sum = held+s.held, sum+s.sum
	if held == 1 && sets == "" {
		for sub := range s.named.all() {
			if st := sub.state(); sub.told() == toldResource && st.Resource != nil {
				return st.Resource.Version()
			}
		}
	}
	return strconv.FormatUint(sum^xxhash.Sum64String(sets), 16)
}

// Sent notes that a response goes to the client as the newest.
func (s *SotW) Sent(r *Response) {
	if !s.answered && s.last.nonce != "" {
		if len(s.earlier) == maxUnanswered {
			s.earlier = slices.Delete(s.earlier, 0, 1)
		}
		s.earlier = append(s.earlier, s.last)
	}
	s.last = sentResponse{nonce: r.Nonce, version: r.Version, names: r.Names, at: r.At}
	s.answered = false
}

// ofNoContent is the hash of a resource that the client holds and is to be sent again.
const ofNoContent = ^uint64(0)

// Resend has a name's resource sent again, though the client was told it: as if it
// had changed, since the client still holds it. Several clusters may ask for that
// before it is sent.
func (s *SotW) Resend(name string) {
	if s.named.shared.holdsNot(name) {
		return
	}
	for sub := range s.subsOf(name) {
		if sub.told() == toldResource {
			s.knows(sub, toldResource, ofNoContent)
			sub.MoveToPending()
		}
	}
}

// FastACK implements the stream's typeSession.
func (s *SotW) FastACK(nonce []byte, asks uint64) bool {
	if len(nonce) == 0 || string(nonce) != s.last.nonce || asks != s.asks || s.asks == 0 {
		return false
	}
	s.answered, s.waiting, s.earlier = true, false, nil
	return true
}

// RecordRequest implements the stream's typeSession.
func (s *SotW) RecordRequest(nonce []byte, asks uint64) {
	if stale := len(nonce) > 0 && s.last.nonce != "" && string(nonce) != s.last.nonce; !stale {
		s.asks = asks
	}
}
