package relay

// Control planes and clients for tests of reloads.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/testplane"
)

// labelledPlane has clusters that name the plane. It has every xdstp name that is requested.
type labelledPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	label   string
	members []string // of the wildcard
	besides []string // that it has, too
	address string
	answers chan struct{} // if not nil, it answers once that is closed

	mu      sync.Mutex
	streams int // that were opened
}

func startLabelledPlane(t *testing.T, label string, members ...string) *labelledPlane {
	t.Helper()
	p := &labelledPlane{label: label, members: members}
	p.address = testplane.Listen(t, p)
	return p
}

func (p *labelledPlane) opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

// glob returns the members of a glob: two, and all that the wildcard has.
func (p *labelledPlane) glob(name string) (members []string) {
	folder := strings.TrimSuffix(name, "*")
	for _, id := range append([]string{"g1", "g2"}, p.members...) {
		members = append(members, folder+id)
	}
	return members
}

// expand replaces globs by their members.
func (p *labelledPlane) expand(names []string) (all []string) {
	for _, name := range names {
		if strings.HasSuffix(name, "/*") {
			all = append(all, p.glob(name)...)
		} else {
			all = append(all, name)
		}
	}
	return all
}

func (p *labelledPlane) has(name string) bool {
	return strings.HasPrefix(name, "xdstp:") || slices.Contains(p.members, name) || slices.Contains(p.besides, name)
}

// resource returns a cluster, nil if there is none.
func (p *labelledPlane) resource(name string) (*discoveryv3.Resource, error) {
	if !p.has(name) {
		return nil, nil
	}
	a, err := anypb.New(&clusterv3.Cluster{Name: name, AltStatName: p.label})
	return &discoveryv3.Resource{Name: name, Version: p.label, Resource: a}, err
}

// DeltaAggregatedResources implements the aggregated service.
func (p *labelledPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	p.mu.Lock()
	p.streams++
	p.mu.Unlock()
	first := map[string]bool{}
	for n := 1; ; n++ {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		names := slices.Clone(req.GetResourceNamesSubscribe())
		if !first[req.GetTypeUrl()] && len(names) == 0 {
			names = []string{"*"}
		}
		first[req.GetTypeUrl()] = true
		if len(names) == 0 {
			continue
		}
		if p.answers != nil {
			select {
			case <-p.answers:
			case <-stream.Context().Done():
				return nil
			}
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: fmt.Sprint(n)}
		if at := slices.Index(names, "*"); at >= 0 {
			names = append(slices.Delete(names, at, at+1), p.members...)
		}
		for _, name := range p.expand(names) {
			r, err := p.resource(name)
			switch {
			case err != nil:
				return err
			case r == nil:
				resp.RemovedResources = append(resp.RemovedResources, name)
			default:
				resp.Resources = append(resp.Resources, r)
			}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// holder is a client that holds what it is sent.
type holder struct {
	sotw  bool
	names []string // none: the wildcard
	end   context.CancelFunc

	mu      sync.Mutex
	changed chan struct{}
	has     map[string]string // the label by name
	errors  map[string]string // by name
	removed []string          // everything that was removed, in order
	excused []bool            // for each of these: the client was denied it, and not given it since
	denied  map[string]bool   // what it was denied, and not given since
	ended   error
}

// hold opens a stream of clusters. The Node has the id, and the cluster is the part before a dash. A stream that the
// relay has ended before the request is sent is no error here: Recv says why.
func hold(t *testing.T, conn *grpc.ClientConn, sotw bool, node *corev3.Node, names ...string) *holder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h := &holder{sotw: sotw, names: names, end: cancel, changed: make(chan struct{}), has: map[string]string{}, errors: map[string]string{}, denied: map[string]bool{}}
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	done := make(chan struct{})
	if sotw {
		stream, err := ads.StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: clusterTypeURL, ResourceNames: names}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		go func() { defer close(done); h.followSotW(stream) }()
	} else {
		stream, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: clusterTypeURL, ResourceNamesSubscribe: names}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		go func() { defer close(done); h.followDelta(stream) }()
	}
	t.Cleanup(func() { cancel(); <-done })
	return h
}

// update changes what the client knows.
func (h *holder) update(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

func labelOf(a *anypb.Any) (name, label string) {
	c := &clusterv3.Cluster{}
	if err := a.UnmarshalTo(c); err != nil {
		return "", err.Error()
	}
	return c.GetName(), c.GetAltStatName()
}

func (h *holder) remove(name string) {
	if _, had := h.has[name]; had {
		h.removed, h.excused = append(h.removed, name), append(h.excused, h.denied[name])
	}
	delete(h.has, name)
}

// noteError notes an error of a name, and returns the name.
func (h *holder) noteError(e *discoveryv3.ResourceError) (name string) {
	name = e.GetResourceName().GetName()
	code := codes.Code(e.GetErrorDetail().GetCode())
	h.errors[name] = code.String()
	if code == codes.PermissionDenied {
		h.denied[name] = true
	}
	return name
}

// isExcused reports whether the client had been denied what was removed, and had not received it since. A client that
// is denied a resource may drop it, so for the relay it does not have it any more. at is the index in removed.
func (h *holder) isExcused(at int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.excused[at]
}

func (h *holder) followDelta(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
	for {
		resp, err := stream.Recv()
		if err != nil {
			h.update(func() { h.ended = err })
			return
		}
		h.update(func() {
			for _, r := range resp.GetResources() {
				_, h.has[r.GetName()] = labelOf(r.GetResource())
				delete(h.errors, r.GetName())
				delete(h.denied, r.GetName())
			}
			for _, name := range resp.GetRemovedResources() {
				h.remove(name)
				delete(h.errors, name)
			}
			for _, e := range resp.GetResourceErrors() {
				h.noteError(e)
			}
		})
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}) // Recv says why
	}
}

func (h *holder) followSotW(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient) {
	for {
		resp, err := stream.Recv()
		if err != nil {
			h.update(func() { h.ended = err })
			return
		}
		h.update(func() {
			now := map[string]string{}
			for _, a := range resp.GetResources() {
				name, label := labelOf(a)
				now[name] = label
				delete(h.denied, name)
			}
			clear(h.errors)
			for _, e := range resp.GetResourceErrors() {
				name := h.noteError(e)
				if label, had := h.has[name]; had && h.errors[name] != codes.NotFound.String() {
					now[name] = label // an error takes nothing away
				}
			}
			for name := range h.has {
				if _, still := now[name]; !still {
					h.remove(name)
				}
			}
			h.has = now
		})
		_ = stream.Send(&discoveryv3.DiscoveryRequest{
			TypeUrl: resp.GetTypeUrl(), ResourceNames: h.names, VersionInfo: resp.GetVersionInfo(), ResponseNonce: resp.GetNonce(),
		}) // Recv says why
	}
}

// state returns what the client has.
func (h *holder) state() (has, errs map[string]string, removed []string, ended error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.has), maps.Clone(h.errors), slices.Clone(h.removed), h.ended
}

// await waits until the client is in the wanted state.
func (h *holder) await(t *testing.T, what string, wanted func() bool) {
	t.Helper()
	if !h.reaches(t.Context(), wanted) {
		has, errs, removed, ended := h.state()
		t.Fatalf("%s: not within a minute; the client has %v, errors %v, was sent the removal of %v, and its stream has ended: %v", what, has, errs, removed, ended)
	}
}

func (h *holder) reaches(ctx context.Context, wanted func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		h.mu.Lock()
		done, changed := wanted(), h.changed
		h.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// awaitHas waits until the client has this, and nothing else.
func (h *holder) awaitHas(t *testing.T, what string, want map[string]string) {
	t.Helper()
	h.await(t, what, func() bool { return maps.Equal(h.has, want) })
}

// mustBeOpen fails the test if the stream has ended, or something was removed.
func (h *holder) mustBeOpen(t *testing.T, what string) {
	t.Helper()
	if _, _, removed, ended := h.state(); ended != nil || len(removed) > 0 {
		t.Errorf("%s: the stream has ended: %v, removed %v", what, ended, removed)
	}
}
