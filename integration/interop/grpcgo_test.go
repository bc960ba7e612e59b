package interop

// gRPC for Go, which runs in the test's process.

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// soon makes gRPC connect again soon after a failure.
var soon = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: patience,
}

// channel is a gRPC channel.
type channel struct {
	*grpc.ClientConn
	t testing.TB
}

func dialGo(t testing.TB, bootstrap, target string) shopper {
	t.Helper()
	resolver, err := xds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(target,
		grpc.WithResolvers(resolver),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(soon))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &channel{ClientConn: conn, t: t}
}

func (c *channel) visit() (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	var id wrapperspb.StringValue
	if err := c.Invoke(ctx, method, &emptypb.Empty{}, &id); err != nil {
		return "", err
	}
	return id.GetValue(), nil
}
