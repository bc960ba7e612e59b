package integration

// gRPC's own xDS client.

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// bootstrap is gRPC's xDS bootstrap file (A27, A47).
type bootstrap struct {
	Servers     []bootstrapServer             `json:"xds_servers"`
	Node        map[string]string             `json:"node"`
	Authorities map[string]bootstrapAuthority `json:"authorities,omitempty"`
}

type bootstrapServer struct {
	URI         string              `json:"server_uri"`
	Credentials []map[string]string `json:"channel_creds"`
	Features    []string            `json:"server_features"`
}

type bootstrapAuthority struct {
	Template string            `json:"client_listener_resource_name_template"`
	Servers  []bootstrapServer `json:"xds_servers,omitempty"`
}

// bootstrapFor returns a bootstrap with the relay as its only xDS server.
func bootstrapFor(r *relay, node string) bootstrap {
	return bootstrap{
		Servers: []bootstrapServer{{
			URI:         r.address,
			Credentials: []map[string]string{{"type": "insecure"}},
			Features:    []string{"xds_v3"},
		}},
		Node: map[string]string{"id": node},
	}
}

// channel is a gRPC channel that gets its configuration by xDS.
type channel struct {
	*grpc.ClientConn
	t testing.TB
}

// dialXDS opens a channel to a target such as xds:///shop.
func dialXDS(t testing.TB, b bootstrap, target string) *channel {
	t.Helper()
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := xds.NewXDSResolverWithConfigForTesting(text)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(target,
		grpc.WithResolvers(resolver),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: patience,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &channel{ClientConn: conn, t: t}
}

// call sends an RPC, and returns the id of the backend that answered it. headers
// are pairs of keys and values.
func (c *channel) call(method string, headers ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, headers...)
	var id wrapperspb.StringValue
	if err := c.Invoke(ctx, method, &emptypb.Empty{}, &id); err != nil {
		return "", err
	}
	return id.GetValue(), nil
}

const someMethod = "/shop.Shop/Visit"

// awaitReaches waits until an RPC of a method reaches want, and checks that the RPCs after it reach want,
// too.
func (c *channel) awaitReaches(method string, want *backend) {
	c.t.Helper()
	reach := func() error {
		id, err := c.call(method)
		if err == nil && id != want.id {
			err = fmt.Errorf("an RPC reached %s", id)
		}
		return err
	}
	eventually(c.t, "RPCs reach "+want.id, reach)
	const more = 50
	for range more {
		if err := reach(); err != nil {
			c.t.Fatalf("RPCs had reached %s, then: %v", want.id, err)
		}
	}
}
