package interop

// The kinds of control planes, what the tests require of them, and a record of their streams.

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// kind is a kind of control plane.
type kind struct {
	name  string
	form  form
	rules bool // the control plane is a ruler
	start func(testing.TB) controlPlane
	but   string // a note for the results, although it works
}

var controlPlanes = []kind{
	{"go-control-plane, linear cache, SotW", sotw, true, startLinear, ""},
	{"go-control-plane, linear cache, delta", delta, true, startLinear, ""},
	{"go-control-plane, snapshot cache, SotW", sotw, true, startSnapshots, ""},
	{"go-control-plane, snapshot cache, delta", delta, true, startSnapshots, ""},
	{"java-control-plane, SotW", sotw, false, startJavaControlPlane("sotw"), ""},
	{"java-control-plane, delta", delta, false, startJavaControlPlane("delta"), ""},
	{"Istio, SotW", sotw, false, startIstio, ""},
	{"Istio, delta", delta, false, startIstio, "In delta, Istio forgets the clusters to which a gRPC client has subscribed before. `protocol: auto` speaks SotW with it"},
}

// controlPlane is a control plane that has a shop. It is also a service or a program.
type controlPlane interface {
	// target is the target of the shop for a gRPC client.
	target() string
	// show moves the shop to a cluster, "one" or "two", with one backend.
	show(cluster string, at *backend)
}

// service is a control plane that runs in the test's process. register adds its service to a server.
type service interface {
	register(*grpc.Server)
}

// program is a control plane that runs in a process of its own. observe makes it record its requests in a
// plane, and returns its address.
type program interface {
	observe(*plane) (address string)
}

// ruler is a control plane that also has rules for the rate limit service.
type ruler interface {
	controlPlane
	// rule sets the limits of all domains, in requests per hour.
	rule(limits map[string]uint32)
}

// nodeID is the Node's id of every client.
const nodeID = "sidecar~127.0.0.1~shopper.default~default.svc.cluster.local"

// form is a form of the xDS protocol.
type form string

const (
	sotw  form = "SotW"
	delta form = "delta"
)

func formOf(method string) form {
	if strings.HasPrefix(method[strings.LastIndex(method, "/")+1:], "Delta") {
		return delta
	}
	return sotw
}

// plane is a running control plane that speaks only one form.
type plane struct {
	controlPlane
	address string
	form    form

	mu      sync.Mutex
	streams []string // the Node's id of each stream
	nacks   []string
}

// startPlane starts a control plane.
func startPlane(t testing.TB, k kind) *plane {
	t.Helper()
	p := &plane{controlPlane: k.start(t), form: k.form}
	switch c := p.controlPlane.(type) {
	case service:
		s := grpc.NewServer(grpc.StreamInterceptor(p.intercept))
		c.register(s)
		p.address = serve(t, s).String()
	case program:
		p.address = c.observe(p)
	default:
		t.Fatalf("%s is neither a service nor a program", k.name)
	}
	return p
}

// open records a stream, and returns its number.
func (p *plane) open() (stream int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams = append(p.streams, "")
	return len(p.streams) - 1
}

// record records a request.
func (p *plane) record(stream int, node, typeURL string, nack *statuspb.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if node != "" { // at least the first request has a Node
		p.streams[stream] = node
	}
	if nack != nil {
		p.nacks = append(p.nacks, fmt.Sprintf("%s: %s", typeURL, nack.GetMessage()))
	}
}

// intercept answers UNIMPLEMENTED to the other form, like a server that does not support it, and records
// requests.
func (p *plane) intercept(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if formOf(info.FullMethod) != p.form {
		return status.Errorf(codes.Unimplemented, "this control plane speaks %s", p.form)
	}
	return handler(srv, &watched{ServerStream: stream, plane: p, stream: p.open()})
}

// watched is a stream whose requests are recorded.
type watched struct {
	grpc.ServerStream
	plane  *plane
	stream int
}

// request has the methods that requests of both forms share.
type request interface {
	GetNode() *corev3.Node
	GetTypeUrl() string
	GetErrorDetail() *statuspb.Status
}

// RecvMsg implements grpc.ServerStream.
func (w *watched) RecvMsg(m any) error {
	if err := w.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if r, ok := m.(request); ok {
		w.plane.record(w.stream, r.GetNode().GetId(), r.GetTypeUrl(), r.GetErrorDetail())
	}
	return nil
}

// check checks that the relay opened one stream, with the Node of its client, and sent no NACKs.
func (p *plane) check(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.streams) != 1 || p.streams[0] != nodeID {
		t.Errorf("the control plane had streams with the Node ids %q, want one stream with %q", p.streams, nodeID)
	}
	if len(p.nacks) > 0 {
		t.Errorf("the control plane received NACKs: %q", p.nacks)
	}
}
