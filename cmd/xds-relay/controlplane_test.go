package main

// A control plane to ask, and the command line as a function.

import (
	"bytes"
	"context"
	"net"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// listen serves ads on any port until the test ends.
func listen(t *testing.T, ads discoveryv3.AggregatedDiscoveryServiceServer, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
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
	return listener.Addr().String()
}

// controlPlane is go-control-plane's, with one snapshot for the node "test".
type controlPlane struct {
	cache  cachev3.SnapshotCache
	server serverv3.Server
}

func newControlPlane(t *testing.T) controlPlane {
	t.Helper()
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	plane := controlPlane{cache: cache, server: serverv3.NewServer(t.Context(), cache, nil)}
	plane.set(t, "1", "blue", "green")
	return plane
}

// set gives the control plane clusters of these names, and one secret.
func (c controlPlane) set(t *testing.T, version string, clusters ...string) {
	t.Helper()
	resources := map[resourcev3.Type][]types.Resource{
		resourcev3.SecretType: {&tlsv3.Secret{Name: "server", Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: "hush"},
			}},
		}}},
	}
	for _, name := range clusters {
		resources[resourcev3.ClusterType] = append(resources[resourcev3.ClusterType], &clusterv3.Cluster{Name: name})
	}
	snapshot, err := cachev3.NewSnapshot(version, resources)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cache.SetSnapshot(context.Background(), "test", snapshot); err != nil {
		t.Fatal(err)
	}
}

// runCommand is the command line: what it writes, and its exit status.
func runCommand(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, &out, &errs)
	return out.String(), errs.String(), status
}
