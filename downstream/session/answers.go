package session

import (
	"iter"
	"math"
	"slices"
)

// What the client has answered of what it was sent, for whoever looks (held.go). Nothing is done for a
// resource that is sent but to note the number of the response, and nothing at all when it is answered.

// number counts the responses of a session. It may overflow: of two that are looked at, the
// later one is at most maxUnanswered newer, or one is answered.
type number uint16

// after reports whether n is a later response than o.
func (n number) after(o number) bool { return int16(n-o) > 0 } //nolint:gosec // that is what it is for

// short is what a subscription to a name has of a number: 1 to 7.
func (n number) short() byte { return byte(n%7) + 1 }

// sending is the number of the response that is being put together.
func (s *subscriptions) sending() number { return s.newest + 1 }

// sent is what is remembered of the newest response.
func (s *subscriptions) sent(r *Response) sentResponse {
	s.newest = s.sending()
	is := sentResponse{nonce: r.Nonce, version: r.Version, names: r.Names, at: r.At, number: s.newest, brings: r.brings}
	if r.holdsSecret {
		is.traits |= heldSecret
	}
	if r.Names.Total-r.unchanged > len(r.Names.First) {
		is.traits |= hadMore
	}
	return is
}

// setSentIn notes in which response a resource goes that is new to the client.
func (s *nameSub) setSentIn(n number) {
	s.Own[ownSent] = s.Own[ownSent]&^(sentInBits|isRejectedBit) | n.short()<<sentInShift
}

// sentIn is the short number of the response in which the client was sent what it has; 0 if that is not
// known. An earlier one may have the same.
func (s *nameSub) sentIn() byte { return s.Own[ownSent] & sentInBits >> sentInShift }

func (s *nameSub) isRejected() bool { return s.Own[ownSent]&isRejectedBit != 0 }

// span is the changes of a set that went in one response: those after from, up to to.
type span struct {
	from, to uint64
	number   number
}

func (p *span) has(change uint64) bool { return p.from < change && change <= p.to }

// noteSpan notes which changes of a set go in the response that is being put together.
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
	s.nacks.drop(func(p *rejectedSpan) bool { return p.set == set && from <= p.from && p.to <= to }) // they are sent again
}

// noteSending notes that the response that is being put together has what is new up to a position. To a client
// that has moved to the other side of a rollout, older changes are new, too.
func (m *membership) noteSending(to Position) {
	switch {
	case m.sentUpTo.Seq > 0 && m.sentUpTo.New != to.New:
		m.unanswered = math.MaxUint16
		return
	case m.subs.newest == m.subs.settled:
		m.unanswered = 0
	}
	m.unanswered = uint16(min(to.Seq-m.sentUpTo.Seq+uint64(m.unanswered), math.MaxUint16)) //nolint:gosec // it is bounded
}

// inFlight returns which changes went in responses that the client has not answered, or had not when the newest
// was sent.
func (m *membership) inFlight() span {
	if m.unanswered == math.MaxUint16 {
		return span{to: m.sentUpTo.Seq}
	}
	return span{from: m.sentUpTo.Seq - uint64(m.unanswered), to: m.sentUpTo.Seq}
}

// dropSpans forgets what a response was to have that is not sent.
func (s *subscriptions) dropSpans() {
	for set := range s.sets() {
		set.spans = slices.DeleteFunc(set.spans, func(p span) bool { return p.number == s.sending() })
	}
}

// Rejection is a NACK: what the client does not take, and holds in an earlier version, if in any.
type Rejection struct {
	// Reason is in the client's own words.
	Reason string
	// At is when it came, by the stream's clock.
	At uint32
	// SentAt is when the response was sent, by the stream's clock, and Version its version.
	SentAt  uint32
	Version string
	// Names are what was in it.
	Names    NameSample
	response sentResponse
	spans    []rejectedSpan
}

// rejectedSpan is a span of a response that was rejected. set is nil for the group's.
type rejectedSpan struct {
	span
	set *setSub
}

// nacks are what a client has rejected of a type.
type nacks struct {
	last string // the words of the last one
	// of are the newest, of which something may be rejected still.
	of []*Rejection
}

// maxRejections bounds the NACKs that are remembered of one type.
const maxRejections = 8

func (n *nacks) words() string {
	if n == nil {
		return ""
	}
	return n.last
}

func (n *nacks) any() bool { return n != nil && len(n.of) > 0 }

func (n *nacks) newestFirst() iter.Seq[*Rejection] {
	return func(yield func(*Rejection) bool) {
		if n == nil {
			return
		}
		for _, r := range slices.Backward(n.of) {
			if !yield(r) {
				return
			}
		}
	}
}

// drop forgets that spans were rejected.
func (n *nacks) drop(which func(*rejectedSpan) bool) {
	for r := range n.newestFirst() {
		r.spans = slices.DeleteFunc(r.spans, func(p rejectedSpan) bool { return which(&p) })
	}
}

// find returns the newest rejection of something in a set's span for which is returns true, nil if there is none.
// set is nil for the group, and name empty if the names in the response are not known.
func (n *nacks) find(set *setSub, is func(*span) bool, name string) *Rejection {
	for r := range n.newestFirst() {
		if (name == "" || r.response.mayHave(name)) && slices.ContainsFunc(r.spans, func(p rejectedSpan) bool { return p.set == set && is(&p.span) }) {
			return r
		}
	}
	return nil
}

// ofName returns the newest rejection of a name that is rejected, nil if it is forgotten.
func (n *nacks) ofName(name string) *Rejection {
	for r := range n.newestFirst() {
		if r.response.mayHave(name) {
			return r
		}
	}
	return nil
}

// noteRejection notes that the client has rejected a response, and what it has rejected with it.
func (s *subscriptions) noteRejection(r *sentResponse, words string) *Rejection {
	is := &Rejection{Reason: words, SentAt: r.at, Version: r.version, Names: r.names, response: *r}
	for set := range s.sets() {
		for _, p := range set.spans {
			if p.number == r.number {
				is.spans = append(is.spans, rejectedSpan{p, set})
			}
		}
	}
	if m := s.named.shared; m != nil && m.unanswered > 0 {
		is.spans = append(is.spans, rejectedSpan{span: m.inFlight()})
	}
	s.rejectNames(r)
	if s.nacks == nil {
		s.nacks = &nacks{}
	}
	if len(s.nacks.of) == maxRejections {
		s.nacks.of = slices.Delete(s.nacks.of, 0, 1)
	}
	s.nacks.last, s.nacks.of = words, append(s.nacks.of, is)
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
	name := sub.name()
	if rare := sub.rare(); rare != nil && rare.sentAs != "" {
		name = rare.sentAs
	}
	return r.mayHave(name)
}

// noteTaken notes of a name that is taken out of the group what the client has answered of it.
func (s *subscriptions) noteTaken(sub *nameSub, m *membership, i uint32) {
	if s.newest == s.settled && !s.nacks.any() {
		return
	}
	at, flight := m.group.ChangedAt(i, m.OnNew), m.inFlight()
	if s.newest != s.settled && flight.has(at) {
		sub.setSentIn(s.newest)
	}
	if s.nacks.find(nil, func(p *span) bool { return p.has(at) }, sub.name()) != nil {
		sub.Own[ownSent] |= isRejectedBit
	}
}

// endRejections notes that the client has taken everything.
func (s *subscriptions) endRejections() {
	s.nacks.of = nil
	for sub := range s.named.own() {
		sub.Own[ownSent] &^= isRejectedBit
	}
}

// inFlight yields the responses that the client has not answered, as far as they are remembered.
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

// inFlight yields the responses that the client has not answered, as far as they are remembered.
func (d *Delta) inFlight(yield func(*sentResponse) bool) {
	for i := range d.unanswered {
		if !yield(&d.unanswered[i]) {
			return
		}
	}
}
