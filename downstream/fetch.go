package downstream

import (
	"cmp"
	"context"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// Requests that are answered once: the Fetch methods, and REST. Each is a stream with one SotW session and one request.
// It is answered as soon as there is something that the client does not have, or when the wait is over.
// xDS: "REST-JSON polling subscriptions".

// fetch answers a request. It waits up to hold, or less if ctx has a deadline, for something that the client does not
// have. If there is none, the response is nil. The error is a gRPC status. The caller has entered the gate.
func (s *Server) fetch(ctx context.Context, g *gate, id *identity.Identity, form, implied string, req *discoveryv3.DiscoveryRequest, hold time.Duration) (*session.Response, error) {
	if deadline, ok := ctx.Deadline(); ok {
		hold = min(hold, beforeDeadline(time.Until(deadline)))
	}
	uses, e := s.joinIdentity(ctx, g, id)
	if e != nil {
		return nil, s.refuseRequest(g, addressOf(ctx), e)
	}
	defer s.leaveIdentity(uses)
	st := s.openAt(g, noStream{ctx: ctx}, id, form, implied)
	defer s.forget(st)
	defer st.end()
	st.uses, st.limits, st.passes = uses, &g.limits, g.passes
	if stop := st.expires(g); stop != nil {
		defer stop()
		if ends := id.Ends.At; !ends.IsZero() {
			hold = min(hold, max(0, time.Until(ends)))
		}
	}
	away, joined := ctx.Value(awayKey{}).(wakeups)
	if !joined {
		var leave func()
		away, leave = joinFetch(ctx)
		defer leave()
	}
	woken := make(wakeups, 1)
	st.inbox.waker = woken
	st.inbox.wake()
	if _, err := accept(st, fetchForm, req, wire.Peeked{}); err != nil {
		return nil, err
	}
	poll, _ := st.sessions[0].(*session.Poll)
	over := time.NewTimer(hold)
	defer over.Stop()
	for {
		if why := st.refusedWildcard(poll); why != nil {
			return nil, status.Error(why.Code, why.Message)
		}
		if r := st.next(); r != nil {
			s.stats.responses.Add(1)
			r.Delivered(nil)
			return r, nil
		}
		if over, err := st.unanswered(poll); over {
			return nil, err
		}
		if !st.inbox.sleep() {
			continue
		}
		select {
		case <-woken:
			continue
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-s.ending:
		case <-away:
		case <-over.C:
		}
		poll.GiveUp() // nobody else uses it
	}
}

// refusedWildcard returns why the wildcard that a request asks for is refused; nil if it is not. A new configuration
// may change that.
func (st *stream) refusedWildcard(poll *session.Poll) *cache.Error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return poll.RefusedWildcard()
}

// awayKey is the context key of the wakeups that end the wait of a request when its client is sent away.
type awayKey struct{}

// joinFetch ends the wait of a request that is answered once when its client is sent away, until leave.
func joinFetch(ctx context.Context) (away wakeups, leave func()) {
	away = make(wakeups, 1)
	leave, err := joinConn(ctx, func(error) { away.Wake() })
	if err != nil {
		away.Wake() // the last answer on the connection has no time to wait
		return away, func() {}
	}
	return away, leave
}

// unanswered reports whether a request ends without a response, and with which error. The error is nil if its client
// keeps what it has. A new configuration may change the session concurrently.
func (st *stream) unanswered(poll *session.Poll) (over bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if why := poll.Denial(); why != nil {
		return true, status.Error(why.Code, why.Message)
	}
	if !poll.GaveUp() {
		return false, nil
	}
	if why := poll.WhyUnanswered(st.form != formUnary); why != "" {
		return true, status.Error(codes.Unavailable, why)
	}
	return true, nil
}

// EndPolls ends the waits of requests that are answered once, as if their time were over, and the waits of all later
// ones.
func (s *Server) EndPolls() { s.endPolls() }

// beforeDeadline returns how long to wait so that the answer still reaches a client with that patience.
func beforeDeadline(patience time.Duration) time.Duration {
	return max(0, patience-min(patience/5, time.Second))
}

// unary serves a Fetch method. There are no interceptors.
func unary(s *Server, d *Door, implied string) func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
	return func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		g := d.newest.Load()
		if e := g.enter(); e != nil {
			return nil, s.turnAway(g, noStream{ctx: ctx}, e)
		}
		defer g.leave()
		id, err := s.identify(ctx, g)
		if err == nil {
			err = s.paceIdentity(ctx, g, id)
		}
		if err != nil {
			return nil, err
		}
		var in incoming
		if err := decode(&in); err != nil {
			if status.Code(err) == codes.ResourceExhausted {
				s.farTooLong(g, s.options.Log.With("client", addressOf(ctx)), err)
			}
			return nil, err
		}
		if !s.turn(ctx, id, &in) {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		if e := in.excess(); e != nil {
			return nil, s.refuseRequest(g, addressOf(ctx), e)
		}
		req, err := s.decodeUnary(ctx, g, &in)
		if err != nil {
			return nil, err
		}
		r, err := s.fetch(ctx, g, id, formUnary, implied, req, g.longPoll)
		if err != nil {
			return nil, err
		}
		if r == nil {
			version := req.GetVersionInfo()
			r = &session.Response{TypeURL: cmp.Or(req.GetTypeUrl(), implied), Version: version, Nonce: version}
		}
		return r, nil
	}
}

// decodeUnary decodes the request of a Fetch method.
func (s *Server) decodeUnary(ctx context.Context, g *gate, in *incoming) (*discoveryv3.DiscoveryRequest, error) {
	defer in.free()
	data := in.data.ReadOnlyData()
	if e := g.limits.overCost(wire.SotWRequest.Cost(data, nodeLimits)); e != nil {
		return nil, s.refuseRequest(g, addressOf(ctx), e)
	}
	req := new(discoveryv3.DiscoveryRequest)
	used, err := decodeRequest(&wire.SotWRequest, data, req, &s.known)
	req.ResourceNames = slices.Clone(req.GetResourceNames()) // it is kept while the request waits
	recycleNames(used)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the request cannot be decoded: %v", err)
	}
	return req, nil
}

// wakeups implements cache.Waker for one waiting goroutine.
type wakeups chan struct{}

// Wake implements cache.Waker.
func (w wakeups) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

var fetchForm = form[*discoveryv3.DiscoveryRequest, *session.Poll]{
	newSession: session.NewPoll,
	take:       (*session.Poll).Request,
	names:      sotwNames,
	longest:    longestInSotW,
	locators:   (*discoveryv3.DiscoveryRequest).GetResourceLocators,
	resumed:    func(r *discoveryv3.DiscoveryRequest) bool { return r.GetVersionInfo() != "" },
	subscribed: (*session.Poll).SubscribedWith,
}
