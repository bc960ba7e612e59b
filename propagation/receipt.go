package propagation

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Receipt is the receipt of a response of a control plane, or of what has changed in a directory. A nil
// *Receipt is that of nothing: its methods do nothing.
type Receipt struct {
	// At is when it was received, before it was parsed.
	At time.Time
	// RolledOut: what came with it waited for a rollout.
	RolledOut bool
	// Span is the response's, nil if it is not sampled.
	Span trace.Span
}

// Event adds an event to the response's span, if there is one. what makes its attributes.
func (r *Receipt) Event(name string, what func() []attribute.KeyValue) {
	if r == nil || r.Span == nil {
		return
	}
	if what == nil {
		r.Span.AddEvent(name)
		return
	}
	r.Span.AddEvent(name, trace.WithAttributes(what()...))
}

// AfterRollout returns the receipt of what came with r and has waited for a rollout.
func (r *Receipt) AfterRollout() *Receipt {
	if r == nil {
		return nil
	}
	after := *r
	after.RolledOut = true
	return &after
}

// Older returns the one of two receipts that is older.
func Older(a, b *Receipt) *Receipt {
	if a == nil || b != nil && b.At.Before(a.At) {
		return b
	}
	return a
}
