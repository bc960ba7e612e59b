package downstream

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // clients may send it, and get it back
	"google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/xdstype"
)

// What a server is made of: streams, the gates of its listeners, and senders.

// Server serves xDS to clients from the cache. Its methods may be called
// concurrently.
type Server struct {
	topics  *cache.Cache
	naming  atomic.Pointer[naming]
	options Options
	stats   stats
	known   knownNames
	lists   nameLists
	batches batches
	conns   connections
	senders *senders

	identities identities
	paces      identityPaces // of requests that get one answer
	refusals   identityPaces // of streams that are refused
	newScopes  newScopes
	loadCalls  loadCalls

	ending    chan struct{} // closed by EndPolls
	endPolls  func()
	jsonCache jsonCache

	relayID atomic.Pointer[string]

	mu      sync.Mutex
	lastID  uint64
	streams streamList
	reconfiguration
}

type stats struct {
	requests, responses, nacks atomic.Uint64
	unreachable, denied, ended atomic.Uint64
	refusals                   refusalCounts
	limits                     [numLimits]atomic.Uint64
	clientsRefused             clientRefusals
	departures                 departureCounts
	admission                  admissionStats
}

// Client is what a server knows of a client when it has received its first request.
type Client struct {
	Node *corev3.Node
	// Through are the relays between the client and this relay.
	Through  chain.Chain
	Identity *identity.Identity
	// SecretsForAnyone is that of its listener.
	SecretsForAnyone bool
}

// NewServer makes a server of what is in topics. names is called once for each
// stream, and once more after each Reconfigure.
func NewServer(topics *cache.Cache, names func(Client) Names, o Options) *Server {
	if o.MaxResponseBytes == 0 {
		o.MaxResponseBytes = DefaultMaxResponseBytes
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Server{topics: topics, options: o, ending: make(chan struct{}), senders: newSenders()}
	s.naming.Store(&naming{of: names})
	s.SetRelayID(o.RelayID)
	s.endPolls = sync.OnceFunc(func() { close(s.ending) })
	return s
}

// SetRelayID changes Options.RelayID, for streams that begin from now on.
func (s *Server) SetRelayID(id string) { s.relayID.Store(&id) }

// What a connection may cost on which nothing is requested.
const (
	// connectionSetup is for TLS, and HTTP/2's preface.
	connectionSetup = 20 * time.Second
	// idleConnection is how long a connection stays without a stream, or a request: more
	// than anybody's poll interval.
	idleConnection = 5 * time.Minute
	// maxHeaderBytes is room for the longest chain of relays, which has 50 KB.
	maxHeaderBytes = 64 << 10
)

// unlimited is for streams of no listener.
var unlimited Limits

func (s *Server) open(g grpc.ServerStream, id *identity.Identity, form, implied string) *stream {
	st := &stream{server: s, grpc: g, identity: id, form: form, implied: implied, maxResponse: s.options.MaxResponseBytes, peer: addressOf(g.Context()), since: time.Now(), limits: &unlimited, topics: s.topics.NewReader()}
	st.inbox.waker = st
	st.who.Generation = s.naming.Load().generation
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	st.id = s.lastID
	s.streams.add(st)
	return st
}

func (s *Server) forget(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skip(st)
	s.streams.remove(st)
	s.stats.ended.Add(1)
}

// gate holds the clients of one listener to its limits. It does not change; the door has the newest.
type gate struct {
	limits      Limits
	perIdentity IdentityLimits
	// responses is the size below which responses are cut; 0 for the server's.
	responses int
	// passes: redirects go to clients as they are.
	passes bool
	// secretsForAnyone: clients that have proven nothing may have Secrets.
	secretsForAnyone bool
	// unreachable: which streams end on which nothing can be served.
	unreachable WhenUnreachable
	// identify says who a client is; nil where nobody has to prove anything.
	identify func(identity.Proof) (*identity.Identity, error)
	// admits says whether the client of an open stream is still served; nil if all are.
	admits func(*identity.Identity) error
	// expiries may be nil.
	expiries  *Expiries
	admission *admission
	// longPoll is how long a request that is answered once waits.
	longPoll time.Duration
	door     *Door
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
	// identity is who the client has proven to be.
	identity *identity.Identity
	// uses is what all streams of the identity use; nil without limits on that.
	uses   *identityUse
	since  time.Time
	limits *Limits // of its listener
	gate   *gate   // nil of no listener
	// maxResponse is the size below which responses are cut, in bytes.
	maxResponse int
	// passes: redirects go to the client as they are.
	passes bool
	// unreachable: whether the stream ends when nothing can be served on it.
	unreachable WhenUnreachable
	// paced belongs to the goroutine that receives: the log says that the client sends too fast.
	paced bool
	// byRelay: the relay has ended the stream, and not the client.
	byRelay atomic.Bool
	// halfClosed: the client has. Of the goroutine that receives.
	halfClosed bool
	inbox      inbox
	// before and after are its neighbours in Server.streams, which Server.mu guards.
	before, after *stream
	// slowness is how often the stream has to have been sent all that there was, until
	// a sender of all streams takes it again. It belongs to who has made the inbox awake.
	slowness int

	// Of the goroutine that receives.
	requests *rate.Limiter // nil before the first

	mu       sync.Mutex // guards all below, and the sessions
	node     *corev3.Node
	sameNode uint64 // of a request whose Node was that, as in wire.Peeked
	names    Names  // from the first request on
	who      session.Client
	topics   cache.Reader
	sessions []typeSession // in the order of their types' ranks
	nonces   uint64
	closed   bool
	// dismissed: it ends, because its listener does not admit its client any more.
	dismissed bool
	flow      flow
	held      heldRemovals
	scopes    streamScopes
	counted   []countedNames
	trials    *streamTrials // nil where no rollout is configured
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
	// something; deniedTold, that it has had the time of one that was sent an error. See endIfDenied.
	denies     *time.Timer
	deniedSent bool
	// refusedLately: a name was refused since that was looked at.
	refusedLately bool
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

// heldRemovals are removals that wait for what the control plane may send together with them.
// They belong to a stream, and are guarded by its lock.
type heldRemovals struct {
	since time.Time   // zero if there are none
	timer *time.Timer // nil until there were some
}

// undecided is such a time of a stream.
type undecided struct {
	over  bool
	timer *time.Timer
}

// flow is what a stream knows of its client's answers. stream.mu guards it.
type flow struct {
	answers bool // the client has answered a response
	// waits: the stream sends nothing until an answer, or the timeout. Its inbox stays
	// awake, though nobody looks after it.
	waits bool
	late  bool // the answer took too long: one response goes without it
}

// addressOf returns the address of the client whose request has that context.
func addressOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

func newSenders() *senders { return &senders{limit: runtime.GOMAXPROCS(0)} }

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
