package relay

// Control planes and clients of plain_test.go, in memory.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// plainPlane is a control plane that serves what it has, by names and globs, in delta.
type plainPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*memoryServer

	mu      sync.Mutex
	says    map[string]*anypb.Any // by name; nil is that it cannot give it
	changed chan struct{}         // closed at the next change
}

func newPlainPlane() *plainPlane {
	p := &plainPlane{memoryServer: &memoryServer{}, says: map[string]*anypb.Any{}, changed: make(chan struct{})}
	p.ads = p
	return p
}

// say changes the value of a name. nil means that it does not exist, or, if fails is set, that the control plane
// cannot give it.
func (p *plainPlane) say(name string, value *anypb.Any, fails bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.says[name] = value; value == nil && !fails {
		delete(p.says, name)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// DeltaAggregatedResources implements the service.
func (p *plainPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	requests := make(chan *discoveryv3.DeltaDiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	asked := map[string]map[string]bool{} // by type
	sent := map[string]map[string]string{}
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		var fresh []string
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			typeURL := r.GetTypeUrl()
			if asked[typeURL] == nil {
				asked[typeURL], sent[typeURL] = map[string]bool{}, map[string]string{}
				for name := range r.GetInitialResourceVersions() {
					sent[typeURL][name] = "?"
				}
			}
			for _, name := range r.GetResourceNamesSubscribe() {
				asked[typeURL][name] = true
			}
			for _, name := range r.GetResourceNamesUnsubscribe() {
				delete(asked[typeURL], name)
			}
			fresh = r.GetResourceNamesSubscribe()
			if err := p.answer(stream, typeURL, asked[typeURL], sent[typeURL], fresh); err != nil {
				return err
			}
			continue
		case <-changed:
		}
		for typeURL := range asked {
			if err := p.answer(stream, typeURL, asked[typeURL], sent[typeURL], nil); err != nil {
				return err
			}
		}
	}
}

func (p *plainPlane) answer(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, typeURL string, asked map[string]bool, sent map[string]string, fresh []string) error {
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "n"}
	found := map[string]bool{}
	p.mu.Lock()
	for name, value := range p.says {
		directory := name[:strings.LastIndexByte(name, '/')+1]
		if "type.googleapis.com/"+strings.Split(name, "/")[3] != typeURL || !asked[name] && !asked[directory+"*"] {
			continue
		}
		found[name], found[directory+"*"] = true, true
		version := fmt.Sprintf("v%x", value.GetValue())
		if sent[name] != version || slices.Contains(fresh, name) {
			sent[name] = version
			if value == nil {
				resp.ResourceErrors = append(resp.ResourceErrors, &discoveryv3.ResourceError{
					ResourceName: &discoveryv3.ResourceName{Name: name}, ErrorDetail: status.New(codes.Internal, "no").Proto(),
				})
				continue
			}
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: value})
		}
	}
	p.mu.Unlock()
	for name := range sent {
		if !found[name] {
			delete(sent, name)
			resp.RemovedResources = append(resp.RemovedResources, name)
		}
	}
	for _, name := range fresh {
		if !found[name] && !slices.Contains(resp.RemovedResources, name) {
			resp.RemovedResources = append(resp.RemovedResources, name)
		}
	}
	if len(resp.Resources)+len(resp.RemovedResources)+len(resp.ResourceErrors) == 0 {
		return nil
	}
	return stream.Send(resp)
}

// plainClient is a client of one form that ACKs all responses, and records what it received of clusters.
type plainClient struct {
	what  string
	names []string // what it requests; none is everything
	mu    sync.Mutex
	has   map[string]string
	wrong string
	had   map[string]string // when it was last looked at
}

// byName reports whether it requests single resources.
func (c *plainClient) byName() bool { return len(c.names) > 1 }

func (c *plainClient) run(ctx context.Context, conn *grpc.ClientConn, form string) error {
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if form == "delta" {
		stream, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: plainType, ResourceNamesSubscribe: c.names}
		for {
			if err := stream.Send(req); err != nil {
				return err
			}
			resp, err := stream.Recv()
			if err != nil {
				return err
			}
			c.mu.Lock()
			for _, r := range resp.GetResources() {
				c.take(r.GetName(), r.GetResource())
			}
			for _, name := range resp.GetRemovedResources() {
				delete(c.has, name)
			}
			c.mu.Unlock()
			req = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: plainType, ResponseNonce: resp.GetNonce()}
		}
	}
	stream, err := ads.StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	req := &discoveryv3.DiscoveryRequest{TypeUrl: plainType, ResourceNames: c.names}
	for {
		if err := stream.Send(req); err != nil {
			return err
		}
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.has = map[string]string{} // clusters come as a full state
		for _, r := range resp.GetResources() {
			name, _ := readResource(r)
			c.take(name, r)
		}
		c.mu.Unlock()
		req = &discoveryv3.DiscoveryRequest{TypeUrl: plainType, ResourceNames: c.names, VersionInfo: resp.GetVersionInfo(), ResponseNonce: resp.GetNonce()}
	}
}

func (c *plainClient) take(name string, r *anypb.Any) {
	inside, content := readResource(r)
	if inside != name || r.GetTypeUrl() != plainType {
		c.wrong = fmt.Sprintf("%s is a %s that says %s inside", name, r.GetTypeUrl(), inside)
	}
	c.has[name] = content
}
