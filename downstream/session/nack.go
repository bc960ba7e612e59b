package session

import (
	"slices"

	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/propagation"
	"github.com/xds-relay/xds-relay/secrets"
	"github.com/xds-relay/xds-relay/xdstype"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
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
	// brings are the changes that the client has with it, and has not answered.
	brings *propagation.List
}

// responseTraits are what is true of a response.
type responseTraits uint8

const (
	// heldSecret: there was a secret in it.
	heldSecret responseTraits = 1 << iota
	// hadMore: there was more in it that was new to the client than the first of its names.
	hadMore
)

func (r *sentResponse) had(t responseTraits) bool { return r.traits&t != 0 }

// mayHave reports whether a resource may have been new in the response.
func (r *sentResponse) mayHave(name string) bool {
	return r.had(hadMore) || slices.Contains(r.names.First, name)
}

// Answer is how a client has answered a response.
type Answer uint8

// The answers to a response.
const (
	NoAnswer Answer = iota
	ACKed
	NACKed
)

// LastAnswer returns the client's answer to the newest response that it has answered; NoAnswer before the first.
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

// Received says when the NACK came, by the stream's clock.
func (n *NACK) Received(at uint32) { n.record.At = at }

// reject takes a client's rejection of a response. It returns nil if it has
// rejected that response before. The client is taken to hold what it held before, and the
// resource is sent again only when it changes. The control plane does not hear of it.
func (s *subscriptions) reject(r *sentResponse, detail *statuspb.Status) *NACK {
	if r.rejected {
		return nil
	}
	r.rejected = true
	r.answered((*propagation.List).NotACKed)
	words := secrets.Words(loglines.Clip(detail.GetMessage()))
	if r.had(heldSecret) || xdstype.Of(s.typeURL) == xdstype.Secret {
		// A client may quote what it rejects.
		words = "(the client's words are not shown, as they may hold a secret)"
	}
	return &NACK{TypeURL: s.typeURL, Nonce: r.nonce, Names: r.names, Code: codes.Code(detail.GetCode()), Reason: words, record: s.noteRejection(r, words)}
}
