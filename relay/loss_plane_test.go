package relay

// The control planes of the loss matrix.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	lossCluster  = crossingPrefix + "envoy.config.cluster.v3.Cluster"
	lossEndpoint = crossingPrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	lossGlob     = "xdstp://x/envoy.config.cluster.v3.Cluster/foo/"
	lossListed   = "xdstp://x/envoy.config.cluster.v3.Cluster/bar/"
	lossList     = "xdstp://x/envoy.config.cluster.v3.ClusterCollection/l"
)

// lossPlane is a control plane that has 24 clusters and endpoints, c00 to c23, a glob of 24 clusters
// and a list collection of 12, as far as its state says:
//
//	away       nobody listens
//	refusing   each stream ends at once
//	half-open  connections are taken, and what comes on them is not answered
//	silent     streams are open, and nothing comes on them
//	all        it has everything
//	half       it has 9 of 24, and 4 of 12
//	nothing    it has nothing, and says so
//
// It serves every service, in both forms, as the protocol's document has it.
type lossPlane struct {
	mu        sync.Mutex
	state     string
	version   string // of each resource
	server    *grpc.Server
	lis       *memconn.Listener
	swallowed []net.Conn
}

// restart ends all streams and connections. From now on the control plane is in another state.
func (p *lossPlane) restart(state, version string) {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.version = state, version
	if state == "away" || state == "half-open" {
		return
	}
	p.lis = memconn.Listen(1 << 20)
	p.server = grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		return p.serve(s, state, version)
	}))
	go func(s *grpc.Server, lis net.Listener) { _ = s.Serve(lis) }(p.server, p.lis)
}

func (p *lossPlane) stop() {
	p.mu.Lock()
	server, swallowed := p.server, p.swallowed
	p.server, p.swallowed = nil, nil
	p.mu.Unlock()
	if server != nil {
		server.Stop()
	}
	for _, c := range swallowed {
		_ = c.Close()
	}
}

func (p *lossPlane) away() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state == "away"
}

func (p *lossPlane) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case "away":
		return nil, errors.New("nobody listens")
	case "half-open":
		ours, theirs := net.Pipe()
		p.swallowed = append(p.swallowed, theirs)
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		return ours, nil
	}
	return p.lis.DialContext(ctx)
}

func (p *lossPlane) serve(s grpc.ServerStream, state, version string) error {
	method, _ := grpc.MethodFromServerStream(s)
	method = method[strings.LastIndexByte(method, '/')+1:]
	switch state {
	case "refusing":
		return status.Error(codes.PermissionDenied, "not for you")
	case "silent":
		<-s.Context().Done()
		return s.Context().Err()
	}
	w := lossWorld{state, version}
	switch {
	case strings.HasPrefix(method, "Delta"):
		types := map[string]*lossDelta{}
		for {
			req := new(discoveryv3.DeltaDiscoveryRequest)
			if err := s.RecvMsg(req); err != nil {
				return err
			}
			of := types[req.GetTypeUrl()]
			if of == nil {
				of = &lossDelta{world: w, typeURL: req.GetTypeUrl(), sent: map[string]string{}}
				types[req.GetTypeUrl()] = of
			}
			if resp := of.take(req); resp != nil {
				if err := s.SendMsg(resp); err != nil {
					return err
				}
			}
		}
	case strings.HasPrefix(method, "Fetch"):
		req := new(discoveryv3.DiscoveryRequest)
		if err := s.RecvMsg(req); err != nil {
			return err
		}
		return s.SendMsg(w.sotw(req, req.GetNode()))
	}
	var node *corev3.Node
	nonces := map[string]string{}
	names := map[string][]string{}
	for {
		req := new(discoveryv3.DiscoveryRequest)
		if err := s.RecvMsg(req); err != nil {
			return err
		}
		if req.GetNode() != nil {
			node = req.GetNode()
		}
		typeURL := req.GetTypeUrl()
		before, known := names[typeURL]
		if req.GetResponseNonce() != nonces[typeURL] && req.GetResponseNonce() != "" || known && slices.Equal(before, req.GetResourceNames()) {
			continue // of a response before the last, or an ACK
		}
		names[typeURL] = req.GetResourceNames()
		resp := w.sotw(req, node)
		nonces[typeURL] += "n"
		resp.Nonce = nonces[typeURL]
		if err := s.SendMsg(resp); err != nil {
			return err
		}
	}
}

// lossWorld is what a control plane has.
type lossWorld struct{ state, version string }

// has returns the names that there are of n.
func (w lossWorld) has(n int) int {
	return map[string]int{"all": n, "half": n * 3 / 8}[w.state]
}

// names returns the names of a type that a subscription is for, as far as there are any.
func (w lossWorld) names(typeURL, subscription string, node *corev3.Node) (names []string) {
	add := func(prefix string, n int) {
		for i := range w.has(n) {
			names = append(names, fmt.Sprintf("%s%02d", prefix, i))
		}
	}
	if subscription == lossList {
		if w.has(12) > 0 {
			names = append(names, lossList)
		}
		return names
	}
	relays := node.GetId() == "relay" // which requests xdstp names only
	isView := node.GetCluster() == "view"
	wild := subscription == "*"
	if typeURL == lossCluster && (relays || isView || !wild) {
		add(lossGlob+"m", 24)
		add(lossListed+"n", 12)
	}
	if !relays && (!isView || !wild) {
		add("c", 24)
	}
	glob, isGlob := strings.CutSuffix(subscription, "*")
	return slices.DeleteFunc(names, func(name string) bool {
		return !wild && name != subscription && (!isGlob || !strings.HasPrefix(name, glob))
	})
}

// all returns the names that subscriptions are for, as far as there are any, in order.
func (w lossWorld) all(typeURL string, subscriptions []string, node *corev3.Node) (names []string) {
	for _, s := range subscriptions {
		names = append(names, w.names(typeURL, s, node)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// versionOf returns the version of a resource. The list has another one with fewer entries.
func (w lossWorld) versionOf(name string) string {
	if name == lossList && w.state == "half" {
		return w.version + "-half"
	}
	return w.version
}

func (w lossWorld) resource(typeURL, name string) *anypb.Any {
	var value []byte
	switch {
	case name == lossList:
		list := &listenerv3.ListenerCollection{} // encoded as one of clusters
		for i := range w.has(12) {
			list.Entries = append(list.Entries, &xdscorev3.CollectionEntry{
				ResourceSpecifier: &xdscorev3.CollectionEntry_Locator{Locator: plainLocator(fmt.Sprintf("x/bar/n%02d", i))},
			})
		}
		typeURL = lossCluster + "Collection"
		value, _ = proto.Marshal(list) // of nothing that cannot be encoded
	case typeURL == lossEndpoint:
		value = appendText(appendText(nil, 1, name), 5, string(appendText(nil, 1, w.version)))
	default:
		value = appendText(appendText(nil, 1, name), 28, w.version)
	}
	return &anypb.Any{TypeUrl: typeURL, Value: value}
}

// sotw returns the answer to a SotW request.
func (w lossWorld) sotw(req *discoveryv3.DiscoveryRequest, node *corev3.Node) *discoveryv3.DiscoveryResponse {
	subscriptions := req.GetResourceNames()
	if len(subscriptions) == 0 {
		subscriptions = []string{"*"}
	}
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: w.state + w.version, Nonce: "n"}
	for _, name := range w.all(req.GetTypeUrl(), subscriptions, node) {
		r := w.resource(req.GetTypeUrl(), name)
		if name == lossList { // which has no name inside
			r, _ = anypb.New(&discoveryv3.Resource{Name: name, Version: w.versionOf(name), Resource: r})
		}
		resp.Resources = append(resp.Resources, r)
	}
	return resp
}

// lossDelta is a type on a delta stream of a control plane.
type lossDelta struct {
	world         lossWorld
	typeURL       string
	node          *corev3.Node
	subscriptions []string
	sent          map[string]string // versions, by name
}

// take returns the response to a request, nil if there is nothing to say.
func (d *lossDelta) take(req *discoveryv3.DeltaDiscoveryRequest) *discoveryv3.DeltaDiscoveryResponse {
	if req.GetNode() != nil {
		d.node = req.GetNode()
	}
	for name, version := range req.GetInitialResourceVersions() {
		d.sent[name] = version
	}
	fresh := req.GetResourceNamesSubscribe()
	if len(d.subscriptions)+len(fresh) == 0 {
		fresh = []string{"*"} // xDS: "How the client specifies what resources to return"
	}
	d.subscriptions = append(d.subscriptions, fresh...)
	gone := req.GetResourceNamesUnsubscribe()
	d.subscriptions = slices.DeleteFunc(d.subscriptions, func(name string) bool { return slices.Contains(gone, name) && !slices.Contains(fresh, name) })
	if len(gone) > 0 { // xDS: "Unsubscribing from Resources": what is no longer subscribed to is forgotten
		still := append(d.world.all(d.typeURL, d.subscriptions, d.node), d.subscriptions...)
		maps.DeleteFunc(d.sent, func(name, _ string) bool { return !slices.Contains(still, name) })
	}
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: d.typeURL, Nonce: "n", SystemVersionInfo: d.world.state + d.world.version}
	has := d.world.all(d.typeURL, d.subscriptions, d.node)
	for _, name := range has {
		if version := d.world.versionOf(name); d.sent[name] != version {
			d.sent[name] = version
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: d.world.resource(d.typeURL, name)})
		}
	}
	open := false
	for _, name := range fresh {
		if strings.HasSuffix(name, "*") {
			open = true
		} else if _, known := d.sent[name]; !known && !slices.Contains(has, name) {
			d.sent[name] = ""
		}
	}
	for name := range d.sent {
		if !slices.Contains(has, name) {
			delete(d.sent, name)
			resp.RemovedResources = append(resp.RemovedResources, name)
		}
	}
	if len(resp.GetResources())+len(resp.GetRemovedResources()) == 0 && !open {
		return nil
	}
	return resp
}
