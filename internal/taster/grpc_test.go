package taster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/credentials/tls/certprovider/pemfile" // file_watcher
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// gRPC's own client and server check the examples, which a control plane sends one after the other. Between two
// examples it sends a good resource, so that the next one is a change.

// patience is how long gRPC may take for an answer.
const patience = time.Minute

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) // it logs each rejection
	os.Exit(m.Run())
}

// plane is a control plane with one stream, whose responses the test sends.
type plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	address string
	streams chan discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	// requests are all requests of the stream, in order.
	requests chan *discoveryv3.DiscoveryRequest
}

func (p *plane) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	p.streams <- stream
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case p.requests <- request:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func newPlane(t *testing.T) *plane {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{
		address:  listener.Addr().String(),
		streams:  make(chan discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer, 1),
		requests: make(chan *discoveryv3.DiscoveryRequest),
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(256 << 20)) // a NACK has the resources in it
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, p)
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
	return p
}

// bootstrap is gRPC's, for the control plane.
func (p *plane) bootstrap(t *testing.T) []byte {
	t.Helper()
	// The files need not exist: nothing connects.
	provider := map[string]any{"plugin_name": "file_watcher", "config": map[string]any{
		"certificate_file": "/none/cert.pem", "private_key_file": "/none/key.pem", "ca_certificate_file": "/none/ca.pem",
	}}
	text, err := json.Marshal(map[string]any{
		"xds_servers": []any{map[string]any{
			"server_uri": p.address, "channel_creds": []any{map[string]any{"type": "insecure"}}, "server_features": []string{"xds_v3"},
		}},
		"node":                                   map[string]any{"id": "taster"},
		"certificate_providers":                  map[string]any{"roots": provider, "own": provider},
		"server_listener_resource_name_template": serverName,
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// conversation is the stream of one client.
type conversation struct {
	t        *testing.T
	plane    *plane
	stream   discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	versions int
	// names are those that the client's last request of each type had.
	names map[string][]string
}

func (p *plane) converse(t *testing.T) *conversation {
	t.Helper()
	c := &conversation{t: t, plane: p, names: map[string][]string{}}
	select {
	case c.stream = <-p.streams:
	case <-time.After(patience):
		t.Fatal("gRPC does not come")
	}
	return c
}

// await waits for a request.
func (c *conversation) await(what string, is func(*discoveryv3.DiscoveryRequest) bool) *discoveryv3.DiscoveryRequest {
	c.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case request := <-c.plane.requests:
			c.names[request.TypeUrl] = request.ResourceNames
			if is(request) {
				return request
			}
		case <-timeout:
			c.t.Fatalf("no %s", what)
		}
	}
}

// subscribed waits until a type is requested. (gRPC may request it before it acknowledges the resource that names it.)
func (c *conversation) subscribed(typeURL string) {
	c.t.Helper()
	if len(c.names[typeURL]) > 0 {
		return
	}
	c.await("request for "+typeURL, func(r *discoveryv3.DiscoveryRequest) bool {
		return r.TypeUrl == typeURL && len(r.ResourceNames) > 0
	})
}

// send sends a resource, and returns why gRPC rejects it, empty if it does not.
func (c *conversation) send(m proto.Message) (nack string) {
	c.t.Helper()
	content, err := anypb.New(m)
	if err != nil {
		c.t.Fatal(err)
	}
	c.versions++
	version := fmt.Sprint(c.versions)
	err = c.stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: content.TypeUrl, VersionInfo: version, Nonce: version, Resources: []*anypb.Any{content}})
	if err != nil {
		c.t.Fatal(err)
	}
	answer := c.await("answer", func(r *discoveryv3.DiscoveryRequest) bool {
		return r.TypeUrl == content.TypeUrl && r.ResponseNonce == version
	})
	return answer.GetErrorDetail().GetMessage()
}

// judge sends the examples, each after a good resource.
func (c *conversation) judge(good proto.Message, all []example) {
	for _, e := range all {
		c.t.Run(e.typeURL()+"/"+e.name, func(*testing.T) {
			if nack := c.send(good); nack != "" {
				c.t.Fatalf("gRPC rejects what is good: %s", nack)
			}
			switch nack := c.send(e.resource); {
			case e.broken == "" && nack != "":
				c.t.Errorf("%s: gRPC rejects it: %s", e.name, nack)
			case e.broken != "" && nack == "":
				c.t.Errorf("%s: gRPC takes it, though it wants that %s", e.name, e.broken)
			}
		})
	}
	if nack := c.send(good); nack != "" {
		c.t.Fatalf("gRPC rejects what is good: %s", nack)
	}
}

// startGRPC starts gRPC with a control plane that has sent it a good listener, route and cluster, and of which it
// has requested endpoints. It returns what they say to each other, and the listener.
func startGRPC(t *testing.T) (*conversation, proto.Message) {
	t.Helper()
	p := newPlane(t)
	resolver, err := xds.NewXDSResolverWithConfigForTesting(p.bootstrap(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///"+clientName, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	conn.Connect()
	c := p.converse(t)
	listener := apiListener(pack(goodHCM()))
	c.subscribed(xdstype.ListenerV3)
	c.send(listener)
	c.subscribed(xdstype.RouteV3)
	c.send(goodRoutes())
	c.subscribed(xdstype.ClusterV3)
	c.send(goodCluster())
	c.subscribed(xdstype.EndpointsV3)
	return c, listener
}

func TestGRPCRejectsTheSame(t *testing.T) {
	c, good := startGRPC(t)
	c.judge(endpoints(), endpointsExamples)
	c.judge(goodCluster(), clusterExamples)
	c.judge(goodRoutes(), routesExamples)
	c.judge(good, listenerExamples)
}

func TestGRPCServersRejectTheSame(t *testing.T) {
	p := newPlane(t)
	server, err := xds.NewGRPCServer(xds.BootstrapContentsForTesting(p.bootstrap(t)))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // until Stop
	defer server.Stop()
	c := p.converse(t)
	c.subscribed(xdstype.ListenerV3)
	c.judge(serverListener(func(*listenerv3.Listener) {}), serverExamples)
}
