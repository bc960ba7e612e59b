package session

import (
	"github.com/xds-relay/xds-relay/loglines"
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
	rejected bool
	secret   bool // there was a secret in it
}

// NACK is a client's rejection of a response, in its own words.
// xDS: "ACK and NACK".
type NACK struct {
	TypeURL string
	Nonce   string
	Names   NameSample
	Code    codes.Code
	Reason  string
}

// reject takes a client's rejection of a response. It returns nil if it has
// rejected that response before. The client is taken to hold what it held before, and the
// resource is sent again only when it changes. The control plane does not hear of it.
func (s *subscriptions) reject(r *sentResponse, detail *statuspb.Status) *NACK {
	if r.rejected {
		return nil
	}
	r.rejected = true
	s.rejection = secrets.Words(loglines.Clip(detail.GetMessage()))
	if r.secret || xdstype.Of(s.typeURL) == xdstype.Secret {
		// A client may quote what it rejects.
		s.rejection = "(the client's words are not shown, as they may hold a secret)"
	}
	return &NACK{TypeURL: s.typeURL, Nonce: r.nonce, Names: r.names, Code: codes.Code(detail.GetCode()), Reason: s.rejection}
}
