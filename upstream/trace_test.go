package upstream

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/propagation"
)

// Without a tracer, or for a response that is not sampled, nothing is done but to look at a pointer.
func TestAResponseThatIsNotTracedAllocatesNothing(t *testing.T) {
	r := &response{receipt: &propagation.Receipt{At: time.Now()}, resources: make([]resource, 100)}
	made := false
	if n := testing.AllocsPerRun(10, func() {
		r.traceChecked()
		traceAnswer(r.receipt, "")
		traceAnswer(r.receipt, "what cannot be stored")
		r.receipt.Event("stored", func() []attribute.KeyValue {
			made = true
			return nil
		})
		(*propagation.Receipt)(nil).Event("of no response", nil)
	}); n > 0 || made {
		t.Errorf("%v allocations; attributes were made: %t", n, made)
	}
}
