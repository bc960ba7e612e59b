package downstream

import (
	"log/slog"
	"net"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
)

// Settings.

// DefaultMaxResponseBytes keeps responses below what gRPC clients receive by
// default, 4 MiB.
const DefaultMaxResponseBytes = 4<<20 - 16<<10

// maxRequestBytes is what a client may send in one request by default.
const maxRequestBytes = 4 << 20

// Names gives the names that one client uses their meaning. It is used by one
// stream at a time.
type Names interface {
	session.Names
	// Close is called once, when the client has gone and watches nothing.
	Close()
}

// Restricted is a Names whose client may not have everything.
type Restricted interface {
	// Rights returns what the client may have, nil for everything. Key refuses the rest.
	Rights() Rights
}

// Rights are what a client may have.
type Rights = session.Rights

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
	// what its client holds, for what the control plane may send together with it. 0: not at all.
	RemovalHold time.Duration
	// Rollouts decide which clients get a change before others; nil if none do.
	Rollouts Rollouts
	// KeepsBack, if not nil, says of some names of a topic whether a rollout keeps something newer back: see
	// gate.Controller.
	KeepsBack func(topic cache.Key, names []string) []bool
	// Prefetcher watches what clients of listeners that prefetch will request next; nil if nothing does.
	Prefetcher Prefetcher
	// Rejected, if not nil, is called with what clients reject, for each scope that they use. It does not
	// block.
	Rejected func(scope cache.Scope, typeURL, words string)
	// Loads takes the load reports of clients; if it is nil, there is no load reporting service.
	Loads LoadReports
	// Log receives what an operator wants to know of clients; slog's default if
	// nil.
	Log *slog.Logger
}

// Admission says how fast a listener admits streams, and when it admits none.
type Admission struct {
	// StreamsPerSecond is how many it admits in the long run, and Burst how many at once. 0 is no
	// limit.
	StreamsPerSecond, Burst int
	// Wait is how long a stream waits in line at most.
	Wait time.Duration
	// Full, if not nil, says that there is no memory for further streams. It is called for each.
	Full func() bool
}

// LoadReports takes what clients report.
type LoadReports interface {
	// Open begins the stream of a client, after its first request. The error, a gRPC status, is why it is
	// not taken.
	Open(LoadClient) (LoadStream, error)
}

// LoadClient is a client that reports.
type LoadClient struct {
	Client
	// Account is equal for clients of one identity.
	Account any
	// Enter is called before the client uses a scope that it can make up, and returns an error if that is
	// one too many; Leave when it does not use it any more.
	Enter func(cache.Scope) error
	Leave func(cache.Scope)
}

// LoadStream is the stream of one client that reports.
type LoadStream interface {
	// Report takes a report.
	Report(*lrsv3.LoadStatsRequest)
	// Response returns what is to be sent, nil if there is nothing; and in what time to ask again, 0 for not
	// before Changed has something.
	Response() (r *lrsv3.LoadStatsResponse, again time.Duration)
	Changed() <-chan struct{}
	// Close is called once, when the client has gone.
	Close()
}

// Prefetcher watches topics that clients will request next. Its methods do not block.
type Prefetcher interface {
	// Join adds a stream whose client's names have that meaning. covers are the wildcards and globs that
	// the stream watches, as far as they are remembered; onNew are the scopes of which it gets what is not accepted yet.
	Join(names Names, covers []cache.Key, onNew []cache.Scope) PrefetchAudience
	// Follows reports whether resources of a type refer to others.
	Follows(typeURL string) bool
}

// PrefetchAudience is what a stream shares with all others to whose clients names mean the same. It is
// comparable.
type PrefetchAudience interface {
	// Want notes that the stream watches a topic of a type that is followed, and Unwant that it does not
	// any more.
	Want(cache.Key)
	Unwant(cache.Key)
	// Leave ends the stream's part. Nothing is wanted any more.
	Leave()
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

// Rollouts decide which clients of a scope are on the new side.
type Rollouts interface {
	// Join begins a stream's part in the rollouts of an accepted scope; nil if it has none. showing is
	// the side on which it begins, as Trial.Showing returns it.
	Join(scope cache.Scope, c TrialClient) (t Trial, showing uint64)
}

// RolledOutScopes may be implemented by Rollouts, as most scopes have none.
type RolledOutScopes interface {
	// RollsOut says whether an accepted scope has rollouts. If not, Join would return nil.
	RollsOut(scope cache.Scope) bool
}

// TrialClient is what Rollouts know of a stream.
type TrialClient struct {
	Client
	// Name is the id of the client's Node, or its address where that is empty. Conn is its connection,
	// of which each has one value.
	Name string
	Conn net.Addr
	// Who stands behind the client, if it is not on this machine: its identity, or else its address.
	Who string
	// Eligible: it can be on the new side. A request that is answered once cannot, nor can a client
	// with a view: a view has what is accepted.
	Eligible bool
	// Resumed: the client holds something from an earlier stream.
	Resumed bool
	// Wake has the stream look at Showing and Filled. It does not block.
	Wake func()
}

// Trial is a stream's part in the rollouts of one scope. Its methods do not block, and take no locks
// but those that come last.
type Trial interface {
	// RollsOut says whether changes of a type are rolled out.
	RollsOut(typeURL string) bool
	// Showing returns a number if the stream is to be on the new side, and otherwise 0. If the number
	// has changed, the stream was to be on the accepted side in between.
	Showing() uint64
	// Moved says that the stream has moved to the new side. Filled says whether all that it
	// watches there has a state since, as far as one is known.
	Moved(showing uint64)
	Filled() bool
	// Asked returns a number. When it changes, more is new on the new side, and the stream has to say
	// once more whether it is Sent or Untouched.
	Asked() uint64
	// Differing returns the names of the topics of a type that differ on the new side; all is true if
	// these are many. When there are others, Asked has changed.
	Differing(typeURL string) (names []string, all bool)
	// IsNew says whether a resource is not accepted.
	IsNew(*cache.Resource) bool
	// Settled says that the client has answered all that it was sent first.
	Settled()
	// Withdraw says that the client can be on the accepted side only, from now on.
	Withdraw()
	// Sent, Untouched, Acked and Rejected say what becomes of what is new: the client is being sent
	// some of it, or nothing of it; it has acknowledged all that it was sent; it has rejected some.
	// hashes are those of what was new in the response that it has rejected, nil if that is not known.
	Sent(showing uint64)
	Untouched(showing uint64)
	Acked(showing uint64)
	Rejected(showing uint64, words string, hashes []uint64)
	// Ended says that the scope has no rollouts any more: what was pending is accepted. The stream leaves.
	Ended() bool
	// Leave ends it. brokeOff says that the stream has broken off, as when a client dies: neither the
	// relay has ended it, nor the client by a half-close.
	Leave(brokeOff bool)
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
	// Admission is how fast streams come in.
	Admission Admission
	// MaxConnectionAge is how old a connection may become, a quarter less or more. Then its client
	// is sent away. 0 is no limit.
	MaxConnectionAge time.Duration
	// LongPoll is how long a request that is answered once, over REST or by a
	// Fetch method, waits for something that its client does not have.
	LongPoll time.Duration
	// V2 serves the discovery services of the v2 transport, too.
	V2 bool
	// PassRedirects has redirects go to clients as they are, and not be followed: for
	// relays behind this one.
	PassRedirects bool
	// Prefetch has the relay request what its clients will request next: see Options.Prefetcher. It holds
	// for new streams at once, and for open ones at the next Reconfigure.
	Prefetch bool
	// SecretsForAnyone gives resources of type Secret to clients that have proven nothing, too.
	SecretsForAnyone bool
	// WhenUnreachable is which streams end when nothing can be served on them.
	WhenUnreachable WhenUnreachable
	// Identify returns who a client is, from what it has shown. It is called once for each stream,
	// and for each request that gets one answer, before the relay reads the request. Its error
	// is a gRPC status, with which the call ends. If it is nil, clients prove nothing.
	Identify func(identity.Proof) (*identity.Identity, error)
	// Admits returns why the listener does not serve a client any more, nil if it does. It is
	// called for each open stream after Reconfigure. Its error is as that of Identify: the stream ends
	// with it. If it is nil, streams stay.
	Admits func(*identity.Identity) error
	// Expiries, if not nil, gets the times at which clients' certificates expire.
	Expiries *Expiries
	// Door, if not nil, is where its clients come in, and has what follows from these options for
	// streams.
	Door *Door
	// Limits are what its clients may cost, and PerIdentity what all clients of one identity may.
	Limits      Limits
	PerIdentity IdentityLimits
}

// Limits are what the clients of one listener may cost. Zero means no limit.
type Limits struct {
	// Subscriptions is the number of names that one stream is subscribed to, of
	// all types together.
	Subscriptions int
	// NameBytes is the length of a name.
	NameBytes int
	// RequestsPerSecond is how fast the requests of one stream are read in the
	// long run, and RequestBurst how many are read at once. A client that is
	// faster is not cut off, but read more slowly.
	RequestsPerSecond, RequestBurst int
	// Streams is the number of streams that are open on the listener.
	Streams int
	// Scopes is the number of scopes that one stream uses: see streamScopes.
	// ScopesPerConnection is that of all streams of a gRPC connection together.
	Scopes, ScopesPerConnection int
	// Connections is the number of connections to the listener.
	Connections int
	// ConnectionsPerSecond is how many connections of one address may end soon after they
	// began, in the long run.
	ConnectionsPerSecond int
	// StreamsPerSecond is how fast the streams that a client opens on one gRPC connection
	// are read in the long run.
	StreamsPerSecond int
}

// IdentityLimits are what all clients of one identity may cost together, on all listeners. A
// client that has proven nothing counts by its address. Zero means no limit.
type IdentityLimits struct {
	// Streams is the number of open streams.
	Streams int
	// Scopes is the number of scopes that its streams use: see streamScopes.
	Scopes int
	// Types is the number of types that its streams request, and that the relay does not know.
	Types int
	// Subscriptions is the number of names that its streams subscribe to: see identityNames.
	Subscriptions int
	// RequestsPerSecond is how many requests that get one answer it may send in the long run.
	RequestsPerSecond int
}

// WhenUnreachable says which streams end when the control planes of all that they ask
// for cannot be reached and nothing of that is held.
type WhenUnreachable uint8

// Which streams can end.
const (
	// Wait: none.
	Wait WhenUnreachable = iota
	// EndNames: those that subscribe to names only, as gRPC's do.
	EndNames
	// EndAll: those that subscribe to wildcards and globs too.
	EndAll
)
