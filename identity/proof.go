package identity

import (
	"context"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Header is the metadata, and the HTTP header, of bearer tokens.
const Header = "authorization"

// Proof is what a client has shown: on its connection, in Peer.AuthInfo, and with the call or
// request, in Authorization.
type Proof struct {
	Peer *peer.Peer // nil if the connection is not known
	// Authorization are the values of the header, or metadata, of that name.
	Authorization []string
}

// ProofOf returns what the client has shown whose gRPC call has that context.
func ProofOf(ctx context.Context) Proof {
	p, _ := peer.FromContext(ctx)
	return Proof{Peer: p, Authorization: metadata.ValueFromIncomingContext(ctx, Header)}
}

// Anonymous returns the identity of a client that has shown p, none of which proves anything.
func (p Proof) Anonymous() *Identity {
	if p.Peer == nil {
		return Anonymous(nil)
	}
	return Anonymous(p.Peer.Addr)
}
