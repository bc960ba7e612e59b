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
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/xdstype"
)

// stream is one client's stream.
type stream struct {
	server *Server
	grpc   grpc.ServerStream
	id     uint64
	form   string
	// implied is the type URL of the service, empty on an aggregated stream.
	implied string
	// identity is who the client has proven to be.
	identity *identity.Identity
	// uses is what all streams of the identity use; nil without limits on that.
	uses   *identityUse
	came   int64   // when it did, in nanoseconds since 1970
	limits *Limits // of its listener
	gate   *gate   // nil of no listener
	// maxResponse is the size below which responses are cut, in bytes.
	maxResponse int
	// byRelay: the relay has ended the stream, and not the client.
	byRelay atomic.Bool
	// passes: redirects go to the client as they are.
	passes bool
	// unreachable: whether the stream ends when nothing can be served on it.
	unreachable WhenUnreachable
	// slowness is how often the stream has to have been sent all that there was, until
	// a sender takes it again. Only the goroutine that has the awake inbox uses it.
	slowness uint8

	inbox inbox
	// before and after are its neighbours in Server.streams, which Server.mu guards.
	before, after *stream

	// Of the goroutine that receives.
	requests requestPace
	incoming incoming // the request that is read
	// paced: the log says that the client sends too fast.
	paced bool
	// halfClosed: the client has ended its requests.
	halfClosed bool

	mu       sync.Mutex // guards all below, and the sessions
	node     *corev3.Node
	sameNode uint64 // of a request whose Node was that, as in wire.Peeked
	names    Names  // from the first request on
	who      session.Client
	topics   cache.Reader
	sessions []typeSession // by xdstype.Type.Order; in ownSession if there is one
	nonces   uint64
	closed   bool
	// dismissed: it ends, because its listener does not admit its client any more.
	dismissed bool
	// deniedSent: it has had the time of one that was sent an error. See denies.
	deniedSent bool
	// refusedLately: a name was refused since that was looked at.
	refusedLately bool
	// resumed: the client's first request says that it holds something.
	resumed bool
	flow    flow
	held    heldRemovals
	scopes  streamScopes
	counted []countedNames // in ownCounted if there is one
	// Most streams have one session. Its places are part of the stream.
	ownSession [1]typeSession
	ownCounted [1]countedNames
	trials     *streamTrials   // nil if the stream is in no rollout, and has no view
	prefetch   *streamPrefetch // nil if its listener does not prefetch
	// answerTimer is nil until the stream has waited for an answer.
	answerTimer *time.Timer
	// nackLines bounds what is logged of its rejections: a client that rejects everything
	// says the same again and again.
	nackLines loglines.Lines
	// namesRefused: it is logged that it was refused names.
	namesRefused bool
	// namesNotRequested: the same, now or with notRequestedWhy, of names that a request to a control
	// plane has no room for.
	namesNotRequested bool
	// movedAt is when something moved by a new configuration, 0 if all of that has an answer.
	movedAt         moment
	notRequestedWhy *cache.Error
	// refusedNames are the names that the client was refused, by type.
	refusedNames map[string]RefusedNames
	// denies is for when the client may have nothing of what it asks for, and nil if it may have
	// something. See endIfDenied.
	denies *time.Timer
	// ends is for when nothing can be served, and nil if something can: see ending.
	ends *time.Timer
	// undecided is nil unless the stream has waited for others: see waitsForOthers.
	undecided *undecided
}

// streamScopes are those that one stream uses, with the number of its subscriptions in each.
// Guarded by stream.mu, as its sessions are.
type streamScopes struct {
	scopeCounts
	stream *stream
	conn   *connScopes // nil before the first, and without a limit
	// alternatives are those of what it is subscribed to.
	alternatives alternatives
	// excess, if not nil, is why the stream is to end: it may not use the partition that
	// all of its old-style names are in.
	excess *excess
}

// flow is what a stream knows of its client's answers. stream.mu guards it.
type flow struct {
	answers bool // the client has answered a response
	// waits: the stream sends nothing until an answer, or the timeout. Its inbox stays
	// awake, though nobody looks after it.
	waits bool
	late  bool // the answer took too long: one response goes without it
}

// heldRemovals are removals that wait for what the control plane may send together with them.
// They belong to a stream, and are guarded by its lock.
type heldRemovals struct {
	since time.Duration // by uptime; 0 if there are none
	timer *time.Timer   // nil until there were some
}

// undecided is such a time of a stream.
type undecided struct {
	over  bool
	timer *time.Timer
}

// streamTrials are those of a stream. Guarded by stream.mu. nil has none.
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

// streamTrial is a Trial of a stream. Guarded by stream.mu.
type streamTrial struct {
	Trial
	scope cache.Scope
	// showing is not 0 if the subscriptions are on the new side: see Trial.Showing.
	showing uint64
	settled bool
	// stays: they never are on the new side.
	stays bool
	// types has what is known of the types that are rolled out and of which the client was sent something.
	types map[string]*triedType
	// open are the responses with something new that the client has not answered. reported: Sent or
	// Untouched was called since the move, or since the trial asked: asked is how often it had when the
	// stream began to compose a response. rejected: it has rejected one of them.
	open     []sentNew
	asked    uint64
	reported bool
	rejected bool
}

// triedType says whether the client's last answer of a type was an ACK.
type triedType struct {
	acked bool
	// new is the last response with something new. A client that is a relay may reject it after it has
	// acknowledged it.
	new sentNew
}

// sentNew is a response with something new.
type sentNew struct {
	typeURL, nonce string
	// hashes are those of what is new, nil if that is much.
	hashes []uint64
}

// client names the client in logs: by its node id, or where that is empty by its
// address.
func (st *stream) client() string {
	if id := st.node.GetId(); id != "" {
		return id
	}
	return st.peer()
}

// peer returns the client's address. It formats it for each call, because few callers need it.
func (st *stream) peer() string { return addressOf(st.grpc.Context()) }

// logger returns a logger that names the client. It is for the goroutine that
// receives. Few streams ever need one.
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
	at, _ := slices.BinarySearchFunc(st.sessions, int(xdstype.Of(s.TypeURL()).Order)+1, func(s typeSession, r int) int {
		return int(xdstype.Of(s.TypeURL()).Order) - r
	})
	st.sessions = slices.Insert(st.sessions, at, s)
}

// noStream stands in for the stream of a request that gets one answer: such a request has none.
type noStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (n noStream) Context() context.Context { return n.ctx }
