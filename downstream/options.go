package downstream

import (
	"context"
	"log/slog"
	"net"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/chain"
)

// Settings.

// DefaultMaxResponseBytes keeps responses below what gRPC clients receive by default, 4 MiB.
const DefaultMaxResponseBytes = 4<<20 - 16<<10

// maxRequestBytes is what a client may send in one request by default.
const maxRequestBytes = 4 << 20

// Names resolves the names that one client uses. One stream at a time uses it.
type Names interface {
	session.Names
	// Close is called once, after the client has gone and watches nothing.
	Close()
}

// Restricted is a Names whose client may not have everything.
type Restricted interface {
	// Rights returns what the client may have, nil for everything. Key refuses the rest.
	Rights() Rights
}

// Rights are what a client may have.
type Rights = session.Rights

// ScopeUser is a Names that tracks the scopes that its client uses, as far as the client names them.
type ScopeUser interface {
	// Enter is called before the first topic of a scope is watched, Leave after the client has ended its last
	// subscription in the scope.
	Enter(cache.Scope)
	Leave(cache.Scope)
	// Loop returns why the stream must end because of what it has entered, nil if it need not: the loop of relays that
	// the client would make there.
	Loop() error
}

// Options are a Server's settings. The zero value works.
type Options struct {
	// MaxResponseBytes is the size below which responses are cut where the
	// protocol allows it; DefaultMaxResponseBytes if 0.
	MaxResponseBytes int
	// RelayID is the id of this relay: a client whose requests already passed through it is refused.
	RelayID string
	// RemovalHold is how long a stream with several types holds a removal: the control plane may be about to send
	// changes of other types after which the client no longer needs the resource. 0 disables the hold.
	RemovalHold time.Duration
	// Rollouts decide which clients get a change before others; nil if none do.
	Rollouts Rollouts
	// KeepsBack, if not nil, returns for names of a topic whether a rollout withholds something newer: see
	// gate.Controller.
	KeepsBack func(topic cache.Key, names []string) []bool
	// Prefetcher watches the topics that clients will request next, for clients of listeners that prefetch; nil
	// disables prefetching.
	Prefetcher Prefetcher
	// SecretsIn, if not nil, returns the names of the Secrets that a resource names. It may take long.
	SecretsIn func(*cache.Resource) []string
	// Rejected, if not nil, is called when a client rejects something, for each scope that may have it. polled is the
	// client if it polls, and nil otherwise: Server.CountRejecters finds the others. It must not block.
	Rejected func(of ScopeType, polled *Rejecters)
	// UserAgent, if not nil, returns the name and version of a client's program, which the relay passes on with the
	// client's rejection to a control plane that is a relay.
	UserAgent func(*corev3.Node) string
	// Views, if not nil, say which scopes that concerns if a client rejects a member of a view.
	Views Views
	// Memory, if not nil, is that of the process: see Limits.MemoryNames.
	Memory Memory
	// ManyBegun, if not nil, is called each time a client has begun that many more subscriptions to names of a type. It
	// must not block.
	ManyBegun func(names int)
	// Loads receives the load reports of clients. If it is nil, there is no load reporting service.
	Loads LoadReports
	// Log receives what an operator wants to know about clients; slog's default if nil.
	Log *slog.Logger
}

// Admission controls how fast a listener admits streams, and when it admits none.
type Admission struct {
	// StreamsPerSecond is the rate in the long run, and Burst how many streams are admitted at once. 0 means no limit.
	StreamsPerSecond, Burst int
	// Wait is the longest time that a stream waits in line.
	Wait time.Duration
	// Full, if not nil, reports that there is no memory for further streams. It is called for each stream.
	Full func() bool
}

// LoadReports processes what clients report.
type LoadReports interface {
	// Open begins the stream of a client, after its first request. The error, a gRPC status, is why the stream is
	// refused.
	Open(LoadClient) (LoadStream, error)
	// Held returns the memory, in bytes, of what the clients with an account have reported and the relay has not sent
	// yet; and that of all clients.
	Held(account any) (own, all int64)
}

// LoadClient is a client that reports.
type LoadClient struct {
	Client
	// Account is equal for clients of the same identity.
	Account any
	// Enter is called before the client uses a scope that it can make up, and returns an error if that is one too many.
	// Leave is called when the client no longer uses it.
	Enter func(cache.Scope) error
	Leave func(cache.Scope)
}

// LoadStream is the stream of one client that reports.
type LoadStream interface {
	// Report processes a report.
	Report(*lrsv3.LoadStatsRequest)
	// Response returns what to send, or nil; and after what time to call it again. 0 means only after Changed has a
	// value.
	Response() (r *lrsv3.LoadStatsResponse, again time.Duration)
	Changed() <-chan struct{}
	// Close is called once, when the client has gone.
	Close()
}

// Prefetcher watches topics that clients will request next. Its methods must not block.
type Prefetcher interface {
	// Join adds a stream whose client's names resolve as names says. covers are the wildcards and globs that the
	// stream watches, as far as they are remembered. onNew are the scopes in which the stream is on the new side of a
	// rollout.
	Join(names Names, covers []cache.Key, onNew []cache.Scope) PrefetchAudience
	// Follows reports whether resources of a type refer to others.
	Follows(typeURL string) bool
}

// PrefetchAudience is shared by all streams whose clients' names have the same meaning. It is comparable.
type PrefetchAudience interface {
	// Want notes that the stream watches a topic of a type that Follows reports, and Unwant that it no longer does.
	Want(cache.Key)
	Unwant(cache.Key)
	// Leave takes the stream out of the audience. The stream has called Unwant for every Want.
	Leave()
}

// Client is what a server knows of a client after its first request.
type Client struct {
	Node *corev3.Node
	// Through are the relays between the client and this relay; none if the client has not proven that it is a relay.
	Through chain.Chain
	// End ends the client's stream because of a loop of relays. It may be called at any time, with no locks held.
	End      func(why error)
	Identity *identity.Identity
	// SecretsForAnyone is ListenerOptions.SecretsForAnyone of its listener.
	SecretsForAnyone bool
}

// Rollouts decide which clients of a scope are on the new side.
type Rollouts interface {
	// Join begins a stream's part in the rollouts of an accepted scope. It returns nil if the scope has none. showing
	// is the side on which the stream begins, as Trial.Showing returns it.
	Join(scope cache.Scope, c TrialClient) (t Trial, showing uint64)
}

// RolledOutScopes can be implemented by Rollouts, because most scopes have none.
type RolledOutScopes interface {
	// RollsOut reports whether an accepted scope has rollouts. If not, Join would return nil.
	RollsOut(scope cache.Scope) bool
}

// TrialClient is what Rollouts know of a stream.
type TrialClient struct {
	Client
	// Name is the id of the client's Node, or its address if the id is empty. Conn is the address of its connection:
	// one value for each connection.
	Name string
	Conn net.Addr
	// Who identifies the party behind a client that is not on this machine: its identity, or else its address.
	Who string
	// Eligible: the client can be on the new side. A request that is answered once cannot, nor can a client with a
	// view: a view has what is accepted.
	Eligible bool
	// Resumed: the client holds something from an earlier stream.
	Resumed bool
	// Wake has the stream look at Showing and Filled. It does not block.
	Wake func()
}

// Trial is a stream's part in the rollouts of one scope. Its methods do not block, and take only innermost locks.
type Trial interface {
	// RollsOut reports whether changes of a type are rolled out.
	RollsOut(typeURL string) bool
	// Showing returns a nonzero number if the stream should be on the new side, and otherwise 0. If the number has
	// changed, the stream should have been on the accepted side in between.
	Showing() uint64
	// Moved notes that the stream has moved to the new side. Filled reports whether all topics that the stream watches
	// there have got their known states since then.
	Moved(showing uint64)
	Filled() bool
	// Revision returns a number. When it changes, there is more on the new side, and the stream has to call Sent or
	// Untouched again.
	Revision() uint64
	// Differing returns the names of the topics of a type that differ on the new side; all is true if there are many.
	// When further topics differ, Revision has changed.
	Differing(typeURL string) (names []string, all bool)
	// IsNew reports whether the resource with a hash is not accepted yet.
	IsNew(hash uint64) bool
	// Settled notes that the client has answered everything that it was sent first.
	Settled()
	// Withdraw notes that the client can only be on the accepted side from now on.
	Withdraw()
	// Sent, Untouched, Acked and Rejected report what becomes of the new state. Sent: some of it is being sent to the
	// client. Untouched: none of it is sent to the client, as of a Revision. Acked: the client has acknowledged
	// everything that it was sent. Rejected: the client has rejected some of it. words are its own, after the names of the
	// resources that it may have rejected. hashes are the hashes of the resources that were new in the rejected response,
	// nil if they are not known.
	Sent(showing uint64)
	Untouched(showing, revision uint64)
	Acked(showing uint64)
	Rejected(showing uint64, words string, by chain.Rejecters, hashes []uint64)
	// Ended reports that the scope no longer has rollouts: what was pending is accepted. The stream leaves.
	Ended() bool
	// Leave ends the stream's part. brokeOff means that neither the relay nor a half-close by the client has ended the
	// stream, as when a client dies.
	Leave(brokeOff bool)
}

// ListenerOptions are the settings of each listener.
type ListenerOptions struct {
	// MaxResponseBytes overrides that of Options if it is not 0.
	MaxResponseBytes int
	// MaxRequestBytes bounds what a client may send in one request; 4 MiB, as in gRPC, if 0.
	MaxRequestBytes int
	// KeepaliveTime is how long a connection may be quiet before it is probed, KeepaliveTimeout how long the answer may
	// take; gRPC's two hours and 20 seconds if 0.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// UserTimeout is how long sent data may stay unacknowledged on a TCP connection before the connection is given up;
	// the system's default if 0.
	UserTimeout time.Duration
	// StreamWindow and ConnWindow are how many bytes a client may send that have not been read. They are static,
	// without gRPC's estimator and its pings. If 0, they are 1 MiB.
	StreamWindow, ConnWindow int32
	// ReadBuffer and WriteBuffer are the sizes of gRPC's buffers, in bytes; its 32 KiB if 0.
	ReadBuffer, WriteBuffer int
	// ConnStreams bounds the open streams of one connection, if it is not 0: a client waits until there are fewer.
	ConnStreams int
	// Admission controls how fast streams are admitted.
	Admission Admission
	// MaxConnectionAge is how old a connection may become, give or take a quarter. Then its client is sent away. 0
	// means no limit.
	MaxConnectionAge time.Duration
	// Proxies reports whether connections from an address begin with a header of the PROXY protocol, with the client's
	// address. If Proxies is nil, no connections do.
	Proxies func(net.Addr) bool
	// LongPoll is how long a request that is answered once, over REST or by a Fetch method, waits for something that
	// its client does not have.
	LongPoll time.Duration
	// V2 serves the discovery services of the v2 transport, too.
	V2 bool
	// PassRedirects sends redirects to clients unchanged, and does not follow them: for relays behind this one.
	PassRedirects bool
	// Peers are other relays of the same fleet: they count as clients nowhere. Responses in delta tell them when the first
	// answer for a wildcard or a glob is complete: see wire.DeltaComplete.
	Peers bool
	// Prefetch has the relay request what its clients will request next: see Options.Prefetcher. It applies to new
	// streams at once, and to open ones at the next Reconfigure.
	Prefetch bool
	// SecretsForAnyone gives resources of type Secret also to clients that have proven no identity.
	SecretsForAnyone bool
	// WhenUnreachable selects the streams that end when nothing can be served on them.
	WhenUnreachable WhenUnreachable
	// Identify returns a client's identity, from what the client has presented. It is called once for each stream, and
	// for each request that gets one answer, before the relay reads the request. Its error is a gRPC status, with which
	// the call ends. If Identify is nil, clients prove nothing.
	Identify func(identity.Proof) (*identity.Identity, error)
	// Names, if not nil, takes the place of the Server's for the listener's clients. ctx is that of the stream.
	Names func(ctx context.Context, c Client) Names
	// Relays reports whether a client is a relay by its identity, so that the relays of which it speaks count for all
	// clients of its scopes. If Relays is nil, every client may be one.
	Relays func(*identity.Identity) bool
	// Admits returns why the listener no longer serves a client, nil if it does. It is called for each open stream
	// after Reconfigure. Its error is as that of Identify: the stream ends with it. If Admits is nil, streams stay.
	Admits func(*identity.Identity) error
	// Expiries, if not nil, gets the times at which clients' certificates expire.
	Expiries *Expiries
	// Door, if not nil, is the entrance of the listener's clients. It holds what follows from these options for
	// streams.
	Door *Door
	// Limits are what its clients may cost, and PerIdentity what all clients of one identity may.
	Limits      Limits
	PerIdentity IdentityLimits
}

// Limits bound what the clients of one listener may cost. Zero means no limit.
type Limits struct {
	// Subscriptions is the number of names that one stream subscribes to, of all types together.
	Subscriptions int
	// NameBytes is the length of a name.
	NameBytes int
	// RequestsPerSecond is how fast the requests of one stream are read in the long run, and RequestBurst how many are
	// read at once. A client that is faster is not cut off, but read more slowly.
	RequestsPerSecond, RequestBurst int
	// Streams is the number of streams that are open on the listener.
	Streams int
	// Scopes is the number of scopes that one stream uses: see streamScopes. ScopesPerConnection is that of all streams
	// of a gRPC connection together.
	Scopes, ScopesPerConnection int
	// MemoryNames and MemoryStreams are parts of the process's memory. While the process needs more than the first, new
	// names of the clients with the most names are refused. While it needs more than the second, streams of these
	// clients end.
	MemoryNames, MemoryStreams float64
	// Connections is the number of connections to the listener.
	Connections int
	// ConnectionsPerSecond is how many short-lived connections one address may have per second, in the long run.
	ConnectionsPerSecond int
	// StreamsPerSecond is how fast the new streams of one gRPC connection are read in the long run.
	StreamsPerSecond int
}

// IdentityLimits bound what all clients of one identity may cost together, on all listeners. A client that has proven
// no identity counts by its address. Zero means no limit.
type IdentityLimits struct {
	// Streams is the number of open streams.
	Streams int
	// Scopes is the number of scopes that its streams use: see streamScopes.
	Scopes int
	// Types is the number of types unknown to the relay that its streams request.
	Types int
	// Subscriptions is the number of names that its streams subscribe to: see identityNames.
	Subscriptions int
	// RequestsPerSecond is how many requests that get one answer it may send in the long run.
	RequestsPerSecond int
}

// WhenUnreachable selects the streams that end when the control planes of everything that they request are unreachable
// and none of it is held.
type WhenUnreachable uint8

// Which streams can end.
const (
	// Wait: no stream ends.
	Wait WhenUnreachable = iota
	// EndNames: those that subscribe to names only, as gRPC's do.
	EndNames
	// EndAll: also those that subscribe to wildcards and globs.
	EndAll
)
