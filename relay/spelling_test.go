package relay

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// spellingPlane is a control plane that gives names their resources, in both forms of xDS. In SotW it is silent about
// those that it does not have.
type spellingPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*memoryServer
	has map[string]*anypb.Any
}

func (p *spellingPlane) find(typeURL string, names []string) map[string]*anypb.Any {
	found := map[string]*anypb.Any{}
	for _, name := range names {
		if r := p.has[name]; r != nil && (r.GetTypeUrl() == typeURL || r.GetTypeUrl() == xdstype.Locator) {
			found[name] = r
		}
	}
	return found
}

// DeltaAggregatedResources implements the service.
func (p *spellingPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		req, err := stream.Recv()
		if err != nil || len(req.GetResourceNamesSubscribe()) == 0 {
			if err != nil {
				return err
			}
			continue
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "n"}
		found := p.find(req.GetTypeUrl(), req.GetResourceNamesSubscribe())
		for _, name := range req.GetResourceNamesSubscribe() {
			if found[name] == nil {
				resp.RemovedResources = append(resp.RemovedResources, name)
				continue
			}
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: found[name]})
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// StreamAggregatedResources implements the service.
func (p *spellingPlane) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	sent := map[string]bool{}
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "n", VersionInfo: "1"}
		for name, r := range p.find(req.GetTypeUrl(), req.GetResourceNames()) {
			if sent[name] {
				continue
			}
			sent[name] = true
			if r.GetTypeUrl() == xdstype.Locator { // has no name inside
				wrapped, err := anypb.New(&discoveryv3.Resource{Name: name, Version: "1", Resource: r})
				if err != nil {
					return err
				}
				r = wrapped
			}
			resp.Resources = append(resp.Resources, r)
		}
		if len(resp.Resources) > 0 {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}

// inside subscribes to a resource, and returns the name inside it once it comes.
func inside(ctx context.Context, t *testing.T, ads discoveryv3.AggregatedDiscoveryServiceClient, form, typeURL, name string) string {
	t.Helper()
	var r *anypb.Any
	if form == "delta" {
		stream, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{name}}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil || len(resp.GetResources()) != 1 || resp.GetResources()[0].GetName() != name {
			t.Fatalf("%s: %v, %v", name, resp, err)
		}
		r = resp.GetResources()[0].GetResource()
	} else {
		stream, err := ads.StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: []string{name}}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil || len(resp.GetResources()) != 1 {
			t.Fatalf("%s: %v, %v", name, resp, err)
		}
		r = resp.GetResources()[0]
	}
	if typeURL == xdstype.ClusterV3 {
		return ""
	}
	var endpoints endpointv3.ClusterLoadAssignment
	if err := r.UnmarshalTo(&endpoints); err != nil {
		t.Fatal(err)
	}
	return endpoints.GetClusterName()
}

// Inside of endpoints is the name as the Cluster has it, whatever Envoy requests.
func TestEndpointsHaveTheNameThatTheClusterHas(t *testing.T) {
	const (
		begins = "xdstp://control-plane/envoy.config.endpoint.v3.ClusterLoadAssignment/"
		alt    = begins + "elsewhere/n"
	)
	anyOf := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, c := range []struct {
		written, requested string
		at                 string // where the endpoints are
		redirect           bool
	}{
		{written: "n1?zone=a&env=b", requested: "n1?env=b&zone=a"},
		{written: "n%2D1", requested: "n-1"},
		{written: "a%3Ab", requested: "a:b"},
		{written: "n1?env=a%2Fb", requested: "n1?env=a/b"},
		{written: "r?b=1&a=2", requested: "r?a=2&b=1", redirect: true},
		{written: "gone#alt=" + alt, requested: "gone%23alt=" + alt, at: alt},
		{written: "gone%23alt=" + alt, requested: "gone%23alt=" + alt, at: alt},
		{written: "gone%23alt=xdstp%3A" + strings.TrimPrefix(alt, "xdstp:"), requested: "gone%23alt=" + alt, at: alt},
	} {
		for _, upstream := range []string{"delta", "sotw"} {
			for _, form := range []string{"delta", "sotw"} {
				t.Run(c.written+"/"+upstream+"-"+form, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						p := &spellingPlane{memoryServer: &memoryServer{}, has: map[string]*anypb.Any{}}
						p.ads = p
						p.has["one"] = anyOf(&clusterv3.Cluster{
							Name: "one", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
							EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: begins + c.written},
						})
						switch {
						case c.redirect:
							p.has[begins+c.requested] = redirectTo(t, alt)
							p.has[alt] = anyOf(&endpointv3.ClusterLoadAssignment{ClusterName: alt})
						case c.at != "":
							p.has[c.at] = anyOf(&endpointv3.ClusterLoadAssignment{ClusterName: c.at})
						default:
							p.has[begins+c.requested] = anyOf(&endpointv3.ClusterLoadAssignment{ClusterName: begins + c.written})
						}
						p.up()
						defer p.down()
						config := strings.ReplaceAll(crossingConfig, "PROTOCOL", upstream)
						config = strings.Replace(config, "authorities:\n  - name: control-plane\n", "authorities:\n  - name: control-plane\n    failover: {not_found: true}\n", 1)
						s := startInMemory(t, config, func(string) dialer { return p.dial })
						defer s.close()
						conn, _ := s.dial(t)
						defer func(c *grpc.ClientConn) { _ = c.Close() }(conn)
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
						inside(ctx, t, ads, form, xdstype.ClusterV3, "one")
						if got := inside(ctx, t, ads, form, xdstype.EndpointsV3, begins+c.requested); got != begins+c.written {
							t.Errorf("the name inside is %s, want %s", got, begins+c.written)
						}
					})
				})
			}
		}
	}
}
