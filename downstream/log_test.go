package downstream

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// logRecord is a slog.Handler that keeps the warnings as text.
type logRecord struct {
	mu    *sync.Mutex
	lines *[]string
	attrs []slog.Attr
}

func newLogRecord() *logRecord { return &logRecord{mu: new(sync.Mutex), lines: new([]string)} }

// Enabled implements slog.Handler.
func (l *logRecord) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (l *logRecord) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "log: %s", r.Message)
	add := func(a slog.Attr) bool {
		switch a.Key {
		case "stream": // a counter of the process
		case "type_url":
			fmt.Fprintf(&b, " %s", shortName(a.Value.String()))
		default:
			fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		}
		return true
	}
	for _, a := range l.attrs {
		add(a)
	}
	r.Attrs(add)
	l.mu.Lock()
	defer l.mu.Unlock()
	*l.lines = append(*l.lines, b.String())
	return nil
}

// WithAttrs implements slog.Handler.
func (l *logRecord) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logRecord{mu: l.mu, lines: l.lines, attrs: append(append([]slog.Attr{}, l.attrs...), attrs...)}
}

// WithGroup implements slog.Handler.
func (l *logRecord) WithGroup(string) slog.Handler { return l }

// take returns the lines since the last time.
func (l *logRecord) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := *l.lines
	*l.lines = nil
	return lines
}
