package propagation

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Limit is how long clients may take to receive and accept a change.
const Limit = time.Minute

// maxOpen is the maximal number of changes of one authority and type that are measured at the same time.
const maxOpen = 64

// Kind is a group of changes that are measured together.
type Kind struct {
	// Authority and Type are labels of metrics, so that there are few.
	Authority, Type string
	RolledOut       bool
}

// Observer receives the measurements. Its methods must not block.
type Observer interface {
	// Measures is called before anything of a Kind is measured.
	Measures(Kind)
	// Reached is called when the first, median or last client of a change has reached a stage. after is
	// the time since the receipt.
	Reached(kind Kind, stage Stage, client Client, after time.Duration)
	// Missed is called when a change is given up, with the number of clients that have not reached a
	// stage.
	Missed(kind Kind, stage Stage, clients int64)
}

// Tracker measures the changes of all authorities. A nil *Tracker measures nothing.
type Tracker struct {
	observer Observer
	kind     func(authority, typeURL string) (authorityLabel, typeLabel string)
	on       atomic.Bool
	clock    atomic.Uint64 // incremented whenever a change begins or is opened

	mu    sync.Mutex
	lines map[Kind]*line
}

// NewTracker returns a Tracker. kind returns the Authority and the Type of Kind; it must return only few
// different values.
func NewTracker(observer Observer, kind func(authority, typeURL string) (authorityLabel, typeLabel string)) *Tracker {
	return &Tracker{observer: observer, kind: kind, lines: map[Kind]*line{}}
}

// Measure turns the measuring of changes on or off.
func (t *Tracker) Measure(on bool) { t.on.Store(on) }

// Begin returns a change that came with r, nil if it is not measured. Measuring begins with Open.
func (t *Tracker) Begin(r *Receipt, authority, typeURL string) *Change {
	if t == nil || r == nil || !t.on.Load() {
		return nil
	}
	c := &Change{Progress: new(Progress), receipt: r, line: t.line(r, authority, typeURL), begun: t.clock.Add(1)}
	c.alone = List{change: c, n: 1}
	return c
}

func (t *Tracker) line(r *Receipt, authority, typeURL string) *line {
	k := Kind{RolledOut: r.RolledOut}
	k.Authority, k.Type = t.kind(authority, typeURL)
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[k]
	if l == nil {
		l = &line{observer: t.observer, kind: k, clock: &t.clock}
		if len(t.lines) < maxHistories {
			l.history = &history{}
		}
		t.lines[k] = l
		t.observer.Measures(k)
	}
	return l
}

// Close gives up all changes.
func (t *Tracker) Close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lines {
		l.close()
	}
}

// line has the changes of one Kind that are being measured, the oldest first.
type line struct {
	observer Observer
	kind     Kind
	clock    *atomic.Uint64 // the Tracker's clock
	history  *history       // nil if there are too many Kinds

	mu      sync.Mutex
	changes []*Change
	timer   *time.Timer // for the limit of the oldest change; nil before the first
}

// open begins to measure a change.
func (l *line) open(c *Change) {
	now := time.Now()
	c.limit, c.period = now.Add(Limit), periodOf(now)
	l.history.note(c.period, func(p *Period) { p.Changes++ })
	if c.receipt.Span != nil {
		c.span = startSpan(c)
	}
	var over *Change
	l.mu.Lock()
	if len(l.changes) == maxOpen {
		over = l.changes[0]
		l.changes = slices.Delete(l.changes, 0, 1)
	}
	l.changes = append(l.changes, c)
	switch {
	case l.timer == nil:
		l.timer = time.AfterFunc(Limit, l.late)
	case len(l.changes) == 1:
		l.timer.Reset(Limit)
	}
	l.mu.Unlock()
	if over != nil {
		over.giveUp()
	}
}

// late gives up the changes whose limit has passed.
func (l *line) late() {
	now := time.Now()
	l.mu.Lock()
	n := 0
	for n < len(l.changes) && !l.changes[n].limit.After(now) {
		n++
	}
	over := slices.Clone(l.changes[:n])
	l.changes = slices.Delete(l.changes, 0, n)
	if len(l.changes) > 0 {
		l.timer.Reset(l.changes[0].limit.Sub(now))
	}
	l.mu.Unlock()
	for _, c := range over {
		c.giveUp()
	}
}

// complete ends the measurement of a change that has reached all of its clients.
func (l *line) complete(c *Change) {
	l.mu.Lock()
	if i := slices.Index(l.changes, c); i >= 0 {
		l.changes = slices.Delete(l.changes, i, i+1)
	}
	l.mu.Unlock()
	c.end()
}

func (l *line) close() {
	l.mu.Lock()
	over := l.changes
	l.changes = nil
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	for _, c := range over {
		c.end()
	}
}

// reached reports the time of a client.
func (l *line) reached(c *Change, stage Stage, client Client, now time.Time) {
	after := now.Sub(c.receipt.At)
	l.observer.Reached(l.kind, stage, client, after)
	l.history.note(c.period, func(p *Period) { p.longest[stage][client] = max(p.longest[stage][client], after, 1) })
	if c.span != nil {
		c.span.AddEvent(stage.String()+": "+client.String()+" client", trace.WithTimestamp(now))
	}
}

// giveUp ends the measurement of a change that has not reached all of its clients.
func (c *Change) giveUp() {
	if c.closed.Swap(true) {
		return
	}
	for s := range stages {
		if n := c.missing(s); n > 0 {
			c.line.observer.Missed(c.line.kind, s, n)
			c.line.history.note(c.period, func(p *Period) { p.missed[s] += n })
			if c.span != nil {
				c.span.SetAttributes(attribute.Int64("xds.clients.not_"+s.String(), n))
				c.span.SetStatus(codes.Error, "not all clients have the change")
			}
		}
	}
	c.finishSpan()
}

// end ends the measurement.
func (c *Change) end() {
	if !c.closed.Swap(true) {
		c.finishSpan()
	}
}

func (c *Change) finishSpan() {
	if c.span != nil {
		c.span.End()
	}
}

// startSpan begins the span of a change's way to clients, as a child of the response's span. So both are in
// one trace, which also shows the time between them.
func startSpan(c *Change) trace.Span {
	parent := c.receipt.Span
	ctx := trace.ContextWithSpan(context.Background(), parent)
	//nolint:spancheck // finishSpan ends it
	_, span := parent.TracerProvider().Tracer("xds-relay").Start(ctx, "xds.propagate", trace.WithAttributes(
		attribute.String("grpc.xds.authority", c.line.kind.Authority), attribute.String("grpc.xds.resource_type", c.line.kind.Type),
		attribute.Int64("xds.clients", c.clients), attribute.Bool("xds.rolled_out", c.line.kind.RolledOut),
	))
	return span //nolint:spancheck // as above
}
