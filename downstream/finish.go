package downstream

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// What ends a stream from outside its handler: the drain or the age of its connection (depart.go), a certificate that
// expires (expiry.go), a client that is no longer admitted (reconfigure.go), rights (denied.go), or nothing that can be
// served (unreachable.go). Then the handler returns, and so does the goroutine that receives.

// finish ends a gRPC stream whose handler waits for the client. In gRPC only the end of the stream interrupts a
// handler, and only the stream's context gives access to what ends it.
func finish(ctx context.Context, why error) {
	type finisher interface {
		WriteStatus(*status.Status) error
	}
	if f, ok := grpc.ServerTransportStreamFromContext(ctx).(finisher); ok {
		_ = f.WriteStatus(status.Convert(why)) // fails if the client has gone
	}
}

// End ends a gRPC stream whose handler waits for the client, as an interceptor of a listener's server may.
func End(ctx context.Context, why error) { finish(ctx, why) }
