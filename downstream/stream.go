package downstream

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/xdstype"
)

// typeSession is the protocol state of one type URL on a stream, in either form.
type typeSession interface {
	// of is the type URL.
	TypeURL() string
	// adding says that there may be something new or changed to tell, though
	// perhaps not now; removing, that there are removals to tell which were not
	// told with it.
	Adding() bool
	Removing() bool
	// catchingUp says that what is to be added can be sent once the client has
	// answered, so that what comes after it waits. That does not wait for what is
	// not known or cannot be had, which may take for ever.
	AwaitsACK() bool
	// additions returns the next response, nil if there is none. It carries those
	// removals that it may.
	Additions(may session.RemovalRule) *session.Response
	// removals returns a response of the removals that it may carry, nil if there are
	// none.
	Removals(may session.RemovalRule) *session.Response
	// untold counts what is kept to be told: with a client that changes its mind
	// and does not read it could grow.
	Pending() int
	// subscribed is the number of names that the client has subscribed to.
	Subscribed() int
	// following says that something is to be watched that takes the place of what is;
	// follow does that.
	Following() bool
	// takeOdd has names watched by themselves that cannot be watched for several clients
	// any more.
	TakeOdd()
	// offer says which list a request has of those that several clients have sent, nil for
	// none, before it is taken.
	Offer(session.NameList)
	Follow()
	// parameters are the dynamic parameters of its locators.
	Parameters() map[string]int
	// hopes is for the stream's unservable, lacks and decided for its waitsForOthers.
	Servable() (bool, *cache.Error)
	Unreachable() bool
	Decided() bool
	// resend has a name's resource sent again, if the client was told it.
	Resend(name string)
	// sent notes that a response goes to the client as the newest.
	Sent(*session.Response)
	// repeat takes a request of which nothing but the nonce is new, and says whether
	// it did: whether it acknowledges the newest response and, with asks as in glance,
	// asks for what the one before did. heard notes what a request was that was not
	// such a one.
	FastACK(nonce []byte, asks uint64) bool
	RecordRequest(nonce []byte, asks uint64)
	// InFlight is how many responses the client has not answered, as far as they are
	// remembered, and when the first of them was sent.
	InFlight() (n int, first uint32)
	Inspect() session.Inspection
	Close()
	Describe() session.Status
}

// request is what a stream needs of a request in either form.
type request interface {
	proto.Message
	GetNode() *corev3.Node
	GetTypeUrl() string
}

// form makes a stream's sessions: what differs between SotW and delta.
type form[R request, S typeSession] struct {
	name       string
	newRequest func() R
	newSession func(typeURL string, c *session.Client) S
	take       func(S, R) *session.NACK
	// names are all names in a request, and subscribed how many its session will
	// have when it has taken it: see check.
	names      func(R) iter.Seq[string]
	subscribed func(S, R, int) int
	// locators are those that a request subscribes to.
	locators func(R) []*discoveryv3.ResourceLocator
	fields   *requestFields
}

var deltaForm = form[*discoveryv3.DeltaDiscoveryRequest, *session.Delta]{
	name:       "delta",
	newRequest: func() *discoveryv3.DeltaDiscoveryRequest { return new(discoveryv3.DeltaDiscoveryRequest) },
	newSession: session.NewDelta,
	take:       (*session.Delta).Request,
	names:      deltaNames,
	subscribed: (*session.Delta).SubscribedWith,
	locators:   (*discoveryv3.DeltaDiscoveryRequest).GetResourceLocatorsSubscribe,
	fields:     &deltaFields,
}

var sotwForm = form[*discoveryv3.DiscoveryRequest, *session.SotW]{
	name:       "sotw",
	newRequest: func() *discoveryv3.DiscoveryRequest { return new(discoveryv3.DiscoveryRequest) },
	newSession: session.NewSotW,
	take:       (*session.SotW).Request,
	names:      sotwNames,
	subscribed: (*session.SotW).SubscribedWith,
	locators:   (*discoveryv3.DiscoveryRequest).GetResourceLocators,
	fields:     &sotwFields,
}

// stream is one client's stream.
type stream struct {
	server *Server
	grpc   grpc.ServerStream
	id     uint64
	form   string
	// implied is the type URL of the service, empty on an aggregated stream.
	implied string
	peer    string
	since   time.Time
	limits  Limits
	gate    *gate // nil of no listener
	// maxResponse is the size below which responses are cut, in bytes.
	maxResponse int
	// passes: redirects go to the client as they are.
	passes bool
	// unreachable: whether the stream ends when nothing can be served on it.
	unreachable WhenUnreachable
	// paced belongs to the goroutine that receives: the log says that the client sends too fast.
	paced bool
	inbox inbox
	// slowness is how often the stream has to have been sent all that there was, until
	// a sender of all streams takes it again. It belongs to who has made the inbox awake.
	slowness int

	// Of the goroutine that receives.
	requests *rate.Limiter // nil before the first

	mu       sync.Mutex // guards all below, and the sessions
	node     *corev3.Node
	sameNode uint64 // of a request whose Node was that, as in glance
	names    Names  // from the first request on
	who      session.Client
	topics   cache.Reader
	sessions []typeSession // in the order of their types' ranks
	nonces   uint64
	closed   bool
	flow     flow
	held     heldRemovals
	scopes   streamScopes
	// answerTimer is nil until the stream has waited for an answer.
	answerTimer *time.Timer
	// nackLines bounds what is logged of its rejections: a client that rejects everything
	// says the same again and again.
	nackLines loglines.Lines
	// namesRefused: the operator was told that it was refused names.
	namesRefused bool
	// namesUnasked: so it is, or will be with unaskedWhy, of names that a request to a control
	// plane has no room for.
	namesUnasked bool
	unaskedWhy   *cache.Error
	// refusedNames are the names that the client was refused, by type.
	refusedNames map[string]RefusedNames
	// ends is for when nothing can be served, and nil if something can: see ending.
	ends *time.Timer
	// undecided is nil unless the stream has waited for others: see waitsForOthers.
	undecided *undecided
}

// serve takes a client's requests until it goes, and ends its subscriptions.
func serve[R request, S typeSession](st *stream, f form[R, S]) error {
	defer st.end()
	var in incoming // once, as it is on the heap
	for st.pace() {
		in = incoming{}
		if err := st.grpc.RecvMsg(&in); err != nil {
			if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
				return nil
			}
			return st.unreadable(err)
		}
		if in.excess != nil {
			return st.refuse(in.excess)
		}
		data := in.data.ReadOnlyData()
		g := f.fields.see(data)
		taken, answer := st.repeated(g)
		var err error
		if !taken {
			answer, err = takeNew(st, f, data, g)
		}
		in.data.Free()
		if err != nil {
			return err
		}
		if answer && st.inbox.rouse() {
			st.Wake()
		}
	}
	return nil
}

// take takes an encoded request, and says whether there may be something to answer.
// It keeps nothing of its bytes.
func take[R request, S typeSession](st *stream, f form[R, S], data []byte) (answer bool, err error) {
	g := f.fields.see(data)
	if taken, answer := st.repeated(g); taken {
		return answer, nil
	}
	return decodeAndAccept(st, f, data, g)
}

// takeNew is take of a request that is no repetition, without the stack that this needs.
func takeNew[R request, S typeSession](st *stream, f form[R, S], data []byte, g glance) (answer bool, err error) {
	elsewhere(func() { answer, err = decodeAndAccept(st, f, data, g) })
	return answer, err
}

func decodeAndAccept[R request, S typeSession](st *stream, f form[R, S], data []byte, g glance) (answer bool, err error) {
	if e := f.fields.peek(data).over(st.limits); e != nil {
		return false, st.refuse(e)
	}
	req := f.newRequest()
	recycle, list, err := st.server.decode(f.fields, data, req)
	defer recycle()
	if err != nil {
		return false, st.invalid(status.Errorf(codes.Internal, "the request cannot be decoded: %v", err))
	}
	return acceptList(st, f, req, g, list)
}

// accept hands a request to its session, and says whether there may be
// something to answer.
func accept[R request, S typeSession](st *stream, f form[R, S], req R, g glance) (answer bool, err error) {
	return acceptList(st, f, req, g, nil)
}

// acceptList is accept of a request with a list of names in it that others have sent, if it
// is not nil.
func acceptList[R request, S typeSession](st *stream, f form[R, S], req R, g glance, list *askedList) (answer bool, err error) {
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
	if st.names == nil {
		if e := over(limitNodeBytes, proto.Size(req.GetNode()), maxNodeBytes, "a node of %d bytes"); e != nil {
			return false, st.refuse(e)
		}
		through, err := st.through()
		if err != nil {
			return false, st.invalid(err)
		}
		st.identify(req.GetNode(), through)
	} else if err := st.checkNode(req.GetNode()); err != nil {
		return false, st.invalid(err)
	}
	sess, ok := st.session(typeURL).(S)
	if !ok {
		if e := over(limitTypes, len(st.sessions)+1, maxTypes, "%d types on this stream"); e != nil {
			return false, st.refuse(e)
		}
		sess = f.newSession(typeURL, &st.who)
	}
	if e := check(st, f, typeURL, sess, req); e != nil {
		return false, st.refuse(e)
	}
	if !ok {
		st.insert(sess)
	}
	behind := sess.AwaitsACK()
	had, _ := sess.InFlight()
	if list != nil {
		sess.Offer(list)
	}
	rejection := f.take(sess, req)
	sess.Offer(nil)
	if rejection != nil {
		st.rejected(rejection)
	}
	if e := cmp.Or(st.scopes.excess, st.checkUntold()); e != nil {
		return false, st.refuse(e)
	}
	sess.RecordRequest(g.nonce, g.asks)
	if g.node != 0 {
		st.sameNode = g.node
	}
	st.ending()
	return st.answered(sess, had) || st.due(sess, behind), nil
}

// identify notes who the client is. xDS: the Node comes with the first request
// of a stream.
func (st *stream) identify(node *corev3.Node, through chain.Chain) {
	if node == nil {
		node = &corev3.Node{}
	}
	st.node, st.scopes.stream = node, st
	st.names = st.server.names(node, through)
	able := session.AbilitiesOf(node)
	able.CountsLostNames, able.CountsLostSets = st.unreachable != Wait, st.unreachable == EndAll
	// In SotW a redirect, which has no name inside, can only go wrapped: it is followed for
	// who does not take that.
	able.Passes = st.passes && (st.form == deltaForm.name || able.Form&cache.Wrapped != 0)
	able.Relay = through.Relay
	st.who = session.Client{Abilities: able, Host: st, Topics: &st.topics, Limit: st.maxResponse}
	if log := st.server.options.Log; log.Enabled(context.Background(), slog.LevelDebug) {
		st.logger().Debug("client connected", "peer", st.peer, "form", st.form)
	}
}

// client names the client in logs: by its node id, or where that is empty by its
// address.
func (st *stream) client() string {
	if id := st.node.GetId(); id != "" {
		return id
	}
	return st.peer
}

// logger returns a logger that names the client. It is for the goroutine that
// receives. Few streams ever need one.
func (st *stream) logger() *slog.Logger {
	return st.server.options.Log.With("stream", st.id, "client", st.client())
}

// invalid notes that a request breaks the protocol, and returns why as the error
// that ends the stream.
func (st *stream) invalid(err error) error {
	if log, ok := st.gate.line(eventInvalid, st.logger()); ok {
		log.Warn("client's request is not valid, and ends its stream", "reason", status.Convert(err).Message())
	}
	return err
}

// unreadable notes why a request cannot be read, and returns it. gRPC has ended
// the stream with it already.
func (st *stream) unreadable(err error) error {
	switch status.Code(err) {
	case codes.ResourceExhausted:
		st.server.farTooLong(st.gate, st.logger(), err)
	case codes.Internal, codes.Unimplemented: // undecodable, and of an unknown compression
		return st.invalid(err)
	default: // the connection's end
	}
	return err
}

// session returns the session of a type, nil if there is none. There are few.
func (st *stream) session(typeURL string) typeSession {
	for _, s := range st.sessions {
		if s.TypeURL() == typeURL {
			return s
		}
	}
	return nil
}

func (st *stream) insert(s typeSession) {
	at, _ := slices.BinarySearchFunc(st.sessions, int(xdstype.Of(s.TypeURL()).Order)+1, func(s typeSession, r int) int {
		return int(xdstype.Of(s.TypeURL()).Order) - r
	})
	st.sessions = slices.Insert(st.sessions, at, s)
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

// Wake implements cache.Waker: it has the stream sent to. Whoever calls it has made
// the inbox awake.
func (st *stream) Wake() { st.server.senders.add(st) }

// transmit sends a response. It waits for a client that does not read. An error says
// that the client has gone, which ends the receiving too.
func (st *stream) transmit(r *session.Response) error {
	if err := st.grpc.SendMsg(r); err != nil {
		return err
	}
	st.server.stats.responses.Add(1)
	return nil
}

// next puts the next response together from the newest state, nil if there is nothing to
// be sent. It waits for updates that are being stored.
func (st *stream) next() *session.Response {
	st.mu.Lock()
	r, _ := st.compose(holdAndWait)
	return r
}

// holding is what is to be done while an update is stored to something that a stream watches.
type holding int

const (
	holdAndWait holding = iota
	holdNow             // or not at all
	holdOrPark          // the stream is woken then
)

func (st *stream) hold(how holding) bool {
	switch how {
	case holdNow:
		return st.topics.TryHold(nil)
	case holdOrPark:
		return st.topics.TryHold((*parkedStream)(st))
	case holdAndWait:
	}
	st.topics.Hold()
	return true
}

// compose is next for a caller that holds mu, and releases it; unless the topics cannot be held
// in that way: then it says so.
func (st *stream) compose(how holding) (r *session.Response, failed bool) {
	defer st.mu.Unlock()
	for {
		if !st.hold(how) {
			return nil, true
		}
		r, ok := st.composeHeld()
		st.logUnasked()
		if ok {
			return r, false
		}
		for _, s := range st.sessions {
			s.Follow()
		}
	}
}

// composeHeld is compose while the topics are held, which it ends; unless something else has
// to be watched before: it says whether that is not so.
// xDS: "Eventual consistency considerations": additions and changes go in the
// order of the types, removals after them in reverse.
func (st *stream) composeHeld() (r *session.Response, ok bool) {
	defer st.topics.Release()
	st.inbox.drain() // also when closed, else the sender would never sleep
	if st.closed {
		return nil, true
	}
	for _, s := range st.sessions {
		s.TakeOdd()
	}
	if slices.ContainsFunc(st.sessions, typeSession.Following) {
		return nil, false
	}
	if st.ending() || st.waitsForOthers() {
		return nil, true
	}
	return st.inOrder(), true
}

func (st *stream) inOrder() *session.Response {
	may := st.mayRemove()
	for _, s := range st.sessions {
		if !s.Adding() {
			continue
		}
		with := session.RemoveNone
		if st.alone(s) {
			with = may
		}
		if r := s.Additions(with); r != nil {
			return st.number(s, r)
		}
		if s.AwaitsACK() {
			return nil // what comes after may need it
		}
	}
	holds := false
	for _, s := range slices.Backward(st.sessions) {
		if !s.Removing() {
			continue
		}
		if r := s.Removals(may); r != nil {
			return st.number(s, r)
		}
		if s.AwaitsACK() {
			return nil // what it still names must not go before
		}
		if holds = may == session.RemoveUnnamed && s.Removing(); holds {
			break // as above
		}
	}
	st.holdRemovals(holds)
	return nil
}

// alone says that no other session has anything to tell.
func (st *stream) alone(s typeSession) bool {
	return !slices.ContainsFunc(st.sessions, func(o typeSession) bool { return o != s && (o.Adding() || o.Removing()) })
}

func (st *stream) number(s typeSession, r *session.Response) *session.Response {
	st.nonces++
	r.Nonce, r.At, r.Batches = strconv.FormatUint(st.nonces, 10), uint32(now()), &st.server.joins
	s.Sent(r)
	if len(r.Changed) == 0 {
		return r
	}
	for _, eds := range [...]typeSession{st.session(xdstype.EndpointsV3), st.session(xdstype.EndpointsV2)} {
		if eds == nil {
			continue
		}
		for _, cluster := range r.Changed {
			eds.Resend(session.EndpointsOf(cluster))
		}
	}
	r.Changed = nil
	return r
}

// end ends the client's subscriptions. A sender that is held up by the client
// ends with the stream's context, when serve has returned.
func (st *stream) end() {
	st.mu.Lock()
	st.closed = true
	if st.held.timer != nil {
		st.held.timer.Stop()
	}
	if st.answerTimer != nil {
		st.answerTimer.Stop()
	}
	st.spare()
	if st.undecided != nil {
		st.undecided.timer.Stop()
	}
	for _, s := range st.sessions {
		s.Close()
	}
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
