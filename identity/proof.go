package identity

import (
	"context"
	"net"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Header is the metadata key and HTTP header of bearer tokens.
const Header = "authorization"

// Proof is the evidence that a client has sent: on its connection, in Peer.AuthInfo, and with the call or request, in
// Authorization.
type Proof struct {
	Peer *peer.Peer // nil if the connection is not known
	// Authorization has the values of that metadata key or header.
	Authorization []string
}

// ProofOf returns the proof of the client whose gRPC call has this context.
func ProofOf(ctx context.Context) Proof {
	p, _ := peer.FromContext(ctx)
	return Proof{Peer: p, Authorization: metadata.ValueFromIncomingContext(ctx, Header)}
}

// Connection returns the identity that the client's connection proves: by a certificate, by a unix socket, or none.
func (p Proof) Connection() *Identity {
	var address net.Addr
	if p.Peer != nil {
		address = p.Peer.Addr
	}
	id := &Identity{Source: None, Local: isLocalPeer(p.Peer)}
	if uid, ok := uidOf(address); ok {
		id.Source, id.UID = Unix, &uid
	}
	id.addCertificate(p.chains())
	return id
}

var errTokens = &RefusedError{
	Reason:  InvalidToken,
	Message: "the client has sent several tokens (want one)",
	Detail:  "several values of authorization",
}

var errEmptyToken = &RefusedError{
	Reason:  InvalidToken,
	Message: "the client's token is empty (want authorization: Bearer TOKEN)",
	Detail:  "authorization has no token",
}

// Token returns the bearer token that the client has sent, "" if none. RFC 6750: "Authorization Request Header
// Field". It ignores other schemes.
func (p Proof) Token() (string, error) {
	token, found := "", false
	for _, value := range p.Authorization {
		scheme, of, _ := strings.Cut(value, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			continue
		}
		if found {
			return "", errTokens
		}
		token, found = strings.TrimSpace(of), true
	}
	if found && token == "" {
		return "", errEmptyToken
	}
	return token, nil
}
