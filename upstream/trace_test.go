package upstream

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// Without a tracer, or for a response that is not sampled, tracing only checks a pointer.
func TestAResponseThatIsNotTracedAllocatesNothing(t *testing.T) {
	r := &session.Response{Receipt: &propagation.Receipt{At: time.Now()}, Resources: make([]session.Resource, 100)}
	made := false
	if n := testing.AllocsPerRun(10, func() {
		traceChecked(r)
		traceAnswer(r.Receipt, "")
		traceAnswer(r.Receipt, "what cannot be stored")
		r.Receipt.Event("stored", func() []attribute.KeyValue {
			made = true
			return nil
		})
		(*propagation.Receipt)(nil).Event("of no response", nil)
	}); n > 0 || made {
		t.Errorf("%v allocations; attributes were made: %t", n, made)
	}
}
