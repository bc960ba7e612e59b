package propagation

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Receipt is the receipt of a control plane's response, or of changes in a directory. The methods of a nil
// *Receipt do nothing.
type Receipt struct {
	// At is when it was received, before it was parsed.
	At time.Time
	// RolledOut: the changes waited for a rollout.
	RolledOut bool
	// Span is the response's, nil if it is not sampled.
	Span trace.Span
}

// Event adds an event to the response's span, if there is one. what returns the attributes of the event.
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

// AfterRollout returns the receipt for changes that came with r and have waited for a rollout.
func (r *Receipt) AfterRollout() *Receipt {
	if r == nil {
		return nil
	}
	after := *r
	after.RolledOut = true
	return &after
}

// Older returns the older of two receipts. A nil receipt is ignored.
func Older(a, b *Receipt) *Receipt {
	if a == nil || b != nil && b.At.Before(a.At) {
		return b
	}
	return a
}
