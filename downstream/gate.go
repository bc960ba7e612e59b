package downstream

import (
	"cmp"
	"log/slog"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// Limits at work: what a listener, a stream or a request is refused, and what the operator sees of it.

// turnedAwayEvery is how often the relay logs that streams are turned away.
const turnedAwayEvery = time.Minute

func newGate(o ListenerOptions) *gate {
	g := &gate{
		limits: o.Limits, perIdentity: o.PerIdentity, responses: o.MaxResponseBytes, passes: o.PassRedirects,
		secretsForAnyone: o.SecretsForAnyone, longPoll: o.LongPoll,
		unreachable: o.WhenUnreachable, identify: o.Identify, admits: o.Admits, expiries: o.Expiries, door: o.Door,
		admission: newAdmission(o.Admission),
	}
	if g.door == nil {
		g.door = &Door{turnedAway: rate.Sometimes{Interval: turnedAwayEvery}}
		g.door.newest.Store(g)
	}
	return g
}

// admit has a stream kept to the limits.
func (g *gate) admit(st *stream) {
	st.gate = g
	st.limits, st.passes, st.unreachable = &g.limits, g.passes, g.unreachable
	st.maxResponse = cmp.Or(g.responses, st.maxResponse)
}

// enter counts a new stream, which leave has to follow, unless it is one too many.
func (g *gate) enter() *excess {
	n := g.door.streams.Add(1)
	e := over(limitStreams, int(n), g.limits.Streams, "%d open streams on this listener")
	if e != nil {
		g.leave()
	}
	return e
}

func (g *gate) leave() { g.door.streams.Add(-1) }

// turnAway notes that a stream could not enter, and returns why.
func (s *Server) turnAway(g *gate, stream grpc.ServerStream, e *excess) error {
	s.stats.limits[e.limit].Add(1)
	s.slowDown(stream.Context(), nil)
	g.door.turnedAway.Do(func() { logExcess(s.options.Log.With("client", addressOf(stream.Context())), e) })
	return e
}

// refuse notes that the client went over a limit, and returns the excess as the
// error that ends its stream.
func (st *stream) refuse(e *excess) error {
	st.server.stats.limits[e.limit].Add(1)
	st.server.slowDown(st.grpc.Context(), st.identity)
	if log, ok := st.gate.line(eventLimit, st.logger()); ok {
		logExcess(log, e)
	}
	return e
}

// refuseName notes that the client was refused a name, which does not end its stream. The
// caller holds mu.
func (st *stream) refuseName(e *excess) {
	st.server.stats.limits[e.limit].Add(1)
	if !st.namesRefused {
		st.namesRefused = true
		if log, ok := st.gate.line(eventNameRefused, st.logger()); ok {
			log.Warn("client is refused names, for a limit", "limit", e.limit.String(), "max", e.most)
		}
	}
}

// refuseNotRequested notes that a name of the client's is not requested, because a request to the
// control plane has no room for it. The caller holds mu and the topics: logNotRequested follows.
func (st *stream) refuseNotRequested(why *cache.Error) {
	if !st.namesNotRequested {
		st.namesNotRequested, st.notRequestedWhy = true, why
	}
}

// logNotRequested logs the first refusal of refuseNotRequested on the stream. The caller holds mu.
func (st *stream) logNotRequested() {
	if st.notRequestedWhy == nil {
		return
	}
	if log, ok := st.gate.line(eventNameRefused, st.logger()); ok {
		log.Warn("client is refused names, for a limit", "limit", limitRequestBytes.String(), "reason", st.notRequestedWhy.Message)
	}
	st.notRequestedWhy = nil
}

// refuseRequest is refuse for a request that has no stream yet. client is its
// address.
func (s *Server) refuseRequest(g *gate, client string, e *excess) error {
	s.stats.limits[e.limit].Add(1)
	if log, ok := g.line(eventLimit, s.options.Log.With("client", client)); ok {
		logExcess(log, e)
	}
	return e
}

// farTooLong notes that gRPC has refused a request for its length, which is not
// known here.
func (s *Server) farTooLong(g *gate, log *slog.Logger, err error) {
	if log, ok := g.line(eventLimit, log); ok {
		log.Warn("client went over a limit, and is refused", "limit", limitRequestBytes.String(), "reason", status.Convert(err).Message())
	}
	s.stats.limits[limitRequestBytes].Add(1)
}

func logExcess(log *slog.Logger, e *excess) {
	log.Warn("client went over a limit, and is refused", "limit", e.limit.String(), "max", e.most, "asked", e.got)
}

// check holds a request against the limits before anything of it is done. The
// caller holds mu.
func check[R request, S typeSession](st *stream, f form[R, S], typeURL string, sess S, req R) *excess {
	for name := range f.names(req) {
		if e := over(limitNameBytes, len(name), st.limits.NameBytes, "a name of %d bytes"); e != nil {
			return e
		}
	}
	if e := checkParameters(sess, f.locators(req)); e != nil {
		return e
	}
	if st.limits.Subscriptions == 0 {
		return nil
	}
	others := 0
	for _, s := range st.sessions {
		if s.TypeURL() != typeURL {
			others += s.Subscribed()
		}
	}
	n := others + f.subscribed(sess, req, st.limits.Subscriptions-others)
	return over(limitSubscriptions, n, st.limits.Subscriptions, "%d names subscribed to on this stream")
}

// checkParameters holds the different dynamic parameters of a type against the
// limit.
func checkParameters(sess typeSession, locators []*discoveryv3.ResourceLocator) *excess {
	if len(locators) == 0 {
		return nil
	}
	n := len(sess.Parameters())
	added := map[string]struct{}{}
	for _, l := range locators {
		params := paramsOf(l)
		if _, there := sess.Parameters()[params]; !there {
			added[params] = struct{}{}
		}
	}
	return over(limitParameters, n+len(added), maxParameters, "%d different dynamic parameters of one type")
}

// checkPendingNames holds what is kept to be sent against the limits, after a request: of names from
// which the client has unsubscribed, as many as it may subscribe to. The caller holds mu.
func (st *stream) checkPendingNames() *excess {
	n := 0
	for _, s := range st.sessions {
		n += s.Pending()
	}
	if e := over(limitPendingNames, n, maxPendingNames, "%d names to be answered, but the client does not read, or a control plane does not answer"); e != nil || st.limits.Subscriptions == 0 {
		return e
	}
	n = 0
	for _, s := range st.sessions {
		n += s.Unsubscribed()
	}
	return over(limitSubscriptions, n, st.limits.Subscriptions, "%d names unsubscribed from on this stream and still to be answered")
}

// line returns the logger for a line about a client, false if there are too many.
func (g *gate) line(e event, log *slog.Logger) (_ *slog.Logger, ok bool) {
	if g == nil { // of no listener
		return log, true
	}
	return g.door.lines[e].Next(log)
}
