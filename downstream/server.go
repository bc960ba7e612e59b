package downstream

import (
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // clients may send it, and get it back

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/identity"
)

// The parts of a server. Its streams are in stream.go, the gates of its listeners in door.go, and its senders in
// senders.go.

// Server serves xDS to clients from the cache. Its methods may be called
// concurrently.
type Server struct {
	topics  *cache.Cache
	naming  atomic.Pointer[naming]
	options Options
	stats   stats
	known   knownNames
	lists   nameLists
	nodes   sharedNodes
	batches batches
	conns   connections
	senders *senders
	workers requestWorkers

	identities identities
	pressure   pressure
	arrivals   arrivals
	large      *Places
	// answers are the answers in JSON that are made and read.
	answers   *Places
	paces     identityPaces // for requests that get one answer
	refusals  identityPaces // for streams that are refused
	newScopes newScopes
	loadCalls loadCalls
	peers     atomic.Int64 // open streams of other relays of the fleet

	ending    chan struct{} // closed by EndPolls
	endPolls  func()
	jsonCache jsonCache

	relayID atomic.Pointer[string]

	mu      sync.Mutex
	lastID  uint64
	streams streamList
	reconfiguration
}

// streamList has streams, oldest first. The zero value is ready. Each operation takes the same time however many there
// are.
type streamList struct {
	first, last *stream
	n           int
}

func (l *streamList) add(st *stream) {
	st.before = l.last
	if l.last == nil {
		l.first = st
	} else {
		l.last.after = st
	}
	l.last = st
	l.n++
}

func (l *streamList) remove(st *stream) {
	if st.before == nil {
		l.first = st.after
	} else {
		st.before.after = st.after
	}
	if st.after == nil {
		l.last = st.before
	} else {
		st.after.before = st.before
	}
	st.before, st.after = nil, nil
	l.n--
}

// naming makes the Names of one configuration. The generations count the configurations.
type naming struct {
	of         func(Client) Names
	generation uint32
	// restricts: some clients may not have everything by this configuration.
	restricts atomic.Bool
}

// reconfiguration is the pass through the streams. Server.mu guards it.
type reconfiguration struct {
	next    *stream // nil after the last
	running bool
}

type stats struct {
	requests, responses, nacks atomic.Uint64
	unreachable, denied, ended atomic.Uint64
	refusals                   refusalCounts
	limits                     [numLimits]atomic.Uint64
	clientsRefused             clientRefusals
	departures                 departureCounts
	admission                  admissionStats
	standing                   standing
	connFailures               connFailureCounts
}

// NewServer makes a server that serves the topics of a cache. names is called once for each stream, and again after
// each Reconfigure.
func NewServer(topics *cache.Cache, names func(Client) Names, o Options) *Server {
	if o.MaxResponseBytes == 0 {
		o.MaxResponseBytes = DefaultMaxResponseBytes
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Server{topics: topics, options: o, ending: make(chan struct{}), senders: newSenders(), pressure: pressure{memory: o.Memory}, large: decodePlaces()}
	s.answers = s.answerPlaces()
	s.naming.Store(&naming{of: names})
	s.SetRelayID(o.RelayID)
	s.endPolls = sync.OnceFunc(func() { close(s.ending) })
	return s
}

// SetRelayID changes Options.RelayID, for streams that begin from now on.
func (s *Server) SetRelayID(id string) { s.relayID.Store(&id) }

// What a connection without requests may cost.
const (
	// connectionSetup is for TLS, and HTTP/2's preface.
	connectionSetup = 20 * time.Second
	// idleConnection is how long a connection stays without a stream or a request: longer than any usual poll interval.
	idleConnection = 5 * time.Minute
	// maxHeaderBytes is room for the longest chain of relays, which has 50 KB.
	maxHeaderBytes = 64 << 10
)

// unlimited is for streams without a listener.
var unlimited Limits

func (s *Server) openAt(at *gate, g grpc.ServerStream, id *identity.Identity, form, implied string) *stream {
	st := &stream{server: s, gate: at, grpc: g, identity: id, form: form, implied: implied, maxResponse: int32(min(s.options.MaxResponseBytes, math.MaxInt32)), began: time.Now().UnixNano(), limits: &unlimited, topics: s.topics.NewReader()}
	st.inbox.waker = st
	st.sessionClient.Generation = s.naming.Load().generation
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
	if st.isPeer() {
		s.peers.Add(-1)
	}
	s.stats.ended.Add(1)
}

// skip is called before a stream is removed from the list. The caller holds mu.
func (s *Server) skip(st *stream) {
	if s.next == st {
		s.next = st.after
	}
}
