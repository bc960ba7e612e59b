package session

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// What requests of both forms have in common.

// answer is an ACK or NACK to be sent.
type answer struct {
	nonce   string
	version string // SotW: the last accepted, this one's if this is an ACK
	nack    string // the reasons; empty in an ACK
}

// size returns the approximate memory of an answer, in bytes.
func (a *answer) size() int {
	const overhead = 64
	return overhead + len(a.nonce) + len(a.version) + len(a.nack)
}

// errorDetail returns the error_detail of a NACK, nil for an ACK. xDS: "NACK".
func (a *answer) errorDetail() *status.Status {
	if a.nack == "" {
		return nil
	}
	return &status.Status{Code: int32(codes.InvalidArgument), Message: a.nack}
}

// Rejection is the news that clients reject the newest response of a type.
type Rejection struct {
	Clients int    // how many reject it
	Reason  string // the words of one of them
	Words   string // for the NACK
	// By are those who reject it, for a control plane that is a relay.
	By chain.Rejecters
}

// passedOn is the last Rejection of which the control plane was sent a NACK.
type passedOn struct {
	nonce, version string // of the response; version only in SotW
	clients, whos  int
	reason         string
}

// growth is how many times as many clients must reject a response before the control plane is sent another NACK of it.
// For a relay, which weighs those behind the clients, growthOfWhos times as many of these are enough.
const growth, growthOfWhos = 4, 2

// admit reports whether the control plane is to be sent a NACK of the newest response, and records it.
func (p *passedOn) admit(nonce, version string, r Rejection) bool {
	same := nonce == p.nonce || version != "" && version == p.version && r.Reason == p.reason
	grown := r.Clients >= growth*p.clients || len(r.By.Whos) > 0 && len(r.By.Whos) >= growthOfWhos*p.whos
	if nonce == "" || same && !grown {
		return false
	}
	*p = passedOn{nonce, version, r.Clients, len(r.By.Whos), r.Reason}
	return true
}

// locator returns a name with parameters. It returns nil if there are none, as then the name
// alone is requested. xDS: TP2, resource_locators.
func locator(name string, params cache.Params) *discoveryv3.ResourceLocator {
	if params == nil {
		return nil
	}
	return &discoveryv3.ResourceLocator{Name: name, DynamicParameters: params}
}

// sizeMessage is the length of a message in a request.
func sizeMessage(m proto.Message) int {
	return wire.SizeBytes(proto.Size(m))
}
