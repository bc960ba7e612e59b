package history

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// EventKey is the key of the attribute that makes a line of the log an event: its value is the kind of the event. The
// line has it, too.
const EventKey = "event"

// Event is something that was done, or that has happened to the relay.
type Event struct {
	Kind  string
	Level slog.Level
	Text  string
	// Authority is the one that it concerns, empty for none.
	Authority string
	Attrs     []Attr
}

// Attr is an attribute of an event.
type Attr struct{ Key, Value string }

// An event keeps this many attributes, and this many bytes of each text.
const mostAttrs, mostText = 16, 2 << 10

// Handler returns a handler for the log that keeps the lines with EventKey, and passes all lines on.
func (h *History) Handler(next slog.Handler) slog.Handler { return &handler{Handler: next, history: h} }

type handler struct {
	slog.Handler
	history *History
	attrs   []slog.Attr // of the logger
	grouped bool        // what follows is in a group
}

// Enabled implements slog.Handler. Events are kept whatever the log's level is.
func (h *handler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelInfo && h.history.on.Load() || h.Handler.Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	h.keep(&r)
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.Handler = h.Handler.WithAttrs(attrs)
	if !h.grouped {
		with.attrs = append(slices.Clip(h.attrs), attrs...)
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	with := *h
	with.Handler, with.grouped = h.Handler.WithGroup(name), true
	return &with
}

// keep keeps a line if it is an event.
func (h *handler) keep(r *slog.Record) {
	if h.grouped || r.Level < slog.LevelInfo || !h.history.on.Load() {
		return
	}
	kind := ""
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == EventKey {
			kind = a.Value.String()
		}
		return kind == ""
	})
	if kind == "" {
		return
	}
	e := &Event{Kind: kind, Level: r.Level, Text: clipped(r.Message)}
	cost := 0
	add := func(a slog.Attr) bool {
		text := clipped(a.Value.Resolve().String())
		switch {
		case a.Key == EventKey || text == "":
			return true
		case a.Key == "authority":
			e.Authority = text
		case len(e.Attrs) < mostAttrs:
			e.Attrs = append(e.Attrs, Attr{a.Key, text})
		}
		cost += len(text)
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	h.history.events.addEvent(h.history, e, cost)
}

func clipped(s string) string { return strings.Clone(loglines.ClipTo(s, mostText)) }
