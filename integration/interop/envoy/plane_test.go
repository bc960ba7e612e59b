package envoy

// The control planes, and a record of what they hear.

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/integration/interop/peers"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
)

// world has all resources of a control plane, by type URL and name.
type world map[string]map[string]proto.Message

func (w world) set(name string, m proto.Message) { w.setAs(resourceType(m), name, m) }

// setAs sets a resource of a type that is not that of its body, as that of a redirect.
func (w world) setAs(typeURL, name string, m proto.Message) {
	if w[typeURL] == nil {
		w[typeURL] = map[string]proto.Message{}
	}
	w[typeURL][name] = m
}

// remove removes the resource of m's type that has a name.
func (w world) remove(name string, m proto.Message) { delete(w[resourceType(m)], name) }

// drop removes all resources that have one of these names.
func (w world) drop(names ...string) {
	for _, named := range w {
		for _, name := range names {
			delete(named, name)
		}
	}
}

func (w world) clone() world {
	c := world{}
	for typeURL, named := range w {
		c[typeURL] = maps.Clone(named)
	}
	return c
}

func resourceType(m proto.Message) string {
	return "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
}

// source is what a control plane serves its resources from.
type source interface {
	// publish replaces all resources, as one change.
	publish(to world)
}

// service is a source that is served in the test's process. Another is a program.
type service interface {
	source
	register(*grpc.Server)
}

// kind is a kind of control plane.
type kind string

const (
	snapshots kind = "go-control-plane, snapshot cache"
	linear    kind = "go-control-plane, linear caches"
	scripted  kind = "scripted"
	javaOne   kind = "java-control-plane, group all"
	javaByID  kind = "java-control-plane, group node.id"
)

// plane is a control plane that can be stopped and started again, on the same address.
type plane struct {
	t       testing.TB
	kind    kind
	address string
	script  *script // of the kind scripted; it outlives the server
	options []grpc.ServerOption

	mu      sync.Mutex
	now     world
	source  source // nil while the server is stopped
	end     func() // ends the server
	version int    // of the last snapshot of java-control-plane, which no restart repeats

	hearing sync.Mutex
	heard   []heard
}

// heard is a request that the control plane has received.
type heard struct {
	method  string
	typeURL string
	names   []string // requested or subscribed names
	nack    string   // the client's words
	node    string
}

// newPlane returns a control plane that does not serve yet.
func newPlane(t testing.TB, k kind) *plane {
	t.Helper()
	if k == javaOne || k == javaByID {
		peers.Require(t, "java-control-plane", prepareJava)
	}
	p := &plane{t: t, kind: k, address: peers.Address(t), now: world{}}
	if k == scripted {
		p.script = newScript()
	}
	t.Cleanup(p.stop)
	return p
}

// start starts the server, which serves what was last published.
func (p *plane) start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	options := append(slices.Clone(p.options), grpc.ChainStreamInterceptor(p.record))
	switch p.kind {
	case snapshots:
		p.source = newSnapshots(p.t)
	case linear:
		p.source = newLinear(p.t)
	case scripted:
		p.source = p.script
		options = append(options, grpc.UnknownServiceHandler(p.script.serve))
	case javaOne, javaByID:
		p.source = p.newJava()
	}
	p.source.publish(p.now)
	switch source := p.source.(type) {
	case service:
		server := grpc.NewServer(options...)
		source.register(server)
		listener := peers.Listen(p.t, p.address)
		go func() { _ = server.Serve(listener) }()
		p.end = server.Stop
	case *javaSource:
		source.Serve(p.address)
		p.end = func() { source.End(p.t, os.Kill) }
	}
}

// stop ends all streams and closes the listener.
func (p *plane) stop() {
	p.mu.Lock()
	end := p.end
	p.end, p.source = nil, nil
	p.mu.Unlock()
	if end != nil {
		end()
	}
}

// push changes the resources. A server that runs sends that as one change; otherwise the next one starts with it.
func (p *plane) push(change func(world)) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	to := p.now.clone()
	change(to)
	p.now = to
	if p.source != nil {
		p.source.publish(to)
	}
}

// record records the requests of a stream.
func (p *plane) record(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &recorded{ServerStream: stream, plane: p, method: info.FullMethod})
}

type recorded struct {
	grpc.ServerStream
	plane  *plane
	method string
}

// RecvMsg implements grpc.ServerStream.
func (r *recorded) RecvMsg(m any) error {
	if err := r.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	request, ok := m.(interface {
		GetNode() *corev3.Node
		GetTypeUrl() string
		GetErrorDetail() *statuspb.Status
	})
	if !ok {
		return nil
	}
	h := heard{method: r.method, typeURL: request.GetTypeUrl(), node: request.GetNode().GetId(), nack: request.GetErrorDetail().GetMessage()}
	switch full := m.(type) {
	case *discoveryv3.DiscoveryRequest:
		h.names = full.GetResourceNames()
	case *discoveryv3.DeltaDiscoveryRequest:
		h.names = full.GetResourceNamesSubscribe()
	}
	r.plane.hear(h)
	return nil
}

func (p *plane) hear(h heard) {
	p.hearing.Lock()
	defer p.hearing.Unlock()
	p.heard = append(p.heard, h)
}

// nacks returns what clients said of the responses that they rejected.
func (p *plane) nacks() (all []string) {
	p.hearing.Lock()
	defer p.hearing.Unlock()
	for _, h := range p.heard {
		if h.nack != "" {
			all = append(all, h.typeURL+": "+h.nack)
		}
	}
	return all
}

// goControlPlane is go-control-plane with one of its caches.
type goControlPlane struct {
	server serverv3.Server
	turn   func(to world)
}

func newGoControlPlane(t testing.TB, cache cachev3.Cache, turn func(to world)) *goControlPlane {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return &goControlPlane{server: serverv3.NewServer(ctx, cache, nil), turn: turn}
}

func (g *goControlPlane) publish(to world) { g.turn(to) }

func (g *goControlPlane) register(s *grpc.Server) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, g.server)
	clusterservice.RegisterClusterDiscoveryServiceServer(s, g.server)
	endpointservice.RegisterEndpointDiscoveryServiceServer(s, g.server)
	listenerservice.RegisterListenerDiscoveryServiceServer(s, g.server)
	routeservice.RegisterRouteDiscoveryServiceServer(s, g.server)
	routeservice.RegisterScopedRoutesDiscoveryServiceServer(s, g.server)
	routeservice.RegisterVirtualHostDiscoveryServiceServer(s, g.server)
	secretservice.RegisterSecretDiscoveryServiceServer(s, g.server)
	runtimeservice.RegisterRuntimeDiscoveryServiceServer(s, g.server)
	extensionservice.RegisterExtensionConfigDiscoveryServiceServer(s, g.server)
}

// newSnapshots returns go-control-plane with a snapshot cache, in which all resources of a node change at the
// same time. With ads=false, the cache answers each request on its own, even if it does not have all requested
// resources.
func newSnapshots(t testing.TB) *goControlPlane {
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	version := 0
	return newGoControlPlane(t, cache, func(to world) {
		version++
		resources := map[resource.Type][]types.Resource{}
		for typeURL, named := range to {
			for _, m := range named {
				resources[typeURL] = append(resources[typeURL], m)
			}
		}
		snapshot, err := cachev3.NewSnapshot(fmt.Sprint(version), resources)
		if err != nil {
			t.Error(err)
			return
		}
		if err := cache.SetSnapshot(context.Background(), nodeID, snapshot); err != nil {
			t.Error(err)
		}
	})
}

// wireOrder is the order in which clients can follow changes: a resource comes before those that refer to it.
var wireOrder = []string{
	resource.ClusterType, resource.EndpointType, resource.SecretType, resource.ListenerType, resource.ScopedRouteType,
	resource.RouteType, resource.VirtualHostType, resource.ExtensionConfigType, resource.RuntimeType,
}

// newLinear returns go-control-plane with linear caches, one for each type. A type's resources change at the
// same time, and the types one after the other.
func newLinear(t testing.TB) *goControlPlane {
	caches := map[string]*cachev3.LinearCache{}
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]cachev3.Cache{},
	}
	for _, typeURL := range wireOrder {
		caches[typeURL] = cachev3.NewLinearCache(typeURL)
		mux.Caches[typeURL] = caches[typeURL]
	}
	from := world{}
	return newGoControlPlane(t, mux, func(to world) {
		for _, typeURL := range wireOrder {
			set, gone := map[string]types.Resource{}, maps.Clone(from[typeURL])
			for name, m := range to[typeURL] {
				if !proto.Equal(from[typeURL][name], m) {
					set[name] = m
				}
				delete(gone, name)
			}
			if len(set)+len(gone) == 0 {
				continue
			}
			if err := caches[typeURL].UpdateResources(set, slices.Collect(maps.Keys(gone))); err != nil {
				t.Error(err)
			}
		}
		from = to.clone()
	})
}

// shortType returns the message's name of a type URL.
func shortType(typeURL string) string { return typeURL[strings.LastIndexAny(typeURL, "./")+1:] }
