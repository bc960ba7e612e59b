package upstream

import (
	"log/slog"

	"github.com/xds-relay/xds-relay/loglines"
)

// What a control plane can have logged is bounded, however often it says what cannot be
// stored, and whatever names it gives.

// lines are those that a control plane can cause: so many at once, then one from time to
// time. They last as long as the Stream, so that a control plane that ends the gRPC stream
// does not begin anew. Stream.mu guards them.
type lines struct {
	nacks, strays, variants, unfit loglines.Lines
}

// shown bounds a name, a version or a nonce in a line of log.
func shown(s string) string { return loglines.ClipTo(s, 256) }

// bounded returns the logger and the level for a line: warn, or debug if there is no room for it.
// The caller holds mu.
func bounded(l *loglines.Lines, log *slog.Logger) (*slog.Logger, slog.Level) {
	log, ok := l.Next(log)
	if !ok {
		return log, slog.LevelDebug
	}
	return log, slog.LevelWarn
}

// logNack logs why a response was rejected; what was wrong with the last one of its type as
// well is only for debugging. The caller holds mu.
func (s *Stream) logNack(f *feed, r *response, nack string) {
	log, level := s.log, slog.LevelDebug
	if nack != f.lastNack {
		log, level = bounded(&s.lines.nacks, s.log)
	}
	log.Log(s.ctx, level, "NACK: response has what cannot be stored",
		"type_url", shown(f.typeURL()), "version", shown(r.version), "nonce", shown(r.nonce), "reason", loglines.Clip(nack))
}

// stray takes note of a response of a type that was not asked for. It is not
// answered: an answer would be the first request of its type, and having no
// names it would subscribe to everything. The caller holds mu.
func (s *Stream) stray(c *call, r *response) {
	log, level := s.log, slog.LevelDebug
	if c.strays++; c.strays == 1 {
		log, level = bounded(&s.lines.strays, s.log)
	}
	log.Log(s.ctx, level, "response ignored: its type was not asked for", "type_url", shown(r.typeURL), "nonce", shown(r.nonce))
}

// logVariants logs the names of which more than one variant matches. The caller holds mu.
func (s *Stream) logVariants(f *feed) {
	for _, name := range f.topics.common().variants.takeWarnings() {
		log, level := bounded(&s.lines.variants, s.log)
		log.Log(s.ctx, level, "several variants of a resource match the same dynamic parameters",
			"type_url", shown(f.typeURL()), "name", shown(name))
	}
}

// logUnfit logs what did not fit into a request. The caller holds mu.
func (s *Stream) logUnfit(f *feed, what string) {
	log, level := bounded(&s.lines.unfit, s.log)
	log.Log(s.ctx, level, "request is too long", "type_url", shown(f.typeURL()), "limit", s.opts.MaxRequestBytes, "reason", what)
}
