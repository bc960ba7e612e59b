package session

import (
	"math"
	"slices"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/secrets"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// The client's answers to what it was sent, for the operator's pages (held.go). To keep this cheap, a session only
// notes the number of the response for each resource that it sends, and does nothing per resource when the response is
// answered.

// sent returns the record of a response that becomes the newest.
func (s *subscriptions) sent(r *Response) sentResponse {
	s.newest = s.sending()
	r.delivery = r.brings.Deliver()
	is := sentResponse{nonce: r.Nonce, version: r.Version, names: r.Names, at: r.At, number: s.newest, brings: r.delivery}
	if r.holdsSecret {
		is.traits |= heldSecret
	}
	if r.Names.Total-r.unchanged > len(r.Names.First) {
		is.traits |= hadMore
	}
	if r.Warms {
		is.traits |= warmed
	}
	return is
}

func (s *nameSub) isRejected() bool { return s.Own[ownSent]&isRejectedBit != 0 }

// noteSpan records which changes of a set go in the response that is being put together.
func (s *subscriptions) noteSpan(set *setSub, from, to uint64) {
	if from >= to {
		return
	}
	kept := set.spans
	answered := 0
	for answered < len(kept) && (!kept[answered].number.after(s.settled) || len(kept)-answered == maxUnanswered) {
		answered++
	}
	kept = slices.Delete(kept, 0, answered)
	set.spans = append(kept, span{from: from, to: to, number: s.sending()})
	s.nacks.drop(func(p *rejectedSpan) bool { return p.set == set && from <= p.from && p.to <= to }) // their resources are sent again
}

// noteSending records that the response that is being put together has the news up to a position. For a client that has
// moved to the other side of a rollout, older changes are new, too.
func (m *membership) noteSending(to Position) {
	m.sentIn = m.subs.sending()
	switch {
	case m.sentUpTo.Seq > 0 && m.sentUpTo.New != to.New:
		m.unanswered = math.MaxUint16
		return
	case m.subs.newest == m.subs.settled:
		m.unanswered = 0
	}
	m.unanswered = uint16(min(to.Seq-m.sentUpTo.Seq+uint64(m.unanswered), math.MaxUint16)) //nolint:gosec // it is bounded
}

// inFlight returns the changes in responses that the client has not answered, or had not answered when the newest was
// sent.
func (m *membership) inFlight() span {
	if m.unanswered == math.MaxUint16 {
		return span{to: m.sentUpTo.Seq}
	}
	return span{from: m.sentUpTo.Seq - uint64(m.unanswered), to: m.sentUpTo.Seq}
}

// dropSpans forgets the spans of a response that is not sent after all.
func (s *subscriptions) dropSpans() {
	for set := range s.sets() {
		set.spans = slices.DeleteFunc(set.spans, func(p span) bool { return p.number == s.sending() })
	}
}

// maxRejections bounds the remembered NACKs of one type.
const maxRejections = 8

// find returns the newest rejection that has a span of set for which is returns true, nil if there is none. set is nil for the group. name is empty if the names in the response do not matter.
func (n *nacks) find(set *setSub, is func(*span) bool, name string) *Rejection {
	for r := range n.newestFirst() {
		if name != "" && !r.response.mayHave(name) {
			continue
		}
		for i := range r.spans {
			if p := &r.spans[i]; p.set == set && is(&p.span) {
				return r
			}
		}
	}
	return nil
}

// noteRejection records that the client has rejected a response, and which changes it has rejected with it.
func (s *subscriptions) noteRejection(r *sentResponse, words string) *Rejection {
	is := &Rejection{Reason: words, SentAt: r.at, Version: r.version, Names: r.names, response: *r}
	for set := range s.sets() {
		for _, p := range set.spans {
			if p.number == r.number {
				is.spans = append(is.spans, rejectedSpan{p, set})
				// It came with another version while the answer was on its way, which the client was not sent then.
				if set.set == nil {
					continue
				}
				set.set.RenewedIn(p.from, p.to, func(change uint64) {
					is.spans = append(is.spans, rejectedSpan{span{change - 1, change, p.number}, set})
				})
			}
		}
	}
	if m := s.named.shared; m != nil && m.unanswered > 0 && !r.number.after(m.sentIn) {
		is.spans = append(is.spans, rejectedSpan{span: m.inFlight()})
	}
	s.rejectNames(r)
	if s.nacks == nil {
		s.nacks = &nacks{}
	}
	if before := s.nacks.standing(); before != nil {
		is.Since = before.Since
	}
	for o := range s.nacks.newestFirst() { // what was sent again counts only once
		o.standing.drop(func(name string) bool { return slices.Contains(r.names.First, name) })
	}
	is.standing = s.standingOf(is)
	s.nacks.add(is)
	s.nacks.last = words
	for _, name := range slices.Clone(is.standing.names) {
		s.refuse(is, name)
	}
	return is
}

// rejectNames marks the names that the client watches by itself and that were new in a rejected response.
func (s *subscriptions) rejectNames(r *sentResponse) {
	reject := func(sub *nameSub) {
		if sub.sent() == sentResource && s.sentWith(sub, r) {
			sub.Own[ownSent] |= isRejectedBit
		}
	}
	if !r.had(hadMore) && len(s.rares) == 0 && !s.hasSets() {
		for _, name := range r.names.First {
			if sub, ok := s.named.table.Get(name, (*nameSub).key); ok {
				reject(sub)
			}
		}
		return
	}
	for sub := range s.named.own() {
		reject(sub)
	}
}

// sentWith reports whether a response is the one in which the client was sent what it has of a name.
func (s *subscriptions) sentWith(sub *nameSub, r *sentResponse) bool {
	if sub.sentIn() != r.number.short() {
		return false
	}
	if s.sotw && sub.is(isCovered) {
		return true
	}
	return r.mayHave(sub.sentAs())
}

// endRejections records that the client has accepted everything.
func (s *subscriptions) endRejections() {
	s.nacks.of = nil
	for sub := range s.named.own() {
		sub.Own[ownSent] &^= isRejectedBit
	}
}

// LastAnswer returns the client's answer to the newest response that it has answered; NoAnswer before the first answer.
func (s *subscriptions) LastAnswer() Answer {
	if s.settled == 0 {
		return NoAnswer
	}
	for r := range s.nacks.newestFirst() {
		if r.response.number == s.settled {
			return NACKed
		}
	}
	return ACKed
}

// reject processes a client's rejection of a response. It returns nil if the client has rejected that response before.
// The session takes the client to keep what it had, and sends the resource again only when it changes, or comes again
// with another version (refuse). Whether a
// control plane gets the rejection is decided elsewhere: see passOn in package downstream, and the rollouts.
func (s *subscriptions) reject(r *sentResponse, detail *statuspb.Status) *NACK {
	if r.rejected {
		return nil
	}
	r.rejected = true
	r.answered((*propagation.Delivery).NACKed)
	words := secrets.Words(loglines.Clip(detail.GetMessage()))
	if r.had(heldSecret) || xdstype.Of(s.typeURL) == xdstype.Secret {
		// A client may quote what it rejects.
		words = WordsWithheld
	}
	return &NACK{TypeURL: s.typeURL, Nonce: r.nonce, Names: r.names, Code: codes.Code(detail.GetCode()), Reason: words, record: s.noteRejection(r, words)}
}
