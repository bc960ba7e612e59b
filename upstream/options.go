package upstream

import (
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/taster"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Options are the settings of a Stream. The zero value of each means its default.
type Options struct {
	// Protocol is Auto by default.
	Protocol Protocol
	// BackoffBase and BackoffMax are the shortest and the longest time between
	// attempts to open the stream: 500 ms and 30 s by default.
	BackoffBase, BackoffMax time.Duration
	// ResponseTimeout is how long a name waits for an answer: 15 s by default, as
	// recommended. xDS: "Knowing When a Requested Resource Does Not Exist".
	ResponseTimeout time.Duration
	// MaxRequestBytes is the length of the longest request, with the Node. The default is
	// just below 4 MiB, which gRPC servers take if they have not been set otherwise. What
	// does not fit is not asked for, see budget.
	MaxRequestBytes int
	// Modest, if not nil, says whether a name is asked for by a client whose names of its
	// type are at most so many bytes: see cache.Cache.HasSmallClient.
	Modest func(k cache.Key, most int64) bool
	// ClientRequests, if not nil, are those of which names are being noted: the first request of a
	// type waits for their end.
	ClientRequests *cache.Requests
	// ForceAnswer has a control plane that could not be reached asked for something that it
	// has to answer, once a stream is open again: one of the resources that are held,
	// or in SotW all of one type, come once more. Otherwise one that has nothing new to
	// say looks like one that does not answer.
	ForceAnswer bool
	// Speaks, if not nil, says whether the control plane is believed in what it says of
	// another authority, because that is served from the same place.
	Speaks func(authority string) bool
	// NoGlobs says that the control plane does not know glob collections: they are fed
	// from the wildcard of their type. In SotW they always are.
	NoGlobs bool
	// Chain, if not nil, is the relays that the stream announces.
	Chain Announced
	// ResourceErrors, if not nil, counts the resource_errors that came. It may be
	// shared.
	ResourceErrors *atomic.Uint64
	// Watch, if not nil, is called with what becomes of the control plane, in order, and in
	// order with the updates of the sink. It must not block, and must not call the
	// Stream but to Close it.
	Watch func(Event)
	// Links, if not nil, is told which types have a stream for their sets, and which are answered
	// on it. It must not block, and must not call the Stream.
	Links Links
	// WithExpiresAt adds to updates when TTLs expire (cache.Update.ExpiresAt).
	WithExpiresAt bool
	// Presence, if not nil, is that of the server, for all of its streams.
	Presence *Presence
	// typeAnswered, if not nil, is called with the stream's lock when a type that is requested has
	// its first response. typesBlamed is called with it when the control plane has ended the
	// stream, with why and the types of which one may be the reason. It says whether any of them
	// is not requested on the stream any more.
	typeAnswered func(typeURL string)
	typesBlamed  func(types []string, why string) bool
	// peers are the streams to the same control plane, each with these Options.
	peers *peers
	// Tally says what becomes of resources that clients would reject, and takes note of them. If
	// it is nil, those are refused that no client can read.
	Tally *taster.Tally
	// Tracer, if not nil, makes a span of each response that is sampled.
	Tracer trace.Tracer
	// LargeResponse, if not nil, is called with the size in bytes of each gRPC response of 1 MiB and more, before
	// the response is processed. It must not block, and is called concurrently.
	LargeResponse func(bytes int)
	// Recall, if not nil, gives what the relay had of a topic from this server before it was
	// started: the resource of a name, or the members of a set, each with what it is kept
	// under. It is asked before the first request of a type on a delta stream. See recall.go.
	Recall func(k cache.Key, yield func(key string, r *cache.Resource))
	// Seed, if not nil, gives what is held of a topic that came from another server
	// whose versions mean the same: the resource of a name, or the members of a
	// wildcard, each with what it is kept under. It is asked when a delta stream
	// opens, about what this server has not answered.
	Seed func(k cache.Key, yield func(key string, r *cache.Resource))
}

// Links follow the streams of types.
type Links interface {
	// Opened says that a type is requested on a new stream, Answered that it has its first
	// response there, and Lost that the stream has ended.
	Opened(typeURL string)
	Answered(typeURL string)
	Lost(typeURL string)
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

// Announced is the relays that a stream announces.
type Announced interface {
	// Chain returns them as they are now.
	Chain() chain.Chain
	// Stale says that a stream which has announced these is to be opened anew.
	Stale(announced []string) bool
	// Watch has f called when Stale may have changed, until stop. f does not block.
	Watch(f func()) (stop func())
}
