package downstream

import (
	"context"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/loglines"
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
		return c, loopStatus(err)
	}
	return c, nil
}

func loopStatus(err error) error { return status.Error(codes.FailedPrecondition, err.Error()) }

// proven returns the part of a client's chain that counts for others. The chain goes into the stream upstream, which the
// client shares, so it counts only if the client is a relay by its identity.
func (st *stream) proven(c chain.Chain) chain.Chain {
	if g := st.gate; c.Relay && g != nil {
		if relays := g.door.newest.Load().relays; relays != nil && !relays(st.identity) {
			return chain.Chain{}
		}
	}
	return c
}

// rejecters returns who has rejected a response, and in which words, if the client is a relay that speaks for others.
func (st *stream) rejecters(words string) (chain.Rejecters, string) {
	if !st.isRelay() {
		return chain.Rejecters{}, words
	}
	return chain.CutRejecters(words)
}

// isRelay reports whether the client is a relay by its identity and says so.
func (st *stream) isRelay() bool {
	return st.sessionClient.Relay && st.proven(chain.Chain{Relay: true}).Relay
}

// relayName returns a text that tells relays with one certificate apart, empty if the client is no relay.
func (st *stream) relayName() string {
	id := metadata.ValueFromIncomingContext(st.grpc.Context(), chain.IDHeader)
	if len(id) != 1 || len(id[0]) > 3*chain.MaxIDBytes || !st.isRelay() {
		return ""
	}
	return " relay " + id[0]
}

// endLoop ends the stream, because a control plane has found a loop of relays that goes through its client.
func (st *stream) endLoop(why error) {
	text := loglines.Clip(why.Error())
	if log, ok := st.gate.line(eventLoop, st.logger()); ok {
		log.Warn("client's stream ends, because the control plane is a relay behind it", "reason", text)
	}
	st.byRelay.Store(true)
	finish(st.grpc.Context(), status.Error(codes.FailedPrecondition, text))
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
