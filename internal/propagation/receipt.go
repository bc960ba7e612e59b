package propagation

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Receipt is the receipt of a control plane's response, or of changes in a directory. The methods of a nil
// *Receipt do nothing.
type Receipt struct {
	// At is when it was received, before it was parsed.
	At time.Time
	// Server is the address of the control plane, and Version and Nonce are those of the response. Number is its number
	// on its stream. A directory has none of them.
	Server, Version, Nonce string
	Number                 uint64
	// RolledOut: the changes waited for a rollout.
	RolledOut bool
	// Span is the response's, nil if it is not sampled.
	Span trace.Span
	// kept are resources that were kept back, and keptMore counts those beyond mostKeptBack. The lock of the feed
	// guards them.
	kept     []KeptBack
	keptMore int
}

// KeptBack is a resource of a response that clients do not get yet.
type KeptBack struct {
	By            string // "guard" or "rollout"
	TypeURL, Name string
}

// mostKeptBack bounds the names that a Receipt has.
const mostKeptBack = 64

// KeepBack notes that a stage between the source and the cache keeps a resource of the response back from clients.
func (r *Receipt) KeepBack(by, typeURL, name string) {
	switch {
	case r == nil:
	case len(r.kept) < mostKeptBack:
		r.kept = append(r.kept, KeptBack{by, typeURL, strings.Clone(name)})
	default:
		r.keptMore++
	}
}

// TakeKeptBack removes what was kept back of a type, and returns it. more counts resources without a name.
func (r *Receipt) TakeKeptBack(typeURL string) (kept []KeptBack, more int) {
	if r == nil || len(r.kept) == 0 {
		return nil, 0
	}
	var rest []KeptBack
	for _, k := range r.kept {
		if k.TypeURL == typeURL {
			kept = append(kept, k)
		} else {
			rest = append(rest, k)
		}
	}
	if r.kept = rest; len(kept) > 0 {
		more, r.keptMore = r.keptMore, 0
	}
	return kept, more
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
	after.RolledOut, after.kept, after.keptMore = true, nil, 0
	return &after
}

// Older returns the older of two receipts. A nil receipt is ignored.
func Older(a, b *Receipt) *Receipt {
	if a == nil || b != nil && b.At.Before(a.At) {
		return b
	}
	return a
}
