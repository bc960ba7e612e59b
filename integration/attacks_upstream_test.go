package integration

// Attacks that make the relay send requests to control planes.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	equalList     = "xdstp://quiet.example.com/envoy.config.cluster.v3.ClusterCollection/equal"
	equalListType = "type.googleapis.com/envoy.config.cluster.v3.ClusterCollection"
	equalView     = "xdstp://views/envoy.config.cluster.v3.Cluster/equal/*"
)

// quietPlane is a control plane that reads all requests. Its only resource is a list collection with very
// many equal entries.
type quietPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	list *discoveryv3.Resource
}

// startQuietPlane starts a quietPlane and returns its address.
func startQuietPlane(t *testing.T) string {
	t.Helper()
	entry, err := proto.Marshal(located("xdstp://quiet.example.com/envoy.config.cluster.v3.Cluster/member"))
	if err != nil {
		t.Fatal(err)
	}
	var value []byte
	for range 6000 {
		value = protowire.AppendBytes(protowire.AppendTag(value, 1, protowire.BytesType), entry)
	}
	p := &quietPlane{list: &discoveryv3.Resource{
		Name: equalList, Version: "1", Resource: &anypb.Any{TypeUrl: equalListType, Value: value},
	}}
	port := openPort(t)
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	serve(s, port.listen())
	t.Cleanup(s.Stop)
	return port.address
}

// DeltaAggregatedResources implements the service in delta.
func (p *quietPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		if !slices.Contains(req.GetResourceNamesSubscribe(), equalList) {
			continue
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: equalListType, Nonce: "1", Resources: []*discoveryv3.Resource{p.list}}); err != nil {
			return err
		}
	}
}

// StreamAggregatedResources implements the service in SotW.
func (*quietPlane) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return ended(err)
		}
	}
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// attackedConfig is the configuration of the attacked relay. The quiet control plane serves an authority with
// a fixed name, an authority with a pattern, an authority in SotW, a partition for each node, and a view. The
// REST listener has TLS.
func attackedConfig(plane, quiet, cert, key string) string {
	server := func(name, protocol string) string {
		return fmt.Sprintf("  - name: %q\n    servers: [{address: %q, protocol: %s}]\n", name, quiet, protocol)
	}
	return `
listeners:
  - address: 127.0.0.1:0
    limits: {streams: 1000, connections: 200, streams_per_second: 100, requests_per_second: 200, request_burst: 400, connections_per_second: 10000}
  - address: 127.0.0.1:0
    limits: {connections: 200, connections_per_second: 5}
  - address: 127.0.0.1:0
    protocol: rest
    limits: {requests_per_second: 200, request_burst: 400}
    tls: {cert_file: ` + cert + `, key_file: ` + key + `}
admin:
  address: 127.0.0.1:0
node:
  id: the-relay
` + servedBy(plane, "delta") +
		server("quiet.example.com", "delta") + server("*.quiet.example.com", "delta") + server("sotw.example.com", "sotw") + `
old_style_names:
  - {when: node.cluster == "quiet", authority: quiet.example.com}
  - {when: node.cluster == "hogs", authority: sotw.example.com}
  - {when: node.cluster == "partitions", authority: quiet.example.com, partition: node.id}
  - authority: cp.example.com
views:
  - match: {glob: "` + equalView + `"}
    collections: ["` + equalList + `"]
cache: {linger: 200ms}
`
}

// in opens a stream of a client with old-style names. Its Node's cluster decides which authority serves them.
func (at *target) in(ctx context.Context, t *testing.T, conn *grpc.ClientConn, id, cluster string, reqs ...*discoveryv3.DeltaDiscoveryRequest) {
	reqs[0].Node = &corev3.Node{Id: id, Cluster: cluster}
	at.send(ctx, t, conn, reqs...)
}

func ask(typeURL string, names ...string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names}
}

// batches returns requests for n names, made from format and a number.
func batches(n int, format string) (reqs []*discoveryv3.DeltaDiscoveryRequest) {
	const batch = 500
	for i := 0; i < n; i += batch {
		names := make([]string, batch)
		for j := range names {
			names[j] = fmt.Sprintf(format, i+j)
		}
		reqs = append(reqs, ask(clusterType, names...))
	}
	return reqs
}

func namesAndGlobs(ctx context.Context, t *testing.T, at *target) {
	const prefix = "xdstp://quiet.example.com/envoy.config.cluster.v3.Cluster/"
	at.send(ctx, t, at.dial(ctx, t), append(batches(40_000, prefix+"dir-%d/name"), batches(10_000, prefix+"dir-%d/*")...)...)
	<-ctx.Done()
}

func equalLocators(ctx context.Context, t *testing.T, at *target) {
	at.send(ctx, t, at.dial(ctx, t), ask(clusterType, equalView))
	<-ctx.Done()
}

func madeUpAuthorities(ctx context.Context, t *testing.T, at *target) {
	at.send(ctx, t, at.dial(ctx, t), batches(20_000, "xdstp://a%d.quiet.example.com/envoy.config.cluster.v3.Cluster/x")...)
	<-ctx.Done()
}

func madeUpPartitions(ctx context.Context, t *testing.T, at *target) {
	conn := at.dial(ctx, t)
	for i := range 200 {
		at.in(ctx, t, conn, fmt.Sprint("made-up-", i), "partitions", ask(clusterType, "x"))
	}
	<-ctx.Done()
}

func longNamesInSotW(ctx context.Context, t *testing.T, at *target) {
	at.in(ctx, t, at.dial(ctx, t), "hog", "hogs", batches(100_000, "%042d")...)
	<-ctx.Done()
}

func nameThenWildcard(ctx context.Context, t *testing.T, at *target) {
	conn := at.dial(ctx, t)
	for i := range 4 {
		var reqs []*discoveryv3.DeltaDiscoveryRequest
		for j := range 64 {
			typeURL := fmt.Sprintf("made.up/%d-%d-%s", i, j, strings.Repeat("t", 900))
			reqs = append(reqs, ask(typeURL, "x"), ask(typeURL, wildcard))
		}
		at.in(ctx, t, conn, "made-up", "quiet", reqs...)
	}
	<-ctx.Done()
}
