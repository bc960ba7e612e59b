package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/chain"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/grpcreason"
	"github.com/xds-relay/xds-relay/internal/inbox"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/secrets"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Stream feeds the topics of one scope from a control plane. It has one gRPC stream at a time, which is open while
// there is something to subscribe to. An aggregated Stream is the [cache.Source] of its scope; a Stream for one type is
// one of [Streams].
type Stream struct {
	// Read only.
	scope  cache.Scope
	conn   grpc.ClientConnInterface
	node   *corev3.Node
	opts   Options
	limit  int // of a request without its node, in bytes
	to     delivery.Receiver
	log    *slog.Logger
	own    *slog.Logger // for lines about the stream: with its type, if it is for one type
	forms  []*form      // to try, in this order
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	// left receives a value when a gRPC stream has ended. It has room for one.
	left chan struct{}
	// inbox has the notes of Start, Stop and others. It wakes the goroutine for these, and for requests to send.
	inbox *inbox.Inbox[note]

	// mu is held during a delivery, so that deliveries are in order. The cache's locks come
	// after mu, so Start and Stop, which are called with these held, do not take it.
	mu    sync.Mutex
	form  *form
	feeds map[string]*feed // by type URL
	room  cache.Room       // of feeds
	live  bool             // a gRPC stream is open, and feeds have sessions
	// agenda has the feeds that need attention now or at a later time.
	agenda agenda
	// taken counts how often the notes were taken from the inbox.
	taken uint64
	// restless: a strict control plane has sent something, and lingering names have to go. See settle.
	restless bool
	// down is the error of all requested topics, from a failure until a stream is open again.
	down *cache.Error
	// relay: the control plane is a relay, as it has said on the last stream.
	relay bool
	// admitted: the control plane has answered something, on this stream, on its names stream or in a trial.
	admitted *atomic.Bool
	// touchyUntil is until when, in Unix nanoseconds, what starts is tried first: see probe. The names stream shares it.
	touchyUntil *atomic.Int64
	// outage lasts from a failure until the control plane has answered; otherwise it is nil.
	outage *cache.Outage
	// namesStream is the second stream, nil until it is needed. away has the types whose names are on it.
	namesStream *Stream
	away        map[string]struct{}
	awayRoom    cache.Room
	lines       lines
	quarantine  quarantine
	nodeLines   loglines.Shared
	// board's lock comes last.
	board board

	// Only the goroutine of the Stream uses these.
	backoff  backoff
	retryAt  time.Time
	swapped  bool      // the Stream tries the other form because the control plane does not implement this one
	retried  time.Time // when retryNow last shortened the wait
	endedAt  time.Time // when the last gRPC stream ended
	renoded  int       // Nodes that were replaced since the last response
	renewals pace      // how often the stream may be renewed because clients subscribe to more
	// rechained is when a stream was last opened to announce other relays.
	rechained time.Time
	announce  *chain.Chain // what the next stream announces; nil: the present chain
	// refusedAt is when refused names were last logged.
	refusedAt time.Time
}

// note is one call of Start, Refresh, Resume, Adopt, Stop or Resend, or the news that a peer has an answer.
type note struct {
	key         cache.Key
	again, stop bool
	resume      bool
	adopt       bool
	back        bool // a start, of a topic that was suspect
	tried       bool // which a trial has brought
	resend      bool // see Resend; key is empty
	retry, open bool // see peers; key is empty
	renode      bool // see renodeSoon; key is empty
}

// starts reports whether the note starts a topic.
func (n *note) starts() bool {
	return !n.stop && !n.again && !n.resume && !n.adopt
}

// server identifies the control plane that gave the versions of a scope.
type server struct {
	scope cache.Scope
	peers *peers
}

// config returns the configuration of the sessions of a type.
func (s *Stream) config(typeURL string) session.Config {
	c := session.Config{
		Scope: s.scope, TypeURL: typeURL, Server: server{s.scope, s.opts.peers},
		Speaks: s.opts.Speaks, Check: s.opts.Tally.Mode(), Modest: s.opts.Modest, NoGlobs: s.opts.NoGlobs,
	}
	if p := s.opts.Presence; p != nil {
		c.Habits = p.habits
	}
	if s.isAggregated() {
		c.Answers = s.opts.Answers
	}
	return c
}

// isAggregated reports that all types share the stream.
func (s *Stream) isAggregated() bool { return s.forms[0].typeURL == "" }

// withScope returns a logger whose lines name the scope.
func withScope(log *slog.Logger, scope cache.Scope) *slog.Logger {
	log = log.With("authority", scope.Authority, "partition", scope.Partition)
	if scope.Params != "" {
		log = log.With("parameters", loglines.Clip(scope.Params))
	}
	return log
}

// Start begins to feed a topic. It neither blocks nor calls the cache.
func (s *Stream) Start(k cache.Key) { s.inbox.Put(note{key: k}) }

// Refresh requests a topic again that is fed already. It neither blocks nor calls the cache.
func (s *Stream) Refresh(k cache.Key) { s.inbox.Put(note{key: k, again: true}) }

// Resume notes that a client holds the resource of a topic from an earlier stream of its own: see
// [cache.Resumer]. It neither blocks nor calls the cache.
func (s *Stream) Resume(k cache.Key) { s.inbox.Put(note{key: k, resume: true}) }

// Adopt notes that a client requests a topic for the first time that is fed already: see [cache.Adopter]. It neither
// blocks nor calls the cache.
func (s *Stream) Adopt(k cache.Key) { s.inbox.Put(note{key: k, adopt: true}) }

// Stop stops feeding a topic. It neither blocks nor calls the cache.
func (s *Stream) Stop(k cache.Key) { s.inbox.Put(note{key: k, stop: true}) }

// Resend delivers all resources that the Stream holds once more, and the errors of the topics that have none. It is
// for a receiver that has ignored deliveries so far. It neither blocks nor delivers.
func (s *Stream) Resend() { s.inbox.Put(note{resend: true}) }

// Close ends the stream. It does not wait, so it may be called with the cache's locks held. Once Done is closed, nothing
// more is delivered.
func (s *Stream) Close() { s.cancel() }

// Done is closed when the stream has ended, after Close.
func (s *Stream) Done() <-chan struct{} { return s.done }

// forgive clears the error of the last failure if nothing is subscribed to and the time to retry has come. The caller
// holds mu.
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

// wanted reports whether there is anything to subscribe to. The caller holds mu.
func (s *Stream) wanted() bool { return s.agenda.sum.wanted > 0 }

// place makes topics the stream's feed of their type, in place of earlier ones. If the earlier ones were requested on the
// present gRPC stream, the new ones have to wait for the next. The caller holds mu.
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
		s.typeEvent(delivery.TypeOpened, f)
	}
	return f
}

// withTTLs is implemented by topics, names and sets.
type withTTLs interface {
	// Ends returns when the TTLs of an update's resources expire.
	Ends(u *cache.Update) map[string]time.Time
}

// deliver delivers an update of some topics. The caller holds mu.
func (s *Stream) deliver(why delivery.Cause, of withTTLs, u cache.Update) {
	if len(u.Changes)+len(u.Sets) == 0 {
		return
	}
	if s.opts.Presence != nil {
		u.Server = s.opts.Presence.server
	}
	d := delivery.Delivery{Cause: why, Types: []cache.Update{u}}
	if s.opts.WithExpiresAt {
		d.ExpiresAt = of.Ends(&u)
	}
	s.to.Deliver(delivery.Event{Delivery: d})
}

// hints say which key of a server's configuration may be wrong.
var hints = map[grpcreason.Cause]string{
	grpcreason.WantsTLS:      " (TLS? The server may want it, and have it by `tls`)",
	grpcreason.Plaintext:     " (the server speaks plaintext: it has no `tls`)",
	grpcreason.HTTP1:         " (an HTTP/1.1 server: another port, or `protocol: rest`)",
	grpcreason.NotGRPC:       " (an HTTP server without gRPC: another port, or `protocol: rest`)",
	grpcreason.NoService:     " (the server has no aggregated service: `aggregated: false`)",
	grpcreason.NoCertificate: " (the server requires a client certificate: `tls.cert_file`)",
	grpcreason.NoAddress:     " (DNS has no address for the host)",
}

// Reason returns the text of an error, with the key of the configuration that may be wrong.
func Reason(err error) string {
	if errors.Is(err, io.EOF) {
		return "the control plane has ended the stream"
	}
	if st, ok := status.FromError(err); ok {
		text, cause := grpcreason.Plain(st.Message())
		if cause == grpcreason.NoService && !strings.Contains(text, xdstype.AggregatedV3.Name) {
			cause = grpcreason.Other
		}
		return fmt.Sprintf("%s: %s%s", st.Code(), secrets.Words(loglines.Clip(text)), hints[cause])
	}
	return err.Error()
}

var (
	_ cache.Resumer = (*Stream)(nil)
	_ cache.Adopter = (*Stream)(nil)
)
