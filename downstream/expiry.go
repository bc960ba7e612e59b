package downstream

import (
	"context"
	"log/slog"
	"time"

	"github.com/xds-relay/xds-relay/identity"
)

// Clients whose certificate or token expires while they have a stream.

// expires records when the certificate of the stream's client expires, and ends the stream at that time, unless it is a
// request that is answered once. stop undoes that. stop is nil if nothing expires.
func (st *stream) expires(g *gate) (stop func()) {
	if !canExpire(st.identity) {
		return nil
	}
	once := st.form == formUnary || st.form == formREST // its wait ends then, and it is answered
	return g.expires(st.identity, once, st.expire)
}

func canExpire(id *identity.Identity) bool {
	return id != nil && !(id.Expires.IsZero() && id.Ends.At.IsZero())
}

// expires is stream.expires for a stream whose client is id: expire ends the stream.
func (g *gate) expires(id *identity.Identity, once bool, expire func()) (stop func()) {
	if !canExpire(id) {
		return nil
	}
	var noted *expiry
	if g.expiries != nil && !id.Expires.IsZero() {
		noted = g.expiries.add(id.Expires)
	}
	var timer *time.Timer
	if !id.Ends.At.IsZero() && !once {
		timer = time.AfterFunc(time.Until(id.Ends.At), expire)
	}
	return func() {
		if timer != nil {
			timer.Stop()
		}
		if noted != nil {
			g.expiries.remove(noted)
		}
	}
}

// expire ends the stream, because its client's certificate or token has expired, or is about to.
func (st *stream) expire() {
	st.mu.Lock()
	client := st.client()
	st.mu.Unlock()
	st.byRelay.Store(true)
	st.server.expire(st.grpc.Context(), st.gate, st.identity, st.server.options.Log.With("stream", st.id, "client", client))
}

// expire ends a stream with this context, because its client's certificate or token has expired, or is about to.
func (s *Server) expire(ctx context.Context, g *gate, id *identity.Identity, log *slog.Logger) {
	why := &identity.RefusedError{Reason: id.Ends.Because, Message: id.Ends.Because.Ended()}
	s.stats.clientsRefused[why.Reason].Add(1)
	if log, ok := g.line(eventExpired, log); ok {
		log.Info("stream of a client ends: its certificate or token has expired, or expires soon",
			"identity", id.String(), "refused", why.Reason.String())
	}
	if why.Reason == identity.CertificateExpired {
		sendAway(ctx)
	}
	finish(ctx, why)
}

// sendAway has a gRPC client open its next stream on another connection. On the connection of the call with this
// context, the client cannot present another certificate.
func sendAway(ctx context.Context) {
	if conn := connOf(ctx); conn != nil {
		if g := conn.goAway.Load(); g != nil {
			g.want()
		}
	}
}
