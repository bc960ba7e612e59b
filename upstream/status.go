package upstream

import (
	"log/slog"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Status is a snapshot of a Stream, for operators.
type Status struct {
	// TypeURL is the stream's type, empty for an aggregated one.
	TypeURL string
	// NamesStream says that this is the second stream, for names of types with a wildcard.
	NamesStream bool
	// Connected says whether a gRPC stream to the control plane is open.
	Connected bool
	// Since is when Connected last changed.
	Since time.Time
	// Protocol is the one that the stream speaks, or will speak: Delta, SotW or REST. It is empty
	// for a type that cannot be requested; LastError then says why.
	Protocol Protocol
	// LastError is why the stream was last lost, empty if it never was. LastErrorAt is when that was.
	// Failures counts the losses since a stream was last open.
	LastError   string
	LastErrorAt time.Time
	Failures    int
	// Subscriptions is the number of names and wildcards that are wanted.
	Subscriptions int
	// Responses is the number of responses received over all streams, and Nacks the number of those
	// that were not accepted as a whole.
	Responses, Nacks uint64
	// Quarantined is the number of names and wildcards that are not requested on the stream, because the control plane may
	// have ended it for them. QuarantineReason is why the control plane has ended a stream for one of them alone.
	Quarantined      int
	QuarantineReason string
	// Unsaid is the number of resources that the control plane has not sent again on a new stream, and that are kept until
	// it is known whether it has them. UnsaidSince is since when there are any.
	Unsaid      int
	UnsaidSince time.Time
	// Quiet is what the control plane does not answer, for some types. It must not be changed.
	Quiet []QuietType
	// ResourceErrors is the number of resource_errors received.
	ResourceErrors uint64
}

// board has the status of a Stream, for operators. Nobody computes or waits while holding its lock,
// so the status can be read whatever the stream is doing.
type board struct {
	mu          sync.Mutex
	status      Status
	namesStream *Stream // the second stream, nil until it was needed
}

// post changes the status.
func (b *board) post(change func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.status)
}

// Status returns a snapshot. It does not wait for the stream's work.
func (s *Stream) Status() Status {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	return s.board.status
}

// Statuses returns the status of the stream, and of the names stream if that is in use. It does not
// wait for the streams' work.
func (s *Stream) Statuses() []Status {
	all := []Status{s.Status()}
	s.board.mu.Lock()
	b := s.board.namesStream
	s.board.mu.Unlock()
	if b != nil {
		if st := b.Status(); st.inUse() {
			all = append(all, st)
		}
	}
	return all
}

// count posts the number of subscriptions. The caller holds mu.
func (s *Stream) count() {
	wanted := s.agenda.sum.wanted
	s.board.post(func(st *Status) { st.Subscriptions = wanted })
}

// speak sets the form that the stream speaks. The caller holds mu.
func (s *Stream) speak(f *form) {
	s.form = f
	s.board.post(func(st *Status) { st.TypeURL, st.Protocol = f.typeURL, f.name })
}

// logForgotten logs what a control plane has forgotten, if anything. The caller holds mu.
func (s *Stream) logForgotten(f *feed) {
	n := f.topics.TakeForgotten()
	if n == 0 {
		return
	}
	log, level := bounded(&s.lines.forgotten, s.own)
	log.Log(s.ctx, level, "control plane does not read which resources the relay holds: those that it has not sent again are gone",
		"type_url", shown(f.typeURL()), "resources", n)
}

// showUnsaid logs and posts how many resources of a type the control plane has not sent again, so that it is not known
// whether they are gone. The caller holds mu.
func (s *Stream) showUnsaid(f *feed, unsaid int) {
	before := f.unsaid
	if unsaid == before {
		return
	}
	if f.unsaid = unsaid; before == 0 {
		log, level := bounded(&s.lines.unsaid, s.own)
		log.Log(s.ctx, level, "control plane sends again what it was told that the relay holds: what it has not sent yet is kept until its answer is complete",
			"type_url", shown(f.typeURL()), "resources", unsaid)
	}
	s.board.post(func(st *Status) {
		if st.Unsaid == 0 {
			st.UnsaidSince = time.Now()
		}
		st.Unsaid += unsaid - before
	})
}

func (st *Status) inUse() bool { return st.Connected || st.Subscriptions+st.Quarantined > 0 }

// setConnected records that a gRPC stream has opened or ended.
func (s *Stream) setConnected(connected bool) {
	s.board.post(func(st *Status) {
		if st.Connected != connected {
			st.Connected, st.Since = connected, time.Now()
		}
		if connected {
			st.Failures = 0
		}
	})
}

// noteFailure records why a gRPC stream was lost, or was not opened.
func (s *Stream) noteFailure(reason string) {
	s.board.post(func(st *Status) {
		st.LastError, st.LastErrorAt = reason, time.Now()
		st.Failures++
	})
}

// The lines of log that a control plane can cause are bounded, however often it sends
// resources that cannot be stored, and whatever their names are.

// lines bound the log lines that a control plane can cause: a few at once, then one from time to
// time. They last as long as the Stream, so that a control plane does not get around the bound by
// ending the gRPC stream. Stream.mu guards them.
type lines struct {
	nacks, unrequested, variants, unfit, ignored, quiet, answered, forgotten, unsaid loglines.Lines
}

// shown bounds the length of a name, a version or a nonce in a line of log.
func shown(s string) string { return loglines.ClipTo(s, 256) }

// bounded returns the logger and the level for a line: warn, or debug if the bound is reached.
// The caller holds mu.
func bounded(l *loglines.Lines, log *slog.Logger) (*slog.Logger, slog.Level) {
	log, ok := l.Next(log)
	if !ok {
		return log, slog.LevelDebug
	}
	return log, slog.LevelWarn
}

// logNack logs why a response was rejected. If the previous response of the type was rejected for
// the same reason, it logs at debug level. The caller holds mu.
func (s *Stream) logNack(f *feed, r *session.Response, nack string) {
	log, level := s.log, slog.LevelDebug
	if nack != f.lastNack {
		log, level = bounded(&s.lines.nacks, s.log)
	}
	log.Log(s.ctx, level, "NACK: the response has resources that cannot be stored",
		"type_url", shown(f.typeURL()), "version", shown(r.Version), "nonce", shown(r.Nonce), "reason", loglines.Clip(nack))
}

// logVariants logs the names with more than one matching variant. The caller holds mu.
func (s *Stream) logVariants(f *feed) {
	for _, name := range f.topics.TakeWarnings() {
		log, level := bounded(&s.lines.variants, s.log)
		log.Log(s.ctx, level, "several variants of a resource match the same dynamic parameters",
			"type_url", shown(f.typeURL()), "name", shown(name))
	}
}

// logIgnored logs what was ignored in a response. The caller holds mu.
func (s *Stream) logIgnored(f *feed, r *session.Response) {
	if r.Ignored == "" {
		return
	}
	log, level := bounded(&s.lines.ignored, s.log)
	log.Log(s.ctx, level, "a part of the control plane's answer is ignored, because it is not known",
		"type_url", shown(f.typeURL()), "version", shown(r.Version), "field", shown(r.Ignored))
}

// logUnfit logs what did not fit into a request. The caller holds mu.
func (s *Stream) logUnfit(f *feed, what string) {
	log, level := bounded(&s.lines.unfit, s.log)
	log.Log(s.ctx, level, "request is too long", "type_url", shown(f.typeURL()), "limit", s.opts.MaxRequestBytes, "reason", what)
}

// event reports what has happened to the stream. The caller holds mu.
func (s *Stream) event(kind delivery.Kind, reason string) {
	s.opts.watch(delivery.Event{Kind: kind, TypeURL: s.forms[0].typeURL, Reason: reason})
}

// typeEvent reports what has happened to a type. The caller holds mu.
func (s *Stream) typeEvent(kind delivery.Kind, f *feed) {
	s.opts.watch(delivery.Event{Kind: kind, TypeURL: f.typeURL(), Stream: s})
}
