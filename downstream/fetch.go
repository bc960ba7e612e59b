package downstream

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
)

// Requests that are answered once: the Fetch methods, and REST. Each is a stream
// with one SotW session and one request, which is answered as soon as there is
// something that the client does not have, or when the wait for that is over.
// xDS: "REST-JSON polling subscriptions".

// What an operator sees in the place of a stream's form.
const (
	formUnary = "unary"
	formREST  = "rest"
)

// fetch answers a request. It waits for up to hold, and less if ctx has a
// deadline, for something that the client does not have; after that the response
// is nil. The error is a gRPC status.
func (s *Server) fetch(ctx context.Context, g *gate, form, implied string, req *discoveryv3.DiscoveryRequest, hold time.Duration) (*response, error) {
	if e := g.enter(); e != nil {
		return nil, s.turnAway(g, noStream{ctx: ctx}, e)
	}
	defer g.leave()
	return s.fetchEntered(ctx, g, form, implied, req, hold)
}

// fetchEntered is fetch for who has entered the gate.
func (s *Server) fetchEntered(ctx context.Context, g *gate, form, implied string, req *discoveryv3.DiscoveryRequest, hold time.Duration) (*response, error) {
	if deadline, ok := ctx.Deadline(); ok {
		hold = min(hold, beforeDeadline(time.Until(deadline)))
	}
	st := s.open(noStream{ctx: ctx}, form, implied)
	defer s.forget(st)
	defer st.end()
	st.gate, st.limits, st.passes = g, g.limits, g.passes
	woken := make(wakeups, 1)
	st.inbox.waker = woken
	st.inbox.rouse()
	if _, err := accept(st, fetchForm, req, glance{}); err != nil {
		return nil, err
	}
	session, _ := st.sessions[0].(*fetchSession)
	if w := session.wild; w != nil && w.set == nil {
		return nil, status.Error(w.err.Code, w.err.Message)
	}
	over := time.NewTimer(hold)
	defer over.Stop()
	for {
		if r := st.next(); r != nil {
			s.stats.responses.Add(1)
			return r, nil
		}
		if session.over {
			return nil, session.nothing(form)
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
		case <-over.C:
		}
		session.over = true // nobody else looks at it
	}
}

// EndPolls ends the waits of requests that are answered once, as if their time
// was over, and those of all that come after.
func (s *Server) EndPolls() { s.endPolls() }

// beforeDeadline is how long to wait so that the answer reaches a client that
// waits for so long.
func beforeDeadline(patience time.Duration) time.Duration {
	return max(0, patience-min(patience/5, time.Second))
}

// unary serves a Fetch method. There are no interceptors.
func unary(s *Server, g *gate, implied string, hold time.Duration) func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
	return func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var in incoming
		if err := decode(&in); err != nil {
			if status.Code(err) == codes.ResourceExhausted {
				s.farTooLong(g, s.options.Log.With("client", addressOf(ctx)), err)
			}
			return nil, err
		}
		if in.excess != nil {
			return nil, s.refuseRequest(g, addressOf(ctx), in.excess)
		}
		req, err := s.decodeUnary(ctx, g, &in)
		if err != nil {
			return nil, err
		}
		r, err := s.fetch(ctx, g, formUnary, implied, req, hold)
		if err != nil {
			return nil, err
		}
		if r == nil {
			version := req.GetVersionInfo()
			r = &response{typeURL: cmp.Or(req.GetTypeUrl(), implied), version: version, nonce: version}
		}
		return r, nil
	}
}

// decodeUnary decodes the request of a Fetch method.
func (s *Server) decodeUnary(ctx context.Context, g *gate, in *incoming) (*discoveryv3.DiscoveryRequest, error) {
	defer in.data.Free()
	data := in.data.ReadOnlyData()
	if e := sotwFields.peek(data).over(g.limits); e != nil {
		return nil, s.refuseRequest(g, addressOf(ctx), e)
	}
	req := new(discoveryv3.DiscoveryRequest)
	recycle, err := sotwFields.decode(data, req, &s.known)
	req.ResourceNames = slices.Clone(req.GetResourceNames()) // it is kept for as long as the request waits
	recycle()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the request cannot be decoded: %v", err)
	}
	return req, nil
}

// noStream stands in for the stream that such a request does not have.
type noStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (n noStream) Context() context.Context { return n.ctx }

// wakeups implements cache.Waker for one who waits.
type wakeups chan struct{}

// Wake implements cache.Waker.
func (w wakeups) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

var fetchForm = form[*discoveryv3.DiscoveryRequest, *fetchSession]{
	newSession: newFetchSession,
	take:       (*fetchSession).request,
	names:      sotwNames,
	locators:   (*discoveryv3.DiscoveryRequest).GetResourceLocators,
	subscribed: func(f *fetchSession, req *discoveryv3.DiscoveryRequest, enough int) int {
		return sotwSubscribed(f.sotwSession, req, enough)
	},
}

// fetchSession is a SotW session of one request. Its responses are the full state
// of what was asked for, whatever the type.
type fetchSession struct {
	*sotwSession
	// missingMeansGone: so the client understands what is missing in a response.
	missingMeansGone bool
	// has is the version of what the client holds, rejected that of what it does
	// not take. As the nonce is the version, both are known without a memory.
	has, rejected string
	over          bool // what is not known yet will not be waited for
}

func newFetchSession(s subscriptions) *fetchSession {
	// That a resource lives on is no answer, so its TTL would run out.
	s.form &^= cache.WithTTL
	f := &fetchSession{sotwSession: newSotWSession(s)}
	f.missingMeansGone, f.fullType, f.once = f.fullType, true, true
	return f
}

func (f *fetchSession) request(req *discoveryv3.DiscoveryRequest) (rejection *nack) {
	f.has = req.GetVersionInfo()
	if detail := req.GetErrorDetail(); detail != nil {
		r := sentResponse{nonce: req.GetResponseNonce()}
		for _, name := range req.GetResourceNames() {
			r.names.add(name)
		}
		f.rejected, rejection = r.nonce, f.reject(&r, detail)
	}
	f.sotwSession.request(req)
	return rejection
}

// additions returns the answer, nil if there is none yet.
func (f *fetchSession) additions(removalRule) *response {
	unknown := f.unknown()
	if !f.tellable(unknown) {
		return nil
	}
	for a := range unknown {
		f.unsubscribe(a.key())
	}
	f.forgetTold()
	r := f.sotwSession.additions(removeAll)
	if r == nil {
		return nil
	}
	f.tellErrors(r, unknown)
	r.version = f.version(r)
	if r.version == f.has || f.rejected != "" && r.version == f.rejected {
		return nil
	}
	return r
}

// unknown are the names of which it is not known what they are, and why. That the origin cannot be reached may pass.
func (f *fetchSession) unknown() map[asked]*cache.Error {
	var names map[asked]*cache.Error
	for sub := range f.named.all() {
		st := sub.state()
		switch {
		case st.Status == cache.Requested, withheldPart(sub, &st, f.has != ""):
			st.Err = notKnownYet
		case st.Status == cache.Failed && st.Err.Transient() && (f.missingMeansGone || f.perceived(sub, st).Status == cache.Failed):
		case st.Status == cache.Failed && st.Err.Bad && f.missingMeansGone && f.has != "":
		default:
			continue
		}
		if names == nil {
			names = map[asked]*cache.Error{}
		}
		names[sub.asks()] = st.Err
	}
	return names
}

var notKnownYet = &cache.Error{Code: codes.Unavailable, Message: "not known yet"}

// tellable says whether there is an answer, with so many names of which nothing
// is known.
func (f *fetchSession) tellable(unknown map[asked]*cache.Error) bool {
	for set := range f.sets() {
		// That the origin cannot be reached may pass.
		if _, err := set.status(); !f.setKnown(set) || err != nil && err.Transient() {
			return false
		}
	}
	switch {
	case len(unknown) == 0:
		return true
	case !f.over && !onlyRefused(unknown), !f.hasSets() && len(unknown) == f.named.len():
		return false
	}
	// A client that may hold them must not lose them.
	return !f.missingMeansGone || f.has == "" && f.gives()
}

// onlyRefused says that there is nothing to wait for: the relay refuses all of those names.
func onlyRefused(unknown map[asked]*cache.Error) bool {
	for _, err := range unknown {
		if !err.Refused {
			return false
		}
	}
	return true
}

// gives says that there is something to give.
func (f *fetchSession) gives() bool {
	for sub := range f.named.all() {
		if sub.state().Status == cache.Present {
			return true
		}
	}
	return f.hasSets()
}

// forgetTold makes the next response a full state again, with all errors.
func (f *fetchSession) forgetTold() {
	for sub := range f.named.all() {
		f.knows(sub, toldNothing, 0)
		sub.moveToPending()
	}
	for set := range f.sets() {
		set.again()
	}
}

// tellErrors adds the errors that a full state does without.
func (f *fetchSession) tellErrors(r *response, unknown map[asked]*cache.Error) {
	for sub := range f.named.all() {
		if st := f.inFull(sub); st.Status == cache.Absent && st.Err == nil && !f.missingMeansGone {
			r.addError(fieldSotWErrors, sub.name(), notFound)
		}
	}
	for a, err := range unknown {
		r.addError(fieldSotWErrors, a.name, err)
	}
}

// version is that of all that the client is told: of a wildcard alone the origin's, otherwise
// one of these sets and names, and not of others that happen to have the same, and of errors.
// The client may ask for others than before, and gives nothing but its version.
func (f *fetchSession) version(r *response) string {
	if f.named.len() == 0 && len(r.private) == 0 {
		return cmp.Or(f.content, r.version)
	}
	sum := f.sum
	if f.hasSets() {
		sum += xxhash.Sum64String(f.content)
	}
	var told discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(r.private, &told); err != nil {
		return r.version // no error: it was put together here
	}
	for _, e := range told.GetResourceErrors() {
		// Not the text: each attempt to reach an origin may end with another one.
		sum += xxhash.Sum64String(codes.Code(e.GetErrorDetail().GetCode()).String() + " " + e.GetResourceName().GetName())
	}
	return strconv.FormatUint(sum, 16)
}

// sent gives the response its nonce: by it the client's next request says what
// it rejects.
func (f *fetchSession) sent(r *response) {
	r.nonce = r.version
	f.sotwSession.sent(r)
}

// nothing says why there is no answer: nil if the client has what there is. One that has
// something keeps it, which HTTP has a status for (304) and gRPC has not: a response
// without resources would be an empty state.
func (f *fetchSession) nothing(form string) error {
	if (f.has != "" || f.rejected != "") && (form != formUnary || f.tellable(f.unknown())) {
		return nil
	}
	const most = 10
	kind, why := f.typeURL[strings.LastIndexByte(f.typeURL, '/')+1:], notKnownYet.Message
	if f.wild != nil {
		if _, err := f.wild.status(); err != nil {
			why = err.Message
		}
		return status.Errorf(codes.Unavailable, "%s, all of them: %s", kind, why)
	}
	var names []string
	for _, set := range f.byGlob {
		if status, err := set.status(); status != cache.Present {
			names = append(names, set.spelled.all()...)
			if err != nil {
				why = err.Message
			}
		}
	}
	for a, err := range f.unknown() {
		names, why = append(names, a.name), err.Message
	}
	slices.Sort(names)
	more := ""
	if len(names) > most {
		names, more = names[:most], ", ..."
	}
	return status.Errorf(codes.Unavailable, "%s %s%s: %s", kind, strings.Join(names, ", "), more, why)
}
