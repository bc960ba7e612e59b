package downstream

import (
	"cmp"
	"iter"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // clients may send it, and get it back
	"google.golang.org/grpc/keepalive"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
)

// DefaultMaxResponseBytes keeps responses below what gRPC clients receive by
// default, 4 MiB.
const DefaultMaxResponseBytes = 4<<20 - 16<<10

// Names gives the names that one client uses their meaning. It is used by one
// stream at a time.
type Names interface {
	// Key returns what a name (or cache.Wildcard) of that type means for the
	// client. The error, for the client's eyes, says why it can mean nothing. Two clients
	// to whom one old-style name of a type means the same mean the same by all of them.
	Key(typeURL, name string) (cache.Key, error)
	// Close is called once, when the client has gone and watches nothing.
	Close()
}

// ScopeUser is a Names that keeps account of the scopes that its client uses, as far as the
// client names them.
type ScopeUser interface {
	// Enter is called before the first topic of a scope is watched, Leave when the
	// client has ended the last subscription to one.
	Enter(cache.Scope)
	Leave(cache.Scope)
}

// Options are a Server's settings. The zero value works.
type Options struct {
	// MaxResponseBytes is the size below which responses are cut where the
	// protocol allows it; DefaultMaxResponseBytes if 0.
	MaxResponseBytes int
	// RelayID is that of the relay: a client that asks through it is refused.
	RelayID string
	// RemovalHold is how long a stream with several types keeps back the removal of
	// what its client holds, for what the control plane may say beside it. 0: not at all.
	RemovalHold time.Duration
	// Log receives what an operator wants to know of clients; slog's default if
	// nil.
	Log *slog.Logger
}

// Server serves xDS to clients from the cache. Its methods may be called
// concurrently.
type Server struct {
	topics  *cache.Cache
	names   func(*corev3.Node, chain.Chain) Names
	options Options
	stats   stats
	known   knownNames
	lists   askedLists
	joins   joins
	conns   connections
	senders *senders

	ending    chan struct{} // closed by EndPolls
	endPolls  func()
	jsonCache jsonCache

	mu      sync.Mutex
	lastID  uint64
	streams map[*stream]struct{}
	room    cache.Room // of streams
}

type stats struct {
	requests, responses, nacks atomic.Uint64
	unreachable, ended         atomic.Uint64
	refusals                   refusalCounts
	limits                     [numLimits]atomic.Uint64
}

// Stats are totals since the start.
type Stats struct {
	Requests  uint64 // from clients
	Responses uint64 // to clients
	NACKs     uint64 // from clients
	// Unreachable is how many streams ended because nothing could be served on them.
	Unreachable uint64
	// Refusals is how often names were refused, by the Refusal's name.
	Refusals map[string]uint64
	// Ended is how many streams have ended, and requests were answered that are answered
	// once.
	Ended uint64
	// Limits is how often clients went over each limit, by its name.
	Limits map[string]uint64
}

// NewServer makes a server of what is in topics. names is called once for each
// stream, with the client's Node and the relays through which it asks.
func NewServer(topics *cache.Cache, names func(*corev3.Node, chain.Chain) Names, o Options) *Server {
	if o.MaxResponseBytes == 0 {
		o.MaxResponseBytes = DefaultMaxResponseBytes
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Server{topics: topics, names: names, options: o, streams: map[*stream]struct{}{}, ending: make(chan struct{}), senders: newSenders()}
	s.endPolls = sync.OnceFunc(func() { close(s.ending) })
	return s
}

// ListenerOptions are what can be set for each listener.
type ListenerOptions struct {
	// MaxResponseBytes is as in Options, which it goes before if it is not 0.
	MaxResponseBytes int
	// MaxRequestBytes bounds what a client may send in one request; 4 MiB, as in
	// gRPC, if 0.
	MaxRequestBytes int
	// KeepaliveTime is how long a connection may be quiet before it is probed,
	// KeepaliveTimeout how long the answer may take; gRPC's two hours and 20
	// seconds if 0.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// UserTimeout is how long what was sent on a TCP connection may stay unacknowledged
	// before the connection is given up; the system's own if 0.
	UserTimeout time.Duration
	// StreamWindow and ConnWindow are how much a client may send that has not been
	// taken, in bytes. They are static, without gRPC's estimator and its pings, also
	// if 0: then they are 1 MiB.
	StreamWindow, ConnWindow int32
	// ReadBuffer and WriteBuffer are what gRPC reads and writes at once, in bytes; its
	// 32 KiB if 0.
	ReadBuffer, WriteBuffer int
	// ConnStreams bounds the streams that are open on one connection, if it is not 0:
	// a client waits until there are less.
	ConnStreams int
	// LongPoll is how long a request that is answered once, over REST or by a
	// Fetch method, waits for something that its client does not have.
	LongPoll time.Duration
	// V2 serves the discovery services of the v2 transport, too.
	V2 bool
	// PassRedirects has redirects go to clients as they are, and not be followed: for
	// relays behind this one.
	PassRedirects bool
	// WhenUnreachable is which streams end when nothing can be served on them.
	WhenUnreachable WhenUnreachable
	// Limits are what its clients may cost.
	Limits Limits
}

// What a connection may cost on which nothing is asked for.
const (
	// connectionSetup is for TLS, and HTTP/2's preface.
	connectionSetup = 20 * time.Second
	// idleConnection is how long a connection stays without a stream, or a request: more
	// than anybody's poll interval.
	idleConnection = 5 * time.Minute
	// maxHeaderBytes is room for the longest chain of relays, which has 50 KB.
	maxHeaderBytes = 64 << 10
)

// ServerOptions are the gRPC options that a server's listeners need (the codec),
// and those that suit many quiet clients.
func ServerOptions(o ListenerOptions) []grpc.ServerOption {
	const (
		window  = 1 << 20
		minPing = 5 * time.Second
	)
	most := cmp.Or(o.MaxRequestBytes, maxRequestBytes)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(most)),
		grpc.MaxRecvMsgSize(mostRead(most)),
		grpc.InitialWindowSize(cmp.Or(o.StreamWindow, window)),
		grpc.InitialConnWindowSize(cmp.Or(o.ConnWindow, window)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: o.KeepaliveTime, Timeout: o.KeepaliveTimeout, MaxConnectionIdle: idleConnection,
		}),
		grpc.ConnectionTimeout(connectionSetup),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.InTapHandle(tapStream),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if o.ReadBuffer > 0 {
		options = append(options, grpc.ReadBufferSize(o.ReadBuffer))
	}
	if o.WriteBuffer > 0 {
		options = append(options, grpc.WriteBufferSize(o.WriteBuffer))
	}
	if o.ConnStreams > 0 {
		options = append(options, grpc.MaxConcurrentStreams(uint32(min(int64(o.ConnStreams), math.MaxUint32))))
	}
	return options
}

func (s *Server) open(g grpc.ServerStream, form, implied string) *stream {
	st := &stream{server: s, grpc: g, form: form, implied: implied, maxResponse: s.options.MaxResponseBytes, peer: addressOf(g.Context()), since: time.Now(), topics: s.topics.NewReader()}
	st.inbox.waker = st
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	st.id = s.lastID
	s.streams[st] = struct{}{}
	return st
}

func (s *Server) forget(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = cache.Without(s.streams, &s.room, st)
	s.stats.ended.Add(1)
}

// Stats returns totals since the start.
func (s *Server) Stats() Stats {
	limits := make(map[string]uint64, numLimits)
	for l := range numLimits {
		limits[l.String()] = s.stats.limits[l].Load()
	}
	return Stats{Requests: s.stats.requests.Load(), Responses: s.stats.responses.Load(), NACKs: s.stats.nacks.Load(), Unreachable: s.stats.unreachable.Load(), Refusals: s.stats.refusals.read(), Ended: s.stats.ended.Load(), Limits: limits}
}

// Clients returns the number of open streams, and of requests that are answered
// once and wait for that.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// Describe gives what Clients counts, in the order in which they came. Each is described
// when it is its turn, so that no more than one is held in memory.
func (s *Server) Describe() iter.Seq[ClientStatus] {
	return func(yield func(ClientStatus) bool) {
		s.mu.Lock()
		streams := slices.Collect(maps.Keys(s.streams))
		s.mu.Unlock()
		slices.SortFunc(streams, func(a, b *stream) int { return cmp.Compare(a.id, b.id) })
		for _, st := range streams {
			if !yield(st.describe()) {
				return
			}
		}
	}
}
