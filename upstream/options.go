package upstream

import (
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Options are the settings of a Stream. The zero value of a field stands for its default.
type Options struct {
	// Protocol is Auto by default.
	Protocol Protocol
	// BackoffBase and BackoffMax are the shortest and the longest time between
	// attempts to open the stream: 500 ms and 30 s by default.
	BackoffBase, BackoffMax time.Duration
	// ResponseTimeout is how long the Stream waits for an answer for a name: 15 s by default, as
	// xDS recommends. xDS: "Knowing When a Requested Resource Does Not Exist".
	ResponseTimeout time.Duration
	// MaxRequestBytes is the length of the longest request, with the Node. The default is
	// just below 4 MiB, which gRPC servers accept by default. Names that do not fit are not
	// requested: see session/budget.go.
	MaxRequestBytes int
	// NodeOnce says that only the first request of a gRPC stream has the Node. Otherwise each request has it.
	NodeOnce bool
	// Nodes, if not nil, has the Node that the stream sends in place of the one that it was opened with.
	Nodes Nodes
	// Modest, if not nil, reports whether a modest client requests a name. The names of the type that
	// such a client requests have at most `most` bytes together: see cache.Cache.HasSmallClient.
	Modest func(k cache.Key, most int64) bool
	// ClientRequests, if not nil, are the client requests whose names are being watched. The first
	// request of a type waits until these have ended, see gather.go.
	ClientRequests *cache.Requests
	// ForceAnswer makes a control plane that could not be reached answer once a stream is open
	// again: the stream requests that one of the held resources, or in SotW all of one type, be
	// sent again. Otherwise a control plane that has nothing new looks like one that does not
	// answer.
	ForceAnswer bool
	// Speaks, if not nil, reports whether the relay accepts what the control plane sends about
	// another authority, because both authorities have the same origin.
	Speaks func(authority string) bool
	// NoGlobs says that the control plane does not know glob collections. They are then fed
	// from the wildcard of their type. In SotW they always are.
	NoGlobs bool
	// Answers says which requests the control plane answers on an aggregated SotW stream: AnswersAll by default.
	Answers session.Answers
	// DropIdle, if not nil, drops the names of the scope that nobody requests, and for that time those that nobody
	// requests any more. It is called after responses of a control plane that answers only requests of which it has every
	// name: see cache.Cache.DropIdle.
	DropIdle func(scope cache.Scope, within time.Duration)
	// Chain, if not nil, has the relays that the stream announces.
	Chain Announced
	// ResourceErrors, if not nil, counts the resource_errors received. Streams may share it.
	ResourceErrors *atomic.Uint64
	// watch is called with each event of the stream: see mergeEvents.
	watch func(delivery.Event)
	// WithExpiresAt adds to deliveries when TTLs expire.
	WithExpiresAt bool
	// Presence, if not nil, is that of the server. All streams to the server share it.
	Presence *Presence
	// typeAnswered, if not nil, is called with the stream's lock when the first response of a
	// requested type has come. typesBlamed, if not nil, is called with that lock when the control
	// plane has ended the stream, with the reason and the types that may have caused it. It returns
	// whether any of them is no longer requested on the stream.
	typeAnswered func(typeURL string)
	typesBlamed  func(types []string, why string) bool
	// noQuarantine: what the control plane ends streams for is not isolated. trialEnded, if not nil, is called with the
	// stream's lock when a stream has ended. renoded: the Node may be why, and the next one is another. See
	// quarantine_trial.go.
	noQuarantine bool
	trialEnded   func(err error, renoded bool)
	// peers are the streams to the same control plane, each with these Options.
	peers *peers
	// Tally decides what becomes of resources that clients would reject, and counts them. If
	// it is nil, the relay refuses the resources that no client can read.
	Tally *taster.Tally
	// Tracer, if not nil, makes a span of each response that is sampled.
	Tracer trace.Tracer
	// Recall, if not nil, yields the resources of a topic that the relay had from this server
	// before it was started: the resource of a name, or the members of a set, each with its key.
	// It is called before the first request of a type on a delta stream. See session/recall.go.
	Recall func(k cache.Key, yield func(key string, r *cache.Resource))
	// Seed, if not nil, yields the held resources of a topic that came from another server
	// with the same versions: the resource of a name, or the members of a wildcard, each with its
	// key. It is called when a delta stream opens, for topics that this server has not answered.
	Seed func(k cache.Key, yield func(key string, r *cache.Resource))
}

const (
	defaultBackoffBase     = 500 * time.Millisecond
	defaultBackoffMax      = 30 * time.Second
	defaultMaxRequestBytes = 4<<20 - 64<<10
)

func (o Options) withDefaults() Options {
	o.Protocol = or(o.Protocol, Auto)
	o.BackoffBase = or(o.BackoffBase, defaultBackoffBase)
	o.BackoffMax = or(o.BackoffMax, max(o.BackoffBase, defaultBackoffMax))
	o.ResponseTimeout = or(o.ResponseTimeout, session.DefaultResponseTimeout)
	o.MaxRequestBytes = or(o.MaxRequestBytes, defaultMaxRequestBytes)
	return o
}

// Announced has the relays that a stream announces.
type Announced interface {
	// Chain returns the relays to announce now.
	Chain() chain.Chain
	// ID returns the value of chain.IDHeader.
	ID() string
	// Stale reports whether a stream that has announced these relays must be opened again.
	Stale(announced []string) bool
	// Refused reports whether a control plane has ended a stream that has announced these relays, with that text,
	// because of some of them, which Chain no longer has.
	Refused(announced []string, text string) bool
	// Watch calls f whenever the result of Stale may have changed, until stop is called. f must not block.
	Watch(f func()) (stop func())
}
