// Package loglines bounds the log: the length of texts in a line, and the number of lines
// about an event that clients or control planes can repeat. It logs a burst of lines at once,
// then one line per interval, with the number of lines that were skipped before it.
//
// rate.Sometimes would not do: it allows its burst only once in a process's life, and does not
// report when a call was skipped.
package loglines

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The burst of [Lines], and the interval after it.
const (
	AtOnce = 10
	Every  = time.Minute
)

// The burst of [Shared], and the interval after it.
const (
	SharedAtOnce = 100
	SharedEvery  = time.Second
)

// Lines limits the lines about one event of one party, such as the NACKs of a client. The zero
// value is ready. It is not safe for concurrent use.
type Lines struct {
	limiter *rate.Limiter // nil before the first
	skipped int
}

// Next returns the logger for the next line, with the number of lines that were skipped since the
// last one. ok is false if this line has to be skipped too.
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

// Shared limits the lines about an event of many parties, such as all clients of a
// listener. The zero value is ready. It is safe for concurrent use.
type Shared struct {
	mu    sync.Mutex
	lines Lines
}

// Next is like [Lines.Next].
func (s *Shared) Next(log *slog.Logger) (_ *slog.Logger, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.next(log, SharedEvery, SharedAtOnce)
}

// Bounded returns a handler that logs no more lines than [Shared] allows. It is for
// libraries that log by themselves.
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
