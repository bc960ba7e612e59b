package integration

// A hostile control plane and hostile clients: they send random messages, some of which are made to do harm.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// hostilePlane is the control plane of an authority. It sends arbitrary responses, also for names of other
// authorities.
type hostilePlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*port
	mu   sync.Mutex
	rand *rand.Rand
}

func startHostilePlane(t testing.TB, r *rand.Rand) *hostilePlane {
	t.Helper()
	p := &hostilePlane{port: openPort(t), rand: r}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	serve(s, p.listen())
	t.Cleanup(s.Stop)
	return p
}

// DeltaAggregatedResources answers every request with a random response.
func (p *hostilePlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		p.mu.Lock()
		r := rand.New(rand.NewPCG(p.rand.Uint64(), 0))
		p.mu.Unlock()
		if r.IntN(40) == 0 {
			return errChaos
		}
		for range r.IntN(3) {
			if !pause(stream.Context(), r, 20*time.Millisecond) {
				return nil
			}
			if err := stream.Send(hostileResponse(r, req)); err != nil {
				return err
			}
		}
	}
}

// hostileResponse returns a random response, which may or may not fit the request.
func hostileResponse(r *rand.Rand, req *discoveryv3.DeltaDiscoveryRequest) *discoveryv3.DeltaDiscoveryResponse {
	resp := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: req.GetTypeUrl(), Nonce: hostileText(r), SystemVersionInfo: hostileText(r),
	}
	if r.IntN(10) == 0 {
		resp.TypeUrl = hostileText(r)
	}
	names := append([]string{"", "*", hostileText(r)}, req.GetResourceNamesSubscribe()...)
	for _, authority := range []form{delta, sotw, "evil"} {
		names = append(names, "cluster-1", anchor, chaosGlob(authority)+"1", chaosGlob(authority)+"*")
	}
	name := func() string { return names[r.IntN(len(names))] }
	for range r.IntN(20) {
		resp.Resources = append(resp.Resources, hostileResource(r, resp.GetTypeUrl(), name()))
	}
	for range r.IntN(4) {
		resp.RemovedResources = append(resp.RemovedResources, name())
	}
	for range r.IntN(4) {
		resp.ResourceErrors = append(resp.ResourceErrors, &discoveryv3.ResourceError{
			ResourceName: &discoveryv3.ResourceName{Name: name()},
			ErrorDetail:  &rpcstatus.Status{Code: int32(r.IntN(20)), Message: hostileText(r)},
		})
	}
	return resp
}

func hostileResource(r *rand.Rand, typeURL, name string) *discoveryv3.Resource {
	const unheard = 1 << 20 // a revision that no control plane has
	res := &discoveryv3.Resource{Name: name, Version: hostileText(r), Resource: chaosResource(topic{typeURL, name}, unheard)}
	switch r.IntN(8) {
	case 0:
		res.Resource = undecodable(name, typeURL).GetResource()
	case 1:
		res.Resource = nil
	case 2:
		res.Ttl = durationpb.New(time.Duration(r.IntN(200)) * time.Millisecond)
	case 3: // a redirect, perhaps in a loop
		res.Resource, _ = anypb.New(&xdscorev3.ResourceLocator{
			Authority: []string{"evil", "delta", "sotw", "nobody"}[r.IntN(4)], ResourceType: "envoy.config.endpoint.v3.ClusterLoadAssignment",
			Id: fmt.Sprint("glob/", r.IntN(4)),
		})
	case 4:
		for range r.IntN(10) {
			res.Aliases = append(res.Aliases, hostileText(r))
		}
	}
	return res
}

// hostileText returns a random text, short or long, with special characters among others.
func hostileText(r *rand.Rand) string {
	parts := []string{"xdstp:", "//", "evil", "delta", "/", "*", "?", "#alt=", "%", "a=b", "&", "\x7f", "\x00", "é", " ", clusterType, "cluster-1"}
	var b strings.Builder
	for range r.IntN(6) {
		b.WriteString(parts[r.IntN(len(parts))])
	}
	if r.IntN(20) == 0 {
		b.WriteString(strings.Repeat("x", r.IntN(8<<10)))
	}
	return b.String()
}

// beHostile opens streams and sends requests that no real client would send, until ctx ends.
func beHostile(ctx context.Context, address func() string, r *rand.Rand) {
	const breath = 50 * time.Millisecond
	for pause(ctx, r, breath) {
		conn, err := grpc.NewClient(address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			continue
		}
		ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
		until, cancel := context.WithTimeout(ctx, time.Duration(1+r.IntN(2000))*time.Millisecond)
		if r.IntN(2) == 0 {
			hostileDelta(until, ads, r)
		} else {
			hostileSotW(until, ads, r)
		}
		cancel()
		_ = conn.Close()
	}
}

func hostileNames(r *rand.Rand) (names []string) {
	n := r.IntN(20)
	if r.IntN(20) == 0 {
		n = r.IntN(5000)
	}
	for i := range n {
		switch r.IntN(4) {
		case 0:
			names = append(names, hostileText(r))
		case 1:
			names = append(names, fmt.Sprintf("%s%d/*", chaosGlob("evil"), i))
		case 2:
			names = append(names, fmt.Sprint(chaosGlob([]form{delta, sotw, "evil"}[r.IntN(3)]), i, "#alt=", strings.ReplaceAll(chaosGlob("evil"), "/", "%2F"), "1"))
		default:
			names = append(names, fmt.Sprint("cluster-", i))
		}
	}
	return names
}

func hostileType(r *rand.Rand) string {
	if r.IntN(5) == 0 {
		return hostileText(r)
	}
	return []string{clusterType, endpointType, listenerType}[r.IntN(3)]
}

func hostileStatus(r *rand.Rand) *rpcstatus.Status {
	if r.IntN(3) > 0 {
		return nil
	}
	return &rpcstatus.Status{Code: int32(codes.Internal), Message: hostileText(r)}
}

func hostileDelta(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, r *rand.Rand) {
	stream, err := ads.DeltaAggregatedResources(ctx)
	if err != nil {
		return
	}
	for first := true; pause(ctx, r, 5*time.Millisecond); first = false {
		req := &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: hostileType(r), ResourceNamesSubscribe: hostileNames(r), ResourceNamesUnsubscribe: hostileNames(r),
			ResponseNonce: fmt.Sprint(r.IntN(50)), ErrorDetail: hostileStatus(r), InitialResourceVersions: map[string]string{},
		}
		for _, name := range hostileNames(r) {
			req.InitialResourceVersions[name] = hostileText(r)
		}
		if first {
			req.Node = node(hostileText(r), []string{"evil", "delta", "sotw"}[r.IntN(3)])
		}
		if stream.Send(req) != nil {
			return
		}
		if r.IntN(2) == 0 {
			continue // the client does not read every response
		}
		if _, err := stream.Recv(); err != nil {
			return
		}
	}
}

func hostileSotW(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, r *rand.Rand) {
	stream, err := ads.StreamAggregatedResources(ctx)
	if err != nil {
		return
	}
	for first := true; pause(ctx, r, 5*time.Millisecond); first = false {
		req := &discoveryv3.DiscoveryRequest{
			TypeUrl: hostileType(r), ResourceNames: hostileNames(r), VersionInfo: hostileText(r),
			ResponseNonce: fmt.Sprint(r.IntN(50)), ErrorDetail: hostileStatus(r),
		}
		if first {
			req.Node = node(hostileText(r), []string{"evil", "delta", "sotw"}[r.IntN(3)])
		}
		if stream.Send(req) != nil {
			return
		}
		if r.IntN(2) == 0 {
			continue
		}
		if _, err := stream.Recv(); err != nil {
			return
		}
	}
}
