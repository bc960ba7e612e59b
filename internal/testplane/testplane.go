// Package testplane serves control planes for tests, over loopback.
package testplane

import (
	"context"
	"net"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
)

// Listen serves ads on a free port of 127.0.0.1, and returns the address. The server stops when the test
// ends.
func Listen(t testing.TB, ads discoveryv3.AggregatedDiscoveryServiceServer, options ...grpc.ServerOption) string {
	t.Helper()
	address, _ := ListenOn(t, "127.0.0.1:0", ads, options...)
	return address
}

// ListenOn is Listen with an address. It also returns the server, which the test may stop.
func ListenOn(t testing.TB, address string, ads discoveryv3.AggregatedDiscoveryServiceServer, options ...grpc.ServerOption) (string, *grpc.Server) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, ads)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String(), server
}

// RefusingAddress returns an address of 127.0.0.1 that refuses connections until the test ends. No other
// process can listen there.
func RefusingAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	// The client's address of an open connection is in use, but nothing listens there.
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().String()
}

// NodeID is the Node id of the clients that a Snapshot serves.
const NodeID = "test"

// Snapshot is go-control-plane's server with one snapshot, for the node NodeID.
type Snapshot struct {
	serverv3.Server
	cache cachev3.SnapshotCache
}

// NewSnapshot returns a Snapshot without resources.
func NewSnapshot(t testing.TB) Snapshot {
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	return Snapshot{Server: serverv3.NewServer(t.Context(), cache, nil), cache: cache}
}

// Set replaces all resources.
func (s Snapshot) Set(t testing.TB, version string, resources map[resourcev3.Type][]types.Resource) {
	t.Helper()
	snapshot, err := cachev3.NewSnapshot(version, resources)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cache.SetSnapshot(context.Background(), NodeID, snapshot); err != nil {
		t.Fatal(err)
	}
}
