package fleet

import (
	"context"
	"errors"
	"io"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
)

// Before a scope moves to a member from a source that works, the relay asks the member whether it serves the scope. So a
// member that refuses ends no stream to a control plane.

// trialHeader is in the metadata of a stream that only asks whether the member serves the scope. It ends with OK if so.
const trialHeader = "x-xds-relay-trial"

// triedWithin bounds a trial. A member may wait for the answer of the control plane.
const triedWithin = 10 * time.Second

// IsTrial reports whether a peer's stream only asks whether the relay serves the scope.
func IsTrial(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, trialHeader)) > 0
}

// Try asks a member whether it serves a scope, and notes the refusal if it does not.
func (f *Fleet) Try(ctx context.Context, scope cache.Scope, p *Peer) error {
	within, cancel := context.WithTimeoutCause(ctx, triedWithin, errors.New("it has not said in time whether it serves the scope"))
	defer cancel()
	conn := ForScope(p.Conn, scope, MemberHeader, f.Address(), trialHeader, "only")
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(within)
	if err == nil {
		_, err = stream.Recv()
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err == nil: // a member that does not know trials serves at once
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case within.Err() != nil:
		err = context.Cause(within)
	default:
		err = errors.New(status.Convert(err).Message())
	}
	f.Refused(scope, p, err.Error())
	return err
}
