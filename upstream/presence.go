package upstream

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Presence logs when a control plane is lost and when it answers again, with one
// line for all of its streams. Streams that are lost at about the same time
// count as one loss. The end of each stream, and each attempt, is logged at debug level.
//
//	lost       a stream that is needed has ended: a loss begins, and is
//	           logged a moment later, with the number of lost streams
//	cannot be  the first attempt to open one of them again has failed. (A stream that
//	reached    ends after a response is no failure. gRFC A57)
//	answers    one of them has had a response again; the line counts the streams that had one
//	again      soon after, too
//
// The losses of an unstable control plane are logged a few times, and then at most every
// lossEvery, with the number of losses that were left out (skipped). A loss that lasts is never left
// out, only logged that much later.
//
// While no stream is up, streams that are lost later join the present loss. If
// others are up, as when a control plane refuses one Node, they begin another loss.
type Presence struct {
	server string
	log    *slog.Logger
	habits *session.Habits // set before there are streams
	forms  unimplemented
	types  planeTypes

	mu      sync.Mutex // comes last in the order of locks
	streams map[*Stream]*presentStream
	room    cache.Room // of streams
	up      int        // streams that have had a response and are open
	current *loss      // the loss that streams join which are lost now; nil if there is none
	// lossLines bounds the lines, and skipped counts the losses without one since the last.
	lossLines *rate.Limiter
	skipped   int
	// reportedUp: a line says that the control plane answers, and none since that it is lost.
	reportedUp bool
}

// presentStream is the state of a stream. Presence.mu guards it.
type presentStream struct {
	up   bool
	loss *loss // nil if it is not lost
}

// loss is the loss of a control plane. Presence.mu guards it.
type loss struct {
	since    time.Time
	first    *slog.Logger // of the first stream
	reason   string       // of the first stream
	quiet    bool         // the first stream ended after a response
	streams  int          // that were ever part of it
	reported bool         // its "lost" line was logged
	late     bool         // the bound has delayed its "lost" line
	failed   bool         // a line says that the control plane cannot be reached
	back     time.Time    // when the first of its streams had a response again
	again    int          // streams that had a response again
	left     int          // streams that are still part of it
}

// together is how long a line waits for further streams that share a loss, or its end.
const together = 250 * time.Millisecond

// How many losses of one server are logged at once, and how often one after that.
const (
	lossesAtOnce = 3
	lossEvery    = 10 * time.Second
)

// catchUp: a failure within this time after the control plane has answered belongs to the old loss,
// as the attempt may have begun before the answer.
const catchUp = time.Second

// NewPresence makes a Presence for all streams to a server. Its lines name the server.
func NewPresence(server string, log *slog.Logger) *Presence {
	return &Presence{
		server: server, log: log, streams: map[*Stream]*presentStream{},
		habits:    session.NewHabits(new(sync.Mutex)),
		lossLines: rate.NewLimiter(rate.Every(lossEvery), lossesAtOnce),
	}
}

// Inherit makes p share the habits of before, which is the Presence of the same server: how the
// control plane answers, as far as it has been seen. It must be called before p is used.
func (p *Presence) Inherit(before *Presence) { p.habits = before.habits }

// of returns the state of a stream. The caller holds mu.
func (p *Presence) of(s *Stream) *presentStream {
	st := p.streams[s]
	if st == nil {
		st = &presentStream{}
		p.streams[s] = st
	}
	return st
}

// setUp notes whether a stream is up. The caller holds mu.
func (p *Presence) setUp(st *presentStream, up bool) {
	if st.up == up {
		return
	}
	st.up = up
	if up {
		p.up++
	} else {
		p.up--
	}
}

// lost notes that a stream has ended and will be opened again. responded says that there
// was a response on it.
func (p *Presence) lost(s *Stream, reason string, responded bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.of(s)
	p.setUp(st, false)
	if l := st.loss; l != nil && (l.back.IsZero() || time.Since(l.back) < catchUp) {
		p.failed(l, reason, responded)
		return
	}
	p.drop(st)
	l := p.current
	if l == nil {
		l = &loss{since: time.Now(), first: s.own, reason: reason, quiet: responded}
		p.current = l
		time.AfterFunc(together, func() { p.reportLost(l) })
	}
	st.loss = l
	l.streams++
	l.left++
	p.failed(l, reason, responded)
}

// failed notes an attempt that has failed. The caller holds mu.
func (p *Presence) failed(l *loss, reason string, responded bool) {
	switch {
	case responded, l.failed, !l.back.IsZero():
	case !l.reported:
		if l.quiet {
			l.quiet, l.reason = false, l.reason+"; then: "+reason
		}
		l.failed = true
	default:
		l.failed = true
		p.logger(l).Warn("control plane cannot be reached", "streams", l.streams, "reason", reason, "event", "control_plane")
	}
}

// logger returns the logger for a loss. If the loss has only one stream, its lines name the stream.
// The caller holds mu.
func (p *Presence) logger(l *loss) *slog.Logger {
	log := p.log
	if l.streams == 1 {
		log = l.first
	}
	if p.server != "" {
		log = log.With("server", p.server)
	}
	return log
}

// reportLost logs a loss.
func (p *Presence) reportLost(l *loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.left == 0 && l.again == 0 {
		return // nothing is wanted any more
	}
	over := !l.back.IsZero()
	if (p.up > 0 || over) && p.current == l {
		p.current = nil // others can still be lost
	}
	switch {
	case over && l.late:
		return // it was counted in skipped when it was over
	case p.lossLines.Allow():
	case over:
		p.skipped++
		return
	default:
		l.late = true
		time.AfterFunc(lossEvery, func() { p.reportLost(l) })
		return
	}
	l.reported, p.reportedUp = true, false
	level := slog.LevelWarn
	if l.quiet {
		level = slog.LevelInfo
	}
	log := p.logger(l)
	if p.skipped > 0 {
		log = log.With("skipped", p.skipped)
		p.skipped = 0
	}
	log.Log(context.Background(), level, "control plane lost", "streams", l.streams, "reason", l.reason, "event", "control_plane")
	if over {
		p.reportBack(l)
	}
}

// answered notes the first response of a stream. An open stream is not enough: a
// control plane may refuse every stream after it was opened.
func (p *Presence) answered(s *Stream, protocol Protocol) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.of(s)
	p.setUp(st, true)
	l := st.loss
	if l == nil {
		p.reportAnswer(s, protocol)
		return
	}
	l.again++
	p.drop(st)
	if !l.back.IsZero() {
		return
	}
	l.back = time.Now()
	if l.late && !l.reported {
		p.skipped++
	}
	if !l.reported {
		return // reportLost will log both lines
	}
	if p.current == l {
		p.current = nil
	}
	time.AfterFunc(together, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reportBack(l)
	})
}

// reportAnswer logs that a control plane answers. The caller holds mu.
func (p *Presence) reportAnswer(s *Stream, protocol Protocol) {
	if !p.reportedUp {
		p.reportedUp = true
		p.logger(&loss{first: s.own, streams: 1}).Info("connected to control plane", "protocol", string(protocol), "event", "control_plane")
	}
}

// reportBack logs that a control plane answers again. The caller holds mu.
func (p *Presence) reportBack(l *loss) {
	p.reportedUp = true
	p.logger(l).Info("control plane answers again", "streams", l.again, "away", l.back.Sub(l.since).Round(time.Millisecond), "event", "control_plane")
}

// drop removes a stream from its loss. The caller holds mu.
func (p *Presence) drop(st *presentStream) {
	l := st.loss
	if l == nil {
		return
	}
	st.loss = nil
	if l.left--; l.left == 0 && p.current == l {
		p.current = nil
	}
}

// rests notes that a stream is not open, because nothing is wanted of it or because a new one is
// needed.
func (p *Presence) rests(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if st := p.streams[s]; st != nil {
		p.setUp(st, false)
		p.drop(st)
	}
}

// leaves notes that a Stream was closed.
func (p *Presence) leaves(s *Stream) {
	p.rests(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams = cache.Without(p.streams, &p.room, s)
}
