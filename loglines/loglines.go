// Package loglines bounds what is logged: how long the texts in a line are, and how many
// lines there are about what can happen again and again. So many lines come at once, then
// one from time to time, which says how many were left out.
package loglines

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// How many lines there are at once about one thing, and how often one after that.
const (
	AtOnce = 10
	Every  = time.Minute
)

// How many lines there are at once about what many do, and how often one after that.
const (
	SharedAtOnce = 100
	SharedEvery  = time.Second
)

// Lines says which of the lines about one thing are logged. The zero value is ready. It is
// not safe for concurrent use.
type Lines struct {
	limiter *rate.Limiter // nil before the first
	skipped int
}

// Next returns the logger for the next line, with how many were left out before it; false
// if it is left out itself.
func (l *Lines) Next(log *slog.Logger) (_ *slog.Logger, ok bool) {
	return l.next(log, Every, AtOnce)
}

func (l *Lines) next(log *slog.Logger, every time.Duration, atOnce int) (_ *slog.Logger, ok bool) {
	if l.limiter == nil {
		l.limiter = rate.NewLimiter(rate.Every(every), atOnce)
	}
	if !l.limiter.Allow() {
		l.skipped++
		return log, false
	}
	if l.skipped > 0 {
		log = log.With("skipped", l.skipped)
		l.skipped = 0
	}
	return log, true
}

// Shared is Lines for what many do, such as the clients of a listener. It is safe for
// concurrent use.
type Shared struct {
	mu    sync.Mutex
	lines Lines
}

// Next is as that of Lines.
func (s *Shared) Next(log *slog.Logger) (_ *slog.Logger, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.next(log, SharedEvery, SharedAtOnce)
}

// Bounded returns a handler that logs no more lines than Shared allows: for libraries that
// log by themselves.
func Bounded(h slog.Handler) slog.Handler { return &bounded{Handler: h, lines: new(Shared)} }

type bounded struct {
	slog.Handler
	lines *Shared
}

// Handle implements slog.Handler.
func (b *bounded) Handle(ctx context.Context, r slog.Record) error {
	log, ok := b.lines.Next(slog.New(b.Handler))
	if !ok {
		return nil
	}
	return log.Handler().Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (b *bounded) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &bounded{Handler: b.Handler.WithAttrs(attrs), lines: b.lines}
}

// WithGroup implements slog.Handler.
func (b *bounded) WithGroup(name string) slog.Handler {
	return &bounded{Handler: b.Handler.WithGroup(name), lines: b.lines}
}
