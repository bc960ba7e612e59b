package downstream

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// stream is one client's stream.
type stream struct {
	server *Server
	grpc   grpc.ServerStream
	id     uint64
	form   string
	// implied is the type URL of the service, empty on an aggregated stream.
	implied string
	// identity is what the client has proven of its identity.
	identity *identity.Identity
	// uses is what all streams of the identity use; nil without limits on that.
	uses   *identityUse
	began  int64   // when the stream began, in nanoseconds since 1970
	limits *Limits // of its listener
	gate   *gate   // nil without a listener
	// maxResponse is the size below which responses are cut, in bytes.
	maxResponse int32
	// byRelay: the relay has ended the stream, and not the client.
	byRelay atomic.Bool
	// unreachable: whether the stream ends when nothing can be served on it.
	unreachable WhenUnreachable
	// slowness is how often the stream still has to be sent everything before a sender serves it again. Only the
	// goroutine that has the awake inbox uses it.
	slowness uint8

	// Only the goroutine that receives uses paced, halfClosed, requests and incoming. The flags, and nodeCost, are here
	// because they fit into memory that would otherwise be lost to alignment.

	// paced: a line was logged that the client sends too fast.
	paced bool
	// halfClosed: the client has ended its requests.
	halfClosed bool
	// nodeCost is what the Node costs that is counted for the client's identity, 0 if another client has the same. mu
	// guards it.
	nodeCost int32

	// place is the stream's place until the relay has no more work with its first request.
	place atomic.Pointer[place]

	inbox inbox
	// before and after are the stream's neighbours in Server.streams, which Server.mu guards.
	before, after *stream

	requests requestPace
	incoming incoming // the request that is being read

	mu            sync.Mutex // guards all below, and the sessions
	node          *corev3.Node
	sameNode      uint64 // of a request with the same Node, as in wire.Peeked
	names         Names  // from the first request on
	sessionClient session.Client
	topics        cache.Reader
	sessions      []typeSession // by xdstype.Type.Order; in ownSession if there is one
	nonces        uint64
	closed        bool
	// dismissed: the stream ends, because its listener no longer admits its client.
	dismissed bool
	// deniedSent: the client has had the extra time of a client that was sent an error. See denies.
	deniedSent bool
	// refusedLately: a name was refused since the last check.
	refusedLately bool
	// resumed: the client's first request states that it holds something.
	resumed bool
	flow    flow
	types   *severalTypes // nil if the stream has one type
	early   *earlyClusters
	scopes  streamScopes
	counted []countedNames // in ownCounted if there is one
	// Most streams have one session. The room for it is part of the stream.
	ownSession [1]typeSession
	ownCounted [1]countedNames
	trials     *streamTrials   // nil if the stream is in no rollout, and has no view
	prefetch   *streamPrefetch // nil if its listener does not prefetch
	// answerTimer is nil until the stream has waited for an answer.
	answerTimer *time.Timer
	// nackLines bounds what is logged about the client's rejections: a client that rejects everything does so again and
	// again.
	nackLines loglines.Lines
	// namesRefused: a line was logged that the client was refused names.
	namesRefused bool
	// namesNotRequested: a line was logged, or will be with notRequestedWhy, that a request to a control plane has no
	// room for names.
	namesNotRequested bool
	// mayNeedSecrets: the client was sent resources that may name Secrets, and has not subscribed to Secrets yet.
	mayNeedSecrets bool
	// passes: redirects go to the client unchanged. It does not change.
	passes bool
	// movedAt is when a new configuration moved something, 0 if everything that moved has an answer.
	movedAt moment
	// trouble is by type. It is nil as long as the client was refused no name and has rejected nothing.
	trouble map[string]*typeTrouble
	// denies is the timer of endIfDenied, nil if the client may have some of what it requests.
	denies *time.Timer
	// ends is the timer of ending, nil if something can be served.
	ends *time.Timer
	// seldom is nil as long as the stream has not used it.
	seldom *seldom
}

// streamScopes are the scopes that one stream uses, with the number of its subscriptions in each. stream.mu guards
// them, as it guards the sessions.
type streamScopes struct {
	scopeCounts
	stream *stream
	conn   *connScopes // nil before the first scope, and without a limit
	// alternatives are those of the stream's subscriptions.
	alternatives alternatives
	// excess, if not nil, is why the stream is to end: it may not use the partition of all of its old-style names.
	excess *excess
}

// flow is what a stream knows of its client's answers. stream.mu guards it.
type flow struct {
	answers bool // the client has answered a response
	// waits: the stream sends nothing until an answer, or the timeout. Its inbox stays awake, though no goroutine is
	// responsible for the stream.
	waits bool
	late  bool // the answer took too long: what is next to send goes without it
}

// severalTypes is what only a stream with several types needs. It belongs to the stream, whose lock guards it.
type severalTypes struct {
	held  heldRemovals
	order ackOrder
	// timer wakes the stream at wakes, by uptime, or did so. It is nil until the stream has to wait.
	timer *time.Timer
	wakes time.Duration
	// served has a bit for each session, by its index, that had a turn with news since the stream last had nothing to
	// send.
	served uint64
}

// heldRemovals are removals that wait for what the control plane may send together with them. They belong to a stream,
// whose lock guards them.
type heldRemovals struct {
	since time.Duration // by uptime; 0 if there are none
}

// seldom is what few streams use. stream.mu guards it.
type seldom struct {
	// noRoom is why new names of the current request are refused, nil if they are not: see reserve.
	noRoom    error
	undecided undecided
	stale     []*staleRequest
	// notRequestedWhy is why a request to a control plane had no room for a name, until that is logged.
	notRequestedWhy *cache.Error
}

// seldomUsed returns what few streams use, for one that does.
func (st *stream) seldomUsed() *seldom {
	if st.seldom == nil {
		st.seldom = new(seldom)
	}
	return st.seldom
}

// end stops the timers when the stream ends.
func (s *seldom) end() {
	if s.undecided.timer != nil {
		s.undecided.timer.Stop()
	}
	for _, r := range s.stale {
		r.timer.Stop()
	}
	s.stale = nil
}

// undecided is the time for which a stream waits for others: see waitsForOthers.
type undecided struct {
	over  bool
	timer *time.Timer // nil if the stream has not waited
}

// streamTrials are the trials of a stream. stream.mu guards them. nil has none.
type streamTrials struct {
	all   []*streamTrial
	views bool // the client has, or had, a subscription to a view
}

func (t *streamTrials) each() []*streamTrial {
	if t == nil {
		return nil
	}
	return t.all
}

// streamTrial is a Trial of a stream. stream.mu guards it.
type streamTrial struct {
	Trial
	scope cache.Scope
	// showing is not 0 if the subscriptions are on the new side: see Trial.Showing.
	showing uint64
	settled bool
	// stays: the subscriptions stay on the accepted side.
	stays bool
	// types has the types that are rolled out and of which the client was sent something.
	types map[string]*trialType
	// open are the responses with something new that the client has not answered. asked is Trial.Revision, and filled is
	// Trial.Filled, as of when the stream began to compose a response. reported: Sent or Untouched was called since the
	// move, and since Revision last changed. rejected: the client has rejected one of the responses.
	open     []sentNew
	asked    uint64
	filled   bool
	reported bool
	rejected bool
	// acked: the client has acknowledged everything, but more waits for that (see ackOrder).
	acked bool
	// news are the hashes of what the client was sent on the new side, the first ones if there are many. kept: the stream
	// moved to the new side again before it noticed that it should have left, and the client still has some of news.
	news []uint64
	kept bool
}

// trialType says whether the client's last answer of a type was an ACK.
type trialType struct {
	acked bool
	// new is the last response with something new. A client that is a relay may reject it after it has acknowledged it.
	new sentNew
}

// sentNew is a response with something new.
type sentNew struct {
	typeURL, nonce string
	// hashes are the hashes of the new resources, nil if there are many.
	hashes []uint64
	// fresh are those that the client had not got before, or all if it had: a SotW response has all of them again. more
	// is how many there are beyond maxSentNews.
	fresh []*cache.Resource
	more  int
}

// attended gives the stream's place back: it has nothing more to send now, because its first answer is out, or because
// that depends on others.
func (st *stream) attended() {
	if st.place.Load() == nil {
		return
	}
	if at := st.place.Swap(nil); at != nil {
		at.done()
	}
}

// client names the client in logs: by its node id, or by its address if the id is empty.
func (st *stream) client() string {
	if id := st.node.GetId(); id != "" {
		return id
	}
	return st.peer()
}

// peer returns the client's address. It formats it for each call, because few callers need it.
func (st *stream) peer() string { return addressOf(st.grpc.Context()) }

// logger returns a logger that names the client. It is for the goroutine that receives. Few streams ever need one.
func (st *stream) logger() *slog.Logger {
	return st.server.options.Log.With("stream", st.id, "client", st.client())
}

// addressOf returns the address of the client whose request has that context.
func addressOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
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
	if st.sessions == nil {
		st.sessions = st.ownSession[:0]
	}
	if xdstype.Of(s.TypeURL()) == xdstype.Secret {
		st.sessionClient.HasSecrets = true
	}
	at, _ := slices.BinarySearchFunc(st.sessions, int(xdstype.Of(s.TypeURL()).Order)+1, func(s typeSession, r int) int {
		return int(xdstype.Of(s.TypeURL()).Order) - r
	})
	st.sessions = slices.Insert(st.sessions, at, s)
	if len(st.sessions) > 1 {
		if st.types == nil {
			st.types = &severalTypes{}
		}
		st.types.served = 0 // sessions have other indexes
		st.types.order.place(st.sessions, st.sessionClient.Relay)
	}
}

// noStream stands in for the stream of a request that gets one answer: such a request has none.
type noStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (n noStream) Context() context.Context { return n.ctx }
