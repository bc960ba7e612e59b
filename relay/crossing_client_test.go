package relay

// The clients of the crossings: streams of either form. The transcript says what they send.

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

type scriptedClient struct {
	name  string
	delta bool
	acks  bool
	// versions says that system_version_info is shown.
	versions bool
	grpc     *grpc.ClientConn
	conn     *stallingConn
	stream   grpc.ClientStream
	cancel   context.CancelFunc
	ended    chan struct{}
	// metadata is the metadata with which it opens its stream.
	metadata metadata.MD

	mu    sync.Mutex // guards all below, and sending
	node  *corev3.Node
	types map[string]*clientType
	held  map[string]string
	got   []string
}

// clientType is a client's state of a type.
type clientType struct {
	nonce   string   // the newest
	version string   // SotW: that of the newest response
	valid   string   // SotW: the newest that it accepted
	names   []string // SotW: what it requests, as the transcript says it
}

// crossingServices are the methods of the services, SotW and delta.
var crossingServices = map[string][2]string{
	"ADS": {discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName, discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName},
	"CDS": {clusterservice.ClusterDiscoveryService_StreamClusters_FullMethodName, clusterservice.ClusterDiscoveryService_DeltaClusters_FullMethodName},
	"EDS": {endpointservice.EndpointDiscoveryService_StreamEndpoints_FullMethodName, endpointservice.EndpointDiscoveryService_DeltaEndpoints_FullMethodName},
}

// connect opens the stream of a client. The server does not see the stream before its first request.
func (s *servedRelay) connect(t *testing.T, c *scriptedClient, service string) {
	t.Helper()
	c.ended, c.types = make(chan struct{}), map[string]*clientType{}
	c.grpc, c.conn = s.dial(t)
	method := crossingServices[service][0]
	if c.delta {
		method = crossingServices[service][1]
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(metadata.NewOutgoingContext(context.Background(), c.metadata))
	var err error
	c.stream, err = c.grpc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	go c.receive()
}

func (c *scriptedClient) close() {
	c.conn.resume()
	c.cancel()
	<-c.ended
	_ = c.grpc.Close()
}

func (c *scriptedClient) receive() {
	defer close(c.ended)
	for {
		var err error
		if c.delta {
			m := new(discoveryv3.DeltaDiscoveryResponse)
			if err = c.stream.RecvMsg(m); err == nil {
				c.gotDelta(m)
			}
		} else {
			m := new(discoveryv3.DiscoveryResponse)
			if err = c.stream.RecvMsg(m); err == nil {
				c.gotSotW(m)
			}
		}
		if err != nil {
			c.mu.Lock()
			c.got = append(c.got, "the stream has ended: "+err.Error())
			c.mu.Unlock()
			return
		}
	}
}

func (c *scriptedClient) gotDelta(m *discoveryv3.DeltaDiscoveryResponse) {
	c.mu.Lock()
	c.of(m.GetTypeUrl()).nonce = m.GetNonce()
	for _, r := range m.GetResources() {
		c.held[m.GetTypeUrl()+" "+r.GetName()+r.GetResourceName().GetName()] = r.GetVersion()
	}
	if c.versions {
		c.got = append(c.got, "version="+shortHash(m.GetSystemVersionInfo())+" "+describeDeltaResponse(m))
	} else {
		c.got = append(c.got, describeDeltaResponse(m))
	}
	c.mu.Unlock()
	if c.acks {
		c.ack(m.GetTypeUrl())
	}
}

func (c *scriptedClient) gotSotW(m *discoveryv3.DiscoveryResponse) {
	c.mu.Lock()
	typ := c.of(m.GetTypeUrl())
	typ.nonce, typ.version = m.GetNonce(), m.GetVersionInfo()
	c.got = append(c.got, describeSotWResponse(m))
	c.mu.Unlock()
	if c.acks {
		c.ack(m.GetTypeUrl())
	}
}

// of returns the state of a type. The caller holds mu.
func (c *scriptedClient) of(typeURL string) *clientType {
	if c.types[typeURL] == nil {
		c.types[typeURL] = &clientType{}
	}
	return c.types[typeURL]
}

func (c *scriptedClient) ack(typeURL string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	typ := c.of(typeURL)
	if c.delta {
		c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: typ.nonce})
		return
	}
	typ.valid = typ.version
	c.held[typeURL] = typ.valid
	names, locators := namesAndLocators(typ.names)
	c.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: typ.nonce, VersionInfo: typ.valid, ResourceNames: names, ResourceLocators: locators})
}

// send sends a request, the first one with the Node. The caller holds mu.
func (c *scriptedClient) send(m proto.Message) {
	switch m := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		m.Node = c.node
	case *discoveryv3.DiscoveryRequest:
		m.Node = c.node
	}
	c.node = nil
	_ = c.stream.SendMsg(m) // if the stream has ended, the receiver says so
}

func (c *scriptedClient) request(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	typeURL := typeURLOf(t, d.CmdArgs[1].Key)
	typ := c.of(typeURL)
	delta := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL}
	sotw := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: typ.nonce, VersionInfo: typ.valid}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		rest := strings.Join(words[1:], " ")
		switch what := words[0]; {
		case what == "subscribe" && c.delta:
			delta.ResourceNamesSubscribe, delta.ResourceLocatorsSubscribe = namesAndLocators(words[1:])
		case what == "unsubscribe" && c.delta:
			delta.ResourceNamesUnsubscribe, delta.ResourceLocatorsUnsubscribe = namesAndLocators(words[1:])
		case what == "initial" && c.delta:
			delta.InitialResourceVersions = map[string]string{}
			for _, word := range words[1:] {
				name, version, given := strings.Cut(word, "@")
				if !given {
					version = c.held[typeURL+" "+name]
				}
				delta.InitialResourceVersions[name] = version
			}
		case what == "names" && !c.delta:
			typ.names = slices.Clone(words[1:])
		case what == "version" && !c.delta:
			if sotw.VersionInfo = rest; rest == "accepted" {
				sotw.VersionInfo = c.held[typeURL]
			}
		case what == "nonce":
			if rest == "none" {
				rest = ""
			}
			delta.ResponseNonce, sotw.ResponseNonce = rest, rest
		case what == "nack":
			s := &statuspb.Status{Code: int32(codes.InvalidArgument), Message: rest}
			delta.ErrorDetail, sotw.ErrorDetail = s, s
			delta.ResponseNonce = typ.nonce
		case what == "node":
			c.node = &corev3.Node{Id: rest}
		default:
			t.Fatalf("%s: a request of this form has no line %q", d.Pos, line)
		}
	}
	if c.delta {
		c.send(delta)
		return
	}
	sotw.ResourceNames, sotw.ResourceLocators = namesAndLocators(typ.names)
	c.send(sotw)
}

// take returns what the client received since the last call.
func (c *scriptedClient) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]string, 0, len(c.got))
	for _, what := range c.got {
		out = append(out, c.name+" <- "+what)
	}
	c.got = nil
	return out
}
