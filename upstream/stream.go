package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/inbox"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/secrets"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Sink takes what has become known. It is a [cache.Cache].
type Sink interface {
	Apply(cache.Update)
}

// Stream feeds the topics of one scope from a control plane, over one gRPC stream,
// which is open while there is something to subscribe to: the aggregated one, and
// then it is the [cache.Source] of that scope, or one of [Streams].
type Stream struct {
	// Read only.
	scope  cache.Scope
	conn   grpc.ClientConnInterface
	node   *corev3.Node
	opts   Options
	limit  int // of a request without its node, in bytes
	sink   Sink
	log    *slog.Logger
	own    *slog.Logger // for what is about the stream: has its type, if it is for one
	forms  []*form      // that are tried, in this order
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	// left has room for one, and gets it when a stream has ended.
	left chan struct{}
	// inbox is what Start and Stop have noted. It wakes the goroutine for that, and for answers that are to be sent.
	inbox *inbox.Inbox[note]

	// mu is held while the sink takes an update, so that updates are taken in the
	// order in which they came about. The cache's locks come after it: Start and
	// Stop, which are called with those, leave it alone.
	mu    sync.Mutex
	form  *form
	feeds map[string]*feed // by type URL
	room  cache.Room       // of feeds
	// ofRelay: the control plane of the present stream is a relay.
	ofRelay bool
	live    bool // a gRPC stream is open, and feeds have sessions
	// agenda has each feed to which something has happened or will.
	agenda agenda
	// taken is how often the notes were taken.
	taken uint64
	// down is why nothing can be had, from a failure until a stream is open again.
	down *cache.Error
	// outage lasts from a failure until the control plane has answered; nil if there is
	// none.
	outage *cache.Outage
	// namesStream is the second stream, nil until it was needed, and away are the names
	// that are on it, by their types. The goroutine is that of the first stream.
	namesStream *Stream
	away        map[string]*session.Names
	awayRoom    cache.Room
	lines       lines
	// board comes last in the order of locks.
	board board

	// Of the goroutine.
	backoff  backoff
	retryAt  time.Time
	swapped  bool      // the other form is tried, as the control plane does not implement one
	retried  time.Time // when it was last tried before that, see retryNow
	renewals pace      // of the stream, for what clients wish
	// rechained is when one was last opened to announce other relays.
	rechained time.Time
	announce  *chain.Chain // what the next one is to announce, nil for what there is
	// refusedAt is when names were last logged that were refused.
	refusedAt time.Time
}

// note is one call of Start, Refresh, Resume, Adopt, Stop or Resend, or that a peer was answered.
type note struct {
	key         cache.Key
	again, stop bool
	resume      bool
	adopt       bool
	resend      bool // see Resend; then there is no key
	retry, open bool // see peers; nor is there then
}

// server is a control plane as what says the versions of a scope.
type server struct {
	scope cache.Scope
	peers *peers
}

// config returns what the names and sets of a type are made with.
func (s *Stream) config(typeURL string) session.Config {
	c := session.Config{
		Scope: s.scope, TypeURL: typeURL, Server: server{s.scope, s.opts.peers},
		Speaks: s.opts.Speaks, Check: s.opts.Tally.Mode(), Modest: s.opts.Modest, NoGlobs: s.opts.NoGlobs,
	}
	if p := s.opts.Presence; p != nil {
		c.Habits = p.habits
	}
	return c
}

// withScope returns a logger whose lines say which scope they are about.
func withScope(log *slog.Logger, scope cache.Scope) *slog.Logger {
	log = log.With("authority", scope.Authority, "partition", scope.Partition)
	if scope.Params != "" {
		log = log.With("parameters", loglines.Clip(scope.Params))
	}
	return log
}

// Start begins to feed a topic. It neither blocks nor calls the cache.
func (s *Stream) Start(k cache.Key) { s.inbox.Put(note{key: k}) }

// Refresh asks anew for a topic that is fed. It neither blocks nor calls the cache.
func (s *Stream) Refresh(k cache.Key) { s.inbox.Put(note{key: k, again: true}) }

// Resume notes that a client holds the resource of a topic that is fed from an earlier
// stream: see [cache.Resumer]. It neither blocks nor calls the cache.
func (s *Stream) Resume(k cache.Key) { s.inbox.Put(note{key: k, resume: true}) }

// Adopt notes that the first client requests a topic that is fed: see [cache.Adopter]. It neither blocks
// nor calls the cache.
func (s *Stream) Adopt(k cache.Key) { s.inbox.Put(note{key: k, adopt: true}) }

// Stop ends the feeding of a topic. It neither blocks nor calls the cache.
func (s *Stream) Stop(k cache.Key) { s.inbox.Put(note{key: k, stop: true}) }

// Resend sends the sink once more all that is held, and why what is wanted and not
// held cannot be had: for a sink that has not listened. It neither blocks nor calls
// the sink.
func (s *Stream) Resend() { s.inbox.Put(note{resend: true}) }

// Close ends the stream. It does not wait, and so may be called with the cache
// locked; once Done is closed nothing comes to the sink any more.
func (s *Stream) Close() { s.cancel() }

// Done is closed when the stream has ended, after Close.
func (s *Stream) Done() <-chan struct{} { return s.done }

// forgive forgets why nothing could be had, if that was long ago. The caller holds
// mu.
func (s *Stream) forgive() {
	if !s.wanted() && !time.Now().Before(s.retryAt) {
		s.down = nil
	}
}

// sorted returns the feeds by their types. That happens to be the order in which
// clients need them: clusters, endpoints, listeners, routes. The caller holds mu.
func (s *Stream) sorted() []*feed {
	feeds := make([]*feed, 0, len(s.feeds))
	for _, typeURL := range slices.Sorted(maps.Keys(s.feeds)) {
		feeds = append(feeds, s.feeds[typeURL])
	}
	return feeds
}

// wanted says whether there is anything to subscribe to. The caller holds mu.
func (s *Stream) wanted() bool { return s.agenda.sum.wanted > 0 }

// place makes topics the stream's feed of their type. What was there before is not the
// stream's any more; if it was requested, the topics have to wait for the next stream. The
// caller holds mu.
func (s *Stream) place(of *session.Topics) *feed {
	typeURL := of.TypeURL()
	f := s.feeds[typeURL]
	if f == nil {
		f = &feed{}
		s.feeds[typeURL] = f
	}
	f.stale = f.stale || f.begun()
	f.topics, f.session, f.lastNack = of, nil, ""
	if s.live && !f.stale {
		f.session = s.form.begin(of)
	}
	return f
}

// withTTLs are topics, or names, or sets.
type withTTLs interface {
	// Ends returns when the TTLs of what an update has expire.
	Ends(u *cache.Update) map[string]time.Time
}

// apply applies an update of some topics to the cache. The caller holds mu.
func (s *Stream) apply(of withTTLs, u cache.Update) {
	if len(u.Changes)+len(u.Sets) == 0 {
		return
	}
	if s.opts.Presence != nil {
		u.Server = s.opts.Presence.server
	}
	if s.opts.WithExpiresAt {
		u.ExpiresAt = of.Ends(&u)
	}
	s.sink.Apply(u)
}

// reason puts an error in words.
func reason(err error) string {
	if errors.Is(err, io.EOF) {
		return "the control plane has ended the stream"
	}
	if st, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s: %s", st.Code(), secrets.Words(loglines.Clip(st.Message())))
	}
	return err.Error()
}

var (
	_ cache.Resumer = (*Stream)(nil)
	_ cache.Adopter = (*Stream)(nil)
)
