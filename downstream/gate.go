package downstream

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"strconv"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Enforcing limits: what the relay refuses to a listener, a stream or a request, and what the operator sees of it.

// turnedAwayEvery is how often the relay logs that it turns streams away.
const turnedAwayEvery = time.Minute

// NewDoor returns the door of a listener, for ListenerOptions.Door.
func NewDoor(o ListenerOptions) *Door {
	d := &Door{turnedAway: rate.Sometimes{Interval: turnedAwayEvery}}
	d.Set(o)
	return d
}

// Set changes the settings for streams. They apply to new streams, and SecretsForAnyone also to open ones, at the next
// [Server.Reconfigure].
func (d *Door) Set(o ListenerOptions) {
	o.Door = d
	d.newest.Store(newGate(o))
}

func newGate(o ListenerOptions) *gate {
	g := &gate{
		limits: o.Limits, perIdentity: o.PerIdentity, responses: o.MaxResponseBytes, passes: o.PassRedirects, peers: o.Peers,
		secretsForAnyone: o.SecretsForAnyone, longPoll: o.LongPoll,
		unreachable: o.WhenUnreachable, identify: o.Identify, admits: o.Admits, names: o.Names, relays: o.Relays, expiries: o.Expiries, door: o.Door,
		admission: newAdmission(o.Admission), prefetch: o.Prefetch,
	}
	if g.door == nil {
		g.door = &Door{turnedAway: rate.Sometimes{Interval: turnedAwayEvery}}
		g.door.newest.Store(g)
	}
	return g
}

// admit applies the limits to a stream that was opened at the gate.
func (g *gate) admit(st *stream) {
	if g.peers {
		st.server.peers.Add(1)
	}
	st.limits, st.passes, st.unreachable = &g.limits, g.passes, g.unreachable
	st.maxResponse = cmp.Or(int32(min(g.responses, math.MaxInt32)), st.maxResponse)
}

// enter counts a new stream until leave. It returns the excess if it is one too many.
func (g *gate) enter() *excess {
	n := g.door.streams.Add(1)
	e := over(limitStreams, int(n), g.limits.Streams, "%d open streams on this listener")
	if e != nil {
		g.leave()
	}
	return e
}

func (g *gate) leave() { g.door.streams.Add(-1) }

// turnAway records that a stream could not enter, and returns why.
func (s *Server) turnAway(g *gate, stream grpc.ServerStream, e *excess) error {
	s.stats.limits[e.limit].Add(1)
	s.slowDown(stream.Context(), nil)
	g.door.turnedAway.Do(func() { logExcess(s.options.Log.With("client", addressOf(stream.Context())), e) })
	return e
}

// refuse records that the client exceeded a limit, and returns the excess as the error that ends its stream.
func (st *stream) refuse(e *excess) error {
	st.server.stats.limits[e.limit].Add(1)
	st.server.slowDown(st.grpc.Context(), st.identity)
	if log, ok := st.gate.line(eventLimit, st.logger()); ok {
		logExcess(log, e)
	}
	return e
}

// refuseName records that the client was refused a name. Its stream goes on. The caller holds mu.
func (st *stream) refuseName(e *excess) {
	st.server.stats.limits[e.limit].Add(1)
	if !st.namesRefused {
		st.namesRefused = true
		if log, ok := st.gate.line(eventNameRefused, st.logger()); ok {
			log.Warn("client is refused names because of a limit", "limit", e.limit.String(), "max", e.most)
		}
	}
}

// refuseNotRequested records that the relay does not request a name of the client, because a request to the control
// plane has no room for it. The caller holds mu and the topics: logNotRequested follows.
func (st *stream) refuseNotRequested(why *cache.Error) {
	if !st.namesNotRequested {
		st.namesNotRequested, st.seldomUsed().notRequestedWhy = true, why
	}
}

// logNotRequested logs the first refusal of refuseNotRequested on the stream. The caller holds mu.
func (st *stream) logNotRequested() {
	if st.seldom == nil || st.seldom.notRequestedWhy == nil {
		return
	}
	if log, ok := st.gate.line(eventNameRefused, st.logger()); ok {
		log.Warn("client is refused names because of a limit", "limit", limitRequestBytes.String(), "reason", st.seldom.notRequestedWhy.Message)
	}
	st.seldom.notRequestedWhy = nil
}

// refuseRequest is refuse for a request that has no stream yet. client is the client's address.
func (s *Server) refuseRequest(g *gate, client string, e *excess) error {
	s.stats.limits[e.limit].Add(1)
	if log, ok := g.line(eventLimit, s.options.Log.With("client", client)); ok {
		logExcess(log, e)
	}
	return e
}

// farTooLong records that gRPC has refused a request for its length, which is not known here.
func (s *Server) farTooLong(g *gate, log *slog.Logger, err error) {
	if log, ok := g.line(eventLimit, log); ok {
		log.Warn("client went over a limit, and is refused", "limit", limitRequestBytes.String(), "reason", status.Convert(err).Message())
	}
	s.stats.limits[limitRequestBytes].Add(1)
}

// slowDown delays the next reads on the connection of a refused stream, if too many streams of its client's identity
// were refused. id is nil if that is not known.
func (s *Server) slowDown(ctx context.Context, id *identity.Identity) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	addr, ok := p.Addr.(*limitedAddr)
	if !ok {
		return
	}
	now := time.Now()
	if wait, _ := s.refusals.take(identityKeyOf(ctx, id), maxRefusedStreams, now); wait > 0 {
		addr.conn.readAfter(now.Add(min(wait, mostIdentityWait)), limitRefusedStreams)
	}
}

// joinIdentity counts a stream for its client's identity until leaveIdentity. It returns the excess if it is one too
// many.
func (s *Server) joinIdentity(ctx context.Context, g *gate, id *identity.Identity) (*identityUse, *excess) {
	l := &g.perIdentity
	if l.Scopes == 0 && l.Types == 0 && l.Streams == 0 && l.Subscriptions == 0 && g.limits.MemoryNames == 0 {
		return nil, nil
	}
	return s.identities.join(identityKeyOf(ctx, id), l.Streams)
}

func (s *Server) leaveIdentity(u *identityUse) {
	if u != nil {
		s.identities.leave(u)
	}
}

// paceIdentity waits until a request that gets one answer may be processed. The error, a gRPC status, is why it may not
// be processed.
func (s *Server) paceIdentity(ctx context.Context, g *gate, id *identity.Identity) error {
	most := g.perIdentity.RequestsPerSecond
	if most == 0 {
		return nil
	}
	wait, refused := s.paces.take(identityKeyOf(ctx, id), most, time.Now())
	switch {
	case refused:
		return s.refuseRequest(g, addressOf(ctx), &excess{
			limit: limitIdentityRequests, got: int(wait.Milliseconds()), most: most,
			what: "a request that would have to wait for %d ms, because of this identity's other requests",
		})
	case wait == 0:
		return nil
	}
	s.stats.limits[limitIdentityRequests].Add(1)
	if log, ok := g.line(eventPaced, s.options.Log.With("client", addressOf(ctx))); ok {
		log.Warn(fasterThanRead, "limit", limitIdentityRequests.String(), "max", most)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// admitStream waits until a stream is admitted. The error is the status with which the stream ends if it is not.
func (s *Server) admitStream(g *gate, in *arrival) error {
	stream, ctx := in.grpc, in.grpc.Context()
	why := g.admission.admit(ctx, &in.room, in.party, &s.stats.admission)
	switch {
	case why == nil:
		in.place = &in.room
		return nil
	case why.refusal == numAdmissionRefusals:
		return ctx.Err()
	}
	s.stats.admission.refused[why.refusal].Add(1)
	s.slowDown(ctx, in.identity)
	if log, ok := g.line(eventNotAdmitted, s.options.Log); ok {
		log.Warn("client's stream is not admitted", "client", addressOf(ctx), "refused", why.refusal.String(), "reason", why.text)
	}
	// gRFC A6: "Pushback".
	stream.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(why.retry.Milliseconds(), 10)))
	return why
}

func logExcess(log *slog.Logger, e *excess) {
	log.Warn("client went over a limit, and is refused", "limit", e.limit.String(), "max", e.most, "asked", e.got)
}

// check checks a request against the limits before anything of it is processed. The caller holds mu.
func check[R request, S typeSession](st *stream, f form[R, S], typeURL string, sess S, req R) *excess {
	if e := over(limitNameBytes, f.longest(req), st.limits.NameBytes, "a name of %d bytes"); e != nil {
		return e
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

// checkParameters checks the number of different dynamic parameters of a type against the limit.
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

// checkPendingNames checks the names that wait to be sent against the limits, after a request. Names from which the client
// has unsubscribed, and that still need an answer, are limited by the number of names that it may subscribe to. The caller
// holds mu.
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

// enterType counts a type of the stream for its client's identity until leaveType. The types that the relay knows are
// few, and do not count.
func (st *stream) enterType(typeURL string) *excess {
	if st.uses == nil || xdstype.Of(typeURL) != xdstype.Other {
		return nil
	}
	return st.uses.enterType(typeURL, st.gate.perIdentity.Types)
}

func (st *stream) leaveType(typeURL string) {
	if st.uses != nil && xdstype.Of(typeURL) == xdstype.Other {
		st.uses.leaveType(typeURL)
	}
}

// line returns the logger for a line about a client, false if there were too many lines.
func (g *gate) line(e event, log *slog.Logger) (_ *slog.Logger, ok bool) {
	if g == nil { // without a listener
		return log, true
	}
	return g.door.lines[e].Next(log)
}
