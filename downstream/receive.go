package downstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/uptime"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Requests: the goroutine of a stream that receives reads them, checks them against the limits, and passes each to the
// session of its type.

// decodeLimited decodes a request that is within the limits. list is the list of names in it, nil if no other client
// has sent it. The request keeps no reference to its bytes. The caller recycles into when the request is not needed any
// more.
func decodeLimited[R request, S typeSession](s *Server, f form[R, S], request []byte, limits *Limits) (req R, list *nameList, into *reusable[R], err error) {
	o := f.fields.Outline(request)
	var node *corev3.Node
	if o.Node.Count == 1 {
		_, value, _ := wire.NextBytes(request[o.Node.From:])
		node = s.nodes.find(value, func() bool { return limits.overCost(f.fields.Cost(request, nodeLimits)) == nil })
	}
	if node == nil {
		o.Node = wire.Run{}
		o.Cost = f.fields.Cost(request, nodeLimits)
	}
	if e := limits.overCost(o.Cost); e != nil {
		return req, nil, nil, e
	}
	into, _ = f.requests.Get().(*reusable[R])
	if into == nil {
		into = &reusable[R]{request: f.newRequest(), pool: f.requests}
	}
	into.nodeCost = costOfNode(o.Cost)
	if o.Names.Count >= leastShared {
		list = s.lists.find(request[o.Names.From:o.Names.To], f.fields.Subscribe, &s.known)
	}
	if list == nil {
		o.Names = wire.Run{}
	}
	rest := request
	if node != nil || list != nil {
		rest = withoutRuns(into.rest[:0], request, [2]wire.Run{o.Names, o.Node})
	}
	into.names, err = decodeRequest(f.fields, rest, into.request, &s.known)
	if err != nil {
		return req, nil, into, status.Errorf(codes.Internal, "the request cannot be decoded: %v", err)
	}
	f.complete(into.request, node, list)
	return into.request, list, into, nil
}

// reusable is a request with the buffers to decode it. All of it is reused. nil is none.
type reusable[R request] struct {
	request R
	rest    [256]byte // of the encoded request, if that is enough
	names   *[]string
	pool    *sync.Pool
	// nodeCost is that of the Node, if no other client has the same.
	nodeCost int
}

func (r *reusable[R]) recycle() {
	if r == nil {
		return
	}
	recycleNames(r.names)
	r.names = nil
	r.request.Reset()
	r.pool.Put(r)
}

// withoutRuns appends to b a request without some of its fields.
func withoutRuns(b, request []byte, runs [2]wire.Run) []byte {
	at := 0
	if runs[0].From > runs[1].From {
		runs[0], runs[1] = runs[1], runs[0]
	}
	for _, run := range runs {
		b = append(b, request[at:max(at, run.From)]...)
		at = max(at, run.To)
	}
	return append(b, request[at:]...)
}

// repeated processes a request that contains nothing new. It reports whether the request is one, and whether there may
// be something to send now.
func (st *stream) repeated(g wire.Peeked) (taken, answer bool) {
	if g.More {
		return false, false
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if g.Node != 0 && g.Node != st.sameNode {
		return false, false
	}
	var sess typeSession
	for _, s := range st.sessions {
		if of := s.TypeURL(); of == string(g.TypeURL) || len(g.TypeURL) == 0 && of == st.implied {
			sess = s
		}
	}
	if sess == nil {
		return false, false
	}
	behind := sess.AwaitsACK()
	had, _ := sess.InFlight()
	if !sess.FastACK(g.Nonce, g.State) {
		return false, false
	}
	st.server.stats.requests.Add(1)
	st.stands(sess)
	if st.trials != nil {
		st.trialAnswered(sess, had, nil)
	}
	return true, st.answered(sess, had, g.Nonce) || st.due(sess, behind)
}

// due reports whether there may be something to send after a request of a session. wasBehind: before the request, the
// session awaited an ACK.
func (st *stream) due(sess typeSession, wasBehind bool) bool {
	if sess.Adding() || st.types.waits() {
		return true
	}
	// The other sessions may have waited for this one: for its ACK, or for a subscription that had moved (settles) and
	// that the request may have ended.
	caughtUp := wasBehind && !sess.AwaitsACK() || st.movedAt != 0
	return slices.ContainsFunc(st.sessions, func(s typeSession) bool { return s.Removing() || caughtUp && s.Adding() })
}

// serve processes a client's requests until the client goes, and then ends its subscriptions.
func serve[R request, S typeSession](st *stream, f form[R, S]) error {
	st.server.workers.join()
	defer st.server.workers.leave()
	defer st.end()
	in := &st.incoming
	for st.pace() {
		*in = incoming{}
		if err := st.grpc.RecvMsg(in); err != nil {
			if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
				st.halfClosed = errors.Is(err, io.EOF)
				return nil
			}
			return st.unreadable(err)
		}
		if !st.server.turn(st.grpc.Context(), st.identity, in) {
			return nil
		}
		if e := in.excess(); e != nil {
			return st.refuse(e)
		}
		data := in.data.ReadOnlyData()
		g := f.fields.Peek(data)
		taken, answer := st.repeated(g)
		var err error
		if !taken {
			err = takeNew(st, f, data, g)
		}
		in.free()
		if err != nil {
			st.byRelay.Store(true)
			return err
		}
		if answer && st.inbox.wake() {
			st.Wake()
		}
	}
	return nil
}

// takeNew processes an encoded request that is not a repetition. A worker decodes the request, so that the caller's
// goroutine does not keep the large stack that this needs. takeNew wakes the stream if there may be something to send.
func takeNew[R request, S typeSession](st *stream, f form[R, S], data []byte, g wire.Peeked) error {
	r, _ := f.unprocessed.Get().(*newRequest[R, S])
	if r == nil {
		r = new(newRequest[R, S])
	}
	*r = newRequest[R, S]{st: st, form: f, data: data, peeked: g}
	st.server.workers.process(r)
	err := r.err
	*r = newRequest[R, S]{}
	f.unprocessed.Put(r)
	return err
}

// newRequest is a request that contains something new, on its way through a worker.
type newRequest[R request, S typeSession] struct {
	st     *stream
	form   form[R, S]
	data   []byte
	peeked wire.Peeked
	err    error
}

func (r *newRequest[R, S]) process() *sender {
	answer, err := decodeAndAccept(r.st, r.form, r.data, r.peeked)
	r.err = err
	if err == nil && answer && r.st.inbox.wake() {
		return r.st.server.senders.enqueue(r.st)
	}
	return nil
}

func decodeAndAccept[R request, S typeSession](st *stream, f form[R, S], data []byte, g wire.Peeked) (answer bool, err error) {
	req, list, into, err := decodeLimited(st.server, f, data, st.limits)
	defer into.recycle()
	if err != nil {
		if e := (*excess)(nil); errors.As(err, &e) {
			return false, st.refuse(e)
		}
		return false, st.invalid(err)
	}
	st.countNode(into.nodeCost)
	return acceptList(st, f, req, g, list)
}

// accept passes a request that decodeLimited has not decoded to its session, and reports whether there may be something
// to send.
func accept[R request, S typeSession](st *stream, f form[R, S], req R, g wire.Peeked) (answer bool, err error) {
	if e := over(limitNodeBytes, proto.Size(req.GetNode()), maxNodeBytes, "a node of %d bytes"); e != nil {
		return false, st.refuse(e)
	}
	return acceptList(st, f, req, g, nil)
}

// acceptList is accept for a request with a list of names that other clients have sent; list may be nil.
func acceptList[R request, S typeSession](st *stream, f form[R, S], req R, g wire.Peeked, list *nameList) (answer bool, err error) {
	st.server.stats.requests.Add(1)
	if e := overTypeURL(len(req.GetTypeUrl())); e != nil {
		return false, st.refuse(e)
	}
	typeURL, err := typeOf(st.implied, req.GetTypeUrl())
	if err != nil {
		return false, st.invalid(err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return acceptHeld(st, f, req, g, list, typeURL)
}

// acceptHeld is acceptList for a caller that holds mu and knows the type.
func acceptHeld[R request, S typeSession](st *stream, f form[R, S], req R, g wire.Peeked, list *nameList, typeURL string) (answer bool, err error) {
	if st.names == nil {
		through, err := st.through()
		if err != nil {
			return false, st.invalid(err)
		}
		st.resumed = f.resumed(req)
		admittedBy := st.sessionClient.Generation
		st.identify(req.GetNode(), through)
		if st.sessionClient.Generation != admittedBy {
			if err := st.notAdmitted(); err != nil {
				return false, err
			}
		}
	} else if err := st.checkNode(req.GetNode()); err != nil {
		return false, st.invalid(err)
	}
	if err := st.reconfigure(); err != nil {
		return false, err
	}
	sess, ok := st.session(typeURL).(S)
	if !ok {
		if e := over(limitTypes, len(st.sessions)+1, maxTypes, "%d types on this stream"); e != nil {
			return false, st.refuse(e)
		}
		sess = f.newSession(typeURL, &st.sessionClient)
	}
	if e := check(st, f, typeURL, sess, req); e != nil {
		return false, st.refuse(e)
	}
	if list == nil {
		if e := checkIdentityNames(st, f, sess, req); e != nil {
			return false, st.refuse(e)
		}
	}
	reserved, e := reserve(st, f, sess, req, list)
	defer func() { st.release(reserved) }()
	if e != nil {
		return false, st.refuse(e)
	}
	if !ok {
		if e := st.enterType(typeURL); e != nil {
			return false, st.refuse(e)
		}
		st.insert(sess)
	}
	behind := sess.AwaitsACK()
	had, _ := sess.InFlight()
	if list != nil {
		sess.Offer(list)
	}
	request := st.topics.Cache().Requests().Begin()
	rejection := f.take(sess, req)
	st.topics.Cache().Requests().End(request)
	sess.Offer(nil)
	if !ok {
		st.noteNeeded(sess, f.resumed(req))
	}
	if rejection != nil {
		rejection.Received(uint32(now()))
		st.rejected(rejection)
		st.passOn(sess, rejection)
		st.troubleOf(sess.TypeURL())
	}
	st.stands(sess)
	keepStale(st, f, sess, req)
	if st.trials != nil {
		st.trialAnswered(sess, had, rejection)
	}
	if e := cmp.Or(st.scopes.excess, st.countNames(sess), st.checkPendingNames()); e != nil {
		return false, st.refuse(e)
	}
	if user, ok := st.names.(ScopeUser); ok {
		if why := user.Loop(); why != nil {
			return false, st.invalid(loopStatus(why))
		}
	}
	sess.RecordRequest(g.Nonce, g.State)
	if g.Node != 0 {
		st.sameNode = g.Node
	}
	st.ending()
	st.endIfDenied()
	return st.answered(sess, had, g.Nonce) || st.due(sess, behind), nil
}

// identify records the client's Node. xDS: the Node comes with the first request of a stream.
func (st *stream) identify(node *corev3.Node, through chain.Chain) {
	if node == nil {
		node = &corev3.Node{}
	}
	st.node, st.scopes.stream = node, st
	able := session.AbilitiesOf(node)
	able.CountsLostNames, able.CountsLostSets = st.unreachable != Wait, st.unreachable == EndAll
	// In SotW a redirect, which has no name inside, can only go wrapped: the relay follows it for clients that do not
	// support that.
	able.Passes = st.passes && (st.form == deltaForm.name || able.Form&cache.Wrapped != 0)
	able.Relay = through.Relay
	if _, once := st.grpc.(noStream); through.Relay && !once {
		// An error means that the stream is over; the next message will report it, too.
		_ = st.grpc.SetHeader(metadata.Pairs(chain.RelayHeader, "true"))
	}
	st.sessionClient = session.Client{Abilities: able, Host: st, Topics: &st.topics, Limit: int(st.maxResponse)}
	st.useNames(st.server.naming.Load(), through)
	st.startPrefetch()
	if through.Relay && !st.proven(through).Relay {
		if log, ok := st.gate.line(eventNoRelay, st.logger()); ok {
			log.Warn("client says that it is a relay, but is none by `relays` of its listener: loops of relays through it are not found",
				"identity", st.identity.String(), "peer", st.peer())
		}
	}
	if log := st.server.options.Log; log.Enabled(context.Background(), slog.LevelDebug) {
		st.logger().Debug("client connected", "peer", st.peer(), "form", st.form)
	}
}

// invalid records that a request breaks the protocol, and returns the error that ends the stream.
func (st *stream) invalid(err error) error {
	if log, ok := st.gate.line(eventInvalid, st.logger()); ok {
		log.Warn("client's request is not valid, and ends its stream", "reason", status.Convert(err).Message())
	}
	return err
}

// unreadable records why a request cannot be read, and returns the error. gRPC has ended the stream with it already.
func (st *stream) unreadable(err error) error {
	switch status.Code(err) {
	case codes.ResourceExhausted:
		st.server.farTooLong(st.gate, st.logger(), err)
	case codes.Internal, codes.Unimplemented: // undecodable, or of an unknown compression
		return st.invalid(err)
	default: // the connection's end
	}
	return err
}

func (st *stream) rejected(n *session.NACK) {
	st.server.stats.nacks.Add(1)
	level := slog.LevelDebug
	log, ok := st.nackLines.Next(st.logger())
	if ok {
		log, ok = st.gate.line(eventRejected, log)
	}
	if ok {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "client rejected a response", "type_url", n.TypeURL, "nonce", n.Nonce,
		"name", n.Names.First, "resources", n.Names.Total, "code", n.Code.String(), "reason", n.Reason)
}

// pace waits until the stream's next request may be read. It returns false if the client has gone first.
func (st *stream) pace() bool {
	if st.limits.RequestsPerSecond == 0 {
		return true
	}
	wait := st.requests.take(st.limits.RequestsPerSecond, st.limits.RequestBurst, uptime.Duration())
	return wait == 0 || st.waitPaced(wait)
}

// waitPaced is pace for a client that sends too fast.
func (st *stream) waitPaced(wait time.Duration) bool {
	ok := sleep(st.grpc.Context(), wait)
	st.server.stats.limits[limitRequests].Add(1)
	if !st.paced {
		st.paced = true
		if log, ok := st.gate.line(eventPaced, st.logger()); ok {
			log.Warn(fasterThanRead, "limit", limitRequests.String(), "max", st.limits.RequestsPerSecond)
		}
	}
	return ok
}

// typeOf returns the type URL of a request: its own, which the aggregated service requires, or that of a single-type
// service. A service of the v2 transport also serves resources of version 3 of the API.
func typeOf(implied, requested string) (string, error) {
	switch {
	case requested == "" && implied == "":
		return "", status.Error(codes.InvalidArgument, "the request has no type_url, which is required on an aggregated stream")
	case requested == "":
		return implied, nil
	case implied != "" && requested != implied && !servesV3(implied, requested):
		return "", status.Error(codes.InvalidArgument, fmt.Sprintf("the request is for type_url %q on the service of %q", requested, implied))
	}
	return requested, nil
}

// servesV3 reports that a service of the v2 transport implies the same type as the requested one.
func servesV3(implied, requested string) bool {
	t := xdstype.Of(implied)
	return t.V2 != nil && t.V2.TypeURL == implied && xdstype.Of(requested) == t
}

// end ends the client's subscriptions. A sender that is blocked by the client ends with the stream's context, when
// serve has returned.
func (st *stream) end() {
	st.mu.Lock()
	st.closed = true
	if st.types != nil && st.types.timer != nil {
		st.types.timer.Stop()
	}
	if st.answerTimer != nil {
		st.answerTimer.Stop()
	}
	st.spare()
	if st.denies != nil {
		st.denies.Stop()
	}
	if st.seldom != nil {
		st.seldom.end()
	}
	for _, s := range st.sessions {
		s.Close()
		st.leaveType(s.TypeURL())
	}
	st.endPrefetch()
	st.leaveNames()
	st.uses.countNode(-int(st.nodeCost))
	st.nodeCost = 0
	for _, t := range st.trials.each() {
		t.Leave(st.brokeOff())
	}
	st.trials = nil
	st.standsNoMore()
	st.scopes.close()
	names := st.names
	st.mu.Unlock()
	if names != nil {
		names.Close()
		if st.server.options.Log.Enabled(context.Background(), slog.LevelDebug) {
			st.logger().Debug("client gone")
		}
	}
}
