package session

import (
	"iter"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/propagation"
)

// sentResponse is what a session remembers of a response.
type sentResponse struct {
	nonce    string
	version  string // SotW
	names    NameSample
	at       uint32 // Response.At
	number   number
	rejected bool
	traits   responseTraits
	// brings are the changes in the response, which the client has not answered.
	brings *propagation.Delivery
}

// number counts the responses of a session. It may overflow: of two numbers that are compared, the later one is at most
// maxUnanswered newer, or one is answered.
type number uint16

// after reports whether n is a later response than o.
func (n number) after(o number) bool { return int16(n-o) > 0 } //nolint:gosec // the overflow is intended

// short is the part of a number that a subscription to a name stores: 1 to 7.
func (n number) short() byte { return byte(n%7) + 1 }

// span is the changes of a set that went in one response: those after from, up to and including to.
type span struct {
	from, to uint64
	number   number
}

func (p *span) has(change uint64) bool { return p.from < change && change <= p.to }

// Rejection is a NACK: what the client has rejected. The client keeps what it had before.
type Rejection struct {
	// Reason is the client's own words.
	Reason string
	// At is when the NACK came, by the stream's clock.
	At uint32
	// SentAt is when the response was sent, by the stream's clock, and Version its version.
	SentAt  uint32
	Version string
	// Since is when the first of the NACKs that still count came, by the stream's clock.
	Since uint32
	// Accepted is the version of the type that the client states it has accepted last. SotW.
	Accepted string
	// Names are the names in the response.
	Names    NameSample
	response sentResponse
	spans    []rejectedSpan
	standing standing
}

// rejectedSpan is a span of a rejected response. set is nil for the group's.
type rejectedSpan struct {
	span
	set *setSub
}

// nacks are a client's rejections of a type.
type nacks struct {
	last string // the words of the last one
	// of are the newest rejections, also those that do not stand any more.
	of []*Rejection
}

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

// standing returns the newest rejection that stands, nil if there is none.
func (n *nacks) standing() *Rejection {
	for r := range n.newestFirst() {
		if r.standing.stands() {
			return r
		}
	}
	return nil
}

// standingIn returns the newest rejection that stands and has changes of a set, nil if there is none.
func (n *nacks) standingIn(set *setSub) *Rejection {
	for r := range n.newestFirst() {
		if r.standing.stands() && slices.ContainsFunc(r.spans, func(p rejectedSpan) bool { return p.set == set }) {
			return r
		}
	}
	return nil
}

// standsFor reports that a rejection of a name stands.
func (n *nacks) standsFor(name string) bool {
	for r := range n.newestFirst() {
		if slices.Contains(r.standing.names, name) {
			return true
		}
	}
	return false
}

// add adds a rejection. If there are too many, one that does not stand is forgotten, or else the oldest.
func (n *nacks) add(r *Rejection) {
	if len(n.of) == maxRejections {
		at := max(0, slices.IndexFunc(n.of, func(o *Rejection) bool { return !o.standing.stands() }))
		n.of = slices.Delete(n.of, at, at+1)
	}
	n.of = append(n.of, r)
}

// drop forgets the rejected spans that which selects.
func (n *nacks) drop(which func(*rejectedSpan) bool) {
	for r := range n.newestFirst() {
		r.spans = slices.DeleteFunc(r.spans, func(p rejectedSpan) bool { return which(&p) })
	}
}

// ofName returns the newest rejection of a rejected name, nil if it is forgotten.
func (n *nacks) ofName(name string) *Rejection {
	for r := range n.newestFirst() {
		if r.response.mayHave(name) {
			return r
		}
	}
	return nil
}

// responseTraits are flags of a response.
type responseTraits uint8

const (
	// heldSecret: the response had a secret in it.
	heldSecret responseTraits = 1 << iota
	// hadMore: more in the response was new to the client than the first of its names.
	hadMore
	// warmed: the response had Clusters that its client has to warm.
	warmed
)

func (r *sentResponse) had(t responseTraits) bool { return r.traits&t != 0 }

// mayHave reports whether a resource may have been new in the response.
func (r *sentResponse) mayHave(name string) bool {
	return r.had(hadMore) || slices.Contains(r.names.First, name)
}

// Answer is a client's answer to a response.
type Answer uint8

// The answers to a response.
const (
	NoAnswer Answer = iota
	ACKed
	NACKed
)

// NACK is a client's rejection of a response, in its own words.
// xDS: "ACK and NACK".
type NACK struct {
	TypeURL string
	Nonce   string
	Names   NameSample
	Code    codes.Code
	Reason  string
	record  *Rejection
}

// Received records when the NACK came, by the stream's clock.
func (n *NACK) Received(at uint32) {
	n.record.At = at
	if n.record.Since == 0 {
		n.record.Since = at
	}
}

// accepted records the version that the client states it has accepted last. SotW.
func (n *NACK) accepted(version string) *NACK {
	if n != nil {
		n.record.Accepted = loglines.Clip(version)
	}
	return n
}

// WordsWithheld replaces a client's words that may hold a secret.
const WordsWithheld = "(the client's words are not shown, as they may hold a secret)"
