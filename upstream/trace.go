package upstream

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/upstream/session"
)

// The span of a response lasts from its receipt until the response is stored and answered. The stages between the
// stream and the cache add events by cache.Update.Receipt. The span has neither names nor contents of resources.

// trace begins the span of a parsed response, if it is sampled. end ends the span.
func (s *Stream) trace(r *session.Response) (end func()) {
	_, span := s.opts.Tracer.Start(context.Background(), "xds.response", trace.WithTimestamp(r.Receipt.At),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("grpc.xds.authority", s.scope.Authority),
			attribute.String("grpc.xds.server", s.server()),
			attribute.String("grpc.xds.resource_type", shown(xdstype.Message(r.TypeURL))),
			attribute.String("xds.partition", s.scope.Partition),
			attribute.String("xds.version", shown(r.Version)),
			attribute.String("xds.nonce", shown(r.Nonce)),
			attribute.Int("xds.resources", len(r.Resources)),
			attribute.Int("xds.removed_resources", len(r.Removed)),
			attribute.Int("xds.resource_errors", len(r.Errors)),
			attribute.Int("xds.response.bytes", r.Size),
		))
	if !span.IsRecording() {
		return func() {}
	}
	r.Receipt.Span = span
	span.AddEvent("parsed")
	return func() { span.End() }
}

// server returns the address of the control plane, empty if it is not known.
func (s *Stream) server() string {
	if s.opts.Presence == nil {
		return ""
	}
	return s.opts.Presence.server
}

// traceChecked adds the event that the resources of a response were checked as clients would check them.
func traceChecked(r *session.Response) {
	r.Receipt.Event("checked", func() []attribute.KeyValue {
		checked, failed := r.Checked()
		return []attribute.KeyValue{attribute.Int("xds.checked", checked), attribute.Int("xds.check_failures", failed)}
	})
}

// traceAnswer adds the answer to a response: an ACK, or a NACK.
func traceAnswer(r *propagation.Receipt, nack string) {
	if nack == "" {
		r.Event("ACK", nil)
		return
	}
	r.Event("NACK", func() []attribute.KeyValue {
		r.Span.SetStatus(codes.Error, "NACK: the log has the reasons")
		return nil
	})
}
