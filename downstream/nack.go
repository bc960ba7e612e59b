package downstream

import (
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
)

// sentResponse is what a session remembers of its newest response.
type sentResponse struct {
	nonce string
	names nameList
}

func (s *sentResponse) note(r *response) { s.nonce, s.names = r.nonce, r.names }

func (s *sentResponse) is(nonce string) bool { return s.nonce != "" && s.nonce == nonce }

// nack is a client's rejection of a response, in its own words.
// xDS: "ACK and NACK".
type nack struct {
	typeURL string
	nonce   string
	names   nameList
	code    int32
	message string
}

func (s *sentResponse) rejected(typeURL string, detail *statuspb.Status) *nack {
	return &nack{typeURL: typeURL, nonce: s.nonce, names: s.names, code: detail.GetCode(), message: detail.GetMessage()}
}
