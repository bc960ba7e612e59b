package downstream

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// What ends a stream from outside of its handler: a drain or the age of its connection (depart.go), a certificate that
// expires (expiry.go), a client that is not admitted any more (reconfigure.go), rights (denied.go), or nothing that can be
// served (unreachable.go). The handler then returns, and so does the goroutine that receives.

// finish ends a gRPC stream whose handler waits for the client. gRPC has no way to
// interrupt a handler other than by the stream's end, and what can end it is reachable
// by its context only.
func finish(ctx context.Context, why error) {
	type finisher interface {
		WriteStatus(*status.Status) error
	}
	if f, ok := grpc.ServerTransportStreamFromContext(ctx).(finisher); ok {
		_ = f.WriteStatus(status.Convert(why)) // fails if the client has gone
	}
}
