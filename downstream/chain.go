package downstream

import (
	"context"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/identity"
)

// Clients that are relays. The relay refuses a client whose requests have already passed through this relay: that would
// be a loop.

// through returns the relays through which the client's requests pass.
func (st *stream) through() (chain.Chain, error) {
	c, err := chain.Parse(metadata.ValueFromIncomingContext(st.grpc.Context(), chain.Header))
	if err != nil {
		return c, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := c.Check(*st.server.relayID.Load()); err != nil {
		return c, status.Error(codes.FailedPrecondition, err.Error())
	}
	return c, nil
}

// withHeaders adds the headers of an HTTP request to its context as gRPC metadata.
func withHeaders(ctx context.Context, h http.Header) context.Context {
	md := metadata.MD{}
	for _, key := range []string{chain.Header, identity.Header} {
		if values := h.Values(key); len(values) > 0 {
			md[key] = values
		}
	}
	if len(md) == 0 {
		return ctx
	}
	return metadata.NewIncomingContext(ctx, md)
}
