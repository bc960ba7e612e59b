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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/secrets"
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
	// wake wakes the goroutine, as there are notes, or answers to be sent.
	wake chan struct{}

	// inbox is what Start and Stop have noted. It comes last in the order of locks.
	inbox struct {
		sync.Mutex
		notes []note
	}

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
	away        map[string]*names
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

// note is one call of Start, Refresh, Resume, Stop or Resend, or that a peer was answered.
type note struct {
	key         cache.Key
	again, stop bool
	resume      bool
	resend      bool // see Resend; then there is no key
	retry, open bool // see peers; nor is there then
}

// NewStream begins to feed a scope. The connection belongs to the caller, who may
// share it; node is how the stream announces itself and must not be changed any
// more. Close ends it.
func NewStream(scope cache.Scope, conn grpc.ClientConnInterface, node *corev3.Node, o Options, sink Sink, log *slog.Logger) *Stream {
	log = withScope(log, scope)
	o.Watch, o.peers = mergeEvents(o.Watch), new(peers)
	if o.Presence == nil {
		o.Presence = NewPresence("", log)
	}
	return newStream(o.Protocol.forms(), scope, conn, node, o, sink, log)
}

// withScope returns a logger whose lines say which scope they are about.
func withScope(log *slog.Logger, scope cache.Scope) *slog.Logger {
	log = log.With("authority", scope.Authority, "partition", scope.Partition)
	if scope.Params != "" {
		log = log.With("parameters", loglines.Clip(scope.Params))
	}
	return log
}

func newStream(forms []*form, scope cache.Scope, conn grpc.ClientConnInterface, node *corev3.Node, o Options, sink Sink, log *slog.Logger) *Stream {
	const header = 64
	o = o.withDefaults()
	s := &Stream{
		scope: scope,
		conn:  conn,
		node:  node,
		opts:  o,
		limit: o.MaxRequestBytes - proto.Size(node) - header,
		sink:  sink,
		log:   log,
		own:   log,
		forms: forms,
		done:  make(chan struct{}),
		left:  make(chan struct{}, 1),
		wake:  make(chan struct{}, 1),
		feeds: map[string]*feed{},
	}
	s.speak(o.Presence.forms.first(forms))
	if typeURL := forms[0].typeURL; typeURL != "" {
		s.own = log.With("type_url", typeURL)
	}
	s.backoff = backoff{base: o.BackoffBase, limit: o.BackoffMax}
	s.renewals = pace{base: max(o.BackoffBase, shortestRenewal), limit: max(o.BackoffMax, shortestRenewal)}
	s.board.status.Since = time.Now()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	o.peers.join(s)
	go s.run()
	return s
}

// Start begins to feed a topic. It neither blocks nor calls the cache.
func (s *Stream) Start(k cache.Key) { s.note(note{key: k}) }

// Refresh asks anew for a topic that is fed. It neither blocks nor calls the cache.
func (s *Stream) Refresh(k cache.Key) { s.note(note{key: k, again: true}) }

// Resume notes that a client holds the resource of a topic that is fed from an earlier
// stream: see [cache.Resumer]. It neither blocks nor calls the cache.
func (s *Stream) Resume(k cache.Key) { s.note(note{key: k, resume: true}) }

// Stop ends the feeding of a topic. It neither blocks nor calls the cache.
func (s *Stream) Stop(k cache.Key) { s.note(note{key: k, stop: true}) }

// Resend sends the sink once more all that is held, and why what is wanted and not
// held cannot be had: for a sink that has not listened. It neither blocks nor calls
// the sink.
func (s *Stream) Resend() { s.note(note{resend: true}) }

// Close ends the stream. It does not wait, and so may be called with the cache
// locked; once Done is closed nothing comes to the sink any more.
func (s *Stream) Close() { s.cancel() }

// Done is closed when the stream has ended, after Close.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Drain waits until the control plane has been sent that nothing is wanted any
// more, but not for long. It is for the time between the last Stop and Close.
func (s *Stream) Drain() {
	s.mu.Lock()
	b := s.namesStream
	s.mu.Unlock()
	if b != nil {
		left := make(chan struct{})
		go func() { defer close(left); b.Drain() }()
		defer func() { <-left }()
	}
	patience := time.NewTimer(2 * parting)
	defer patience.Stop()
	for {
		s.mu.Lock()
		live := s.live
		s.mu.Unlock()
		if !live {
			return
		}
		select {
		case <-s.left:
		case <-s.done:
			return
		case <-patience.C:
			return
		}
	}
}

func (s *Stream) note(n note) {
	s.inbox.Lock()
	s.inbox.notes = append(s.inbox.notes, n)
	s.inbox.Unlock()
	s.wakeUp()
}

func (s *Stream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run opens the stream whenever there is something to subscribe to.
func (s *Stream) run() {
	defer close(s.done)
	defer s.watchChain()()
	defer s.opts.peers.leave(s)
	defer s.opts.Presence.leaves(s)
	for s.await() {
		s.ended(s.serve())
	}
	if b := s.namesStream; b != nil {
		<-b.done
	}
}

// await returns when a stream is to be opened, or false if none is any more.
func (s *Stream) await() bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if s.takeNotes() {
			wait := time.Until(s.retryAt)
			if wait <= 0 {
				return s.ctx.Err() == nil
			}
			timer.Reset(min(wait, s.untilDue()))
		} else {
			s.opts.Presence.rests(s)
		}
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.ctx.Done():
			return false
		}
	}
}

// takeNotes takes the notes of Start and Stop, and says whether anything is
// wanted. All that came in a burst is taken together.
func (s *Stream) takeNotes() (wanted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inbox.Lock()
	notes := s.inbox.notes
	s.inbox.notes = nil
	s.inbox.Unlock()
	s.taken++
	s.forgive()
	w := newNoted(s)
	resend := false
	for _, n := range notes {
		switch {
		case n.resend:
			resend = true
		case n.retry:
			s.retryNow(!n.open)
		default:
			w.take(n)
		}
	}
	w.done()
	if resend {
		s.resendAll()
	}
	if !s.live {
		s.attendOffline(time.Now())
	}
	if len(notes) > 0 {
		s.count()
	}
	return s.wanted()
}

// attendOffline does what there is to be done without a stream. The caller holds mu.
func (s *Stream) attendOffline(now time.Time) {
	for _, f := range s.concerned(now) {
		s.apply(f.topics, f.topics.expire(now))
		if f.wanted() == 0 {
			s.remove(f)
			continue
		}
		s.schedule(f, false)
	}
}

// forgive forgets why nothing could be had, if that was long ago. The caller holds
// mu.
func (s *Stream) forgive() {
	if !s.wanted() && !time.Now().Before(s.retryAt) {
		s.down = nil
	}
}

// untilDue returns in what time something comes about by time alone, or a long
// time.
func (s *Stream) untilDue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.agenda.due.Next(); ok {
		return min(never, time.Until(at))
	}
	return never
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

// withTTLs are topics, or names, or sets.
type withTTLs interface {
	// ends returns when the TTLs of what an update has expire.
	ends(u *cache.Update) map[string]time.Time
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
		u.ExpiresAt = of.ends(&u)
	}
	s.sink.Apply(u)
}

// resendAll does what Resend asked for. The caller holds mu.
func (s *Stream) resendAll() {
	for _, f := range s.sorted() {
		s.apply(f.topics, f.topics.resend())
	}
	if b := s.namesStream; b != nil {
		b.Resend()
	}
}

// ended takes note of the end of a stream, and decides what comes next.
func (s *Stream) ended(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = false
	select {
	case s.left <- struct{}{}:
	default:
	}
	s.setConnected(false)
	blamed := s.blame(c)
	for _, f := range s.feeds {
		f.session, f.stale = nil, false
		if l := s.opts.Links; l != nil {
			l.Lost(f.typeURL())
		}
		if f.topics.lost(); f.wanted() == 0 {
			s.remove(f)
		} else {
			s.concern(f)
		}
	}
	if c.responded {
		s.backoff.reset()
		s.swapped = false
	}
	switch err := c.err; {
	case err == nil, blamed, errors.Is(err, errRenew), s.ctx.Err() != nil:
		s.event(Ended, "")
		s.opts.Presence.rests(s)
		return
	case len(s.forms) > 1 && !c.responded && status.Code(err) == codes.Unimplemented:
		s.board.post(func(st *Status) { st.LastError = reason(err) })
		s.change(s.other(c.form))
		if s.opts.Presence.forms.found(c.form) {
			s.own.Info("control plane does not implement this form, using the other", "server", s.opts.Presence.server,
				"protocol", string(c.form.name), "instead", string(s.form.name), "reason", reason(err))
		}
		if !s.swapped {
			s.swapped = true
			return
		}
		s.swapped = false // neither: perhaps it is something on the way that answers
		s.change(s.forms[0])
		fallthrough
	default:
		wait := s.backoff.delay()
		s.retryAt = time.Now().Add(wait)
		s.lost(c, reason(err), wait)
	}
}

// change has the next stream speak another form. The caller holds mu.
func (s *Stream) change(f *form) {
	s.speak(f)
	s.separateNames()
}

// other returns the other one of two forms.
func (s *Stream) other(than *form) *form {
	if than == s.forms[0] {
		return s.forms[1]
	}
	return s.forms[0]
}

// lost says that the stream was lost, and why, to the operator and to those who
// wait. The caller holds mu.
func (s *Stream) lost(c *call, reason string, wait time.Duration) {
	s.board.post(func(st *Status) { st.LastError = reason })
	s.own.Debug("stream to control plane has ended", "reason", reason, "retry_in", wait)
	s.opts.Presence.lost(s, reason, c.responded)
	if c.responded {
		// gRFC A57: "Handling ADS Stream Termination". Servers end streams now and
		// then, and nobody has to know.
		s.event(Lost, reason)
		return
	}
	s.event(Failed, reason)
	if s.outage == nil {
		s.outage = new(cache.Outage)
	}
	s.down = &cache.Error{
		Outage:  s.outage,
		Code:    codes.Unavailable,
		Message: loglines.Clip(fmt.Sprintf("control plane of %s cannot be reached: %s", s.scope, reason)),
	}
	for _, f := range s.sorted() {
		u := f.topics.newUpdate()
		f.topics.failed(s.down, &u)
		s.apply(f.topics, u)
	}
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

var _ cache.Resumer = (*Stream)(nil)
