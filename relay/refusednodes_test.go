package relay

import (
	"fmt"
	"log/slog"
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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/operator"
)

// strictPlane has a cluster of every requested name, and refuses some Nodes by their ids. It ends open streams, too, when
// it comes to refuse their Nodes.
type strictPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	mu      sync.Mutex
	refuses map[string]codes.Code
	bad     map[string]codes.Code // names
	ids     []string              // of each stream's first request
	changed chan struct{}
	ended   chan struct{} // receives when a stream was ended because of its Node
}

func newStrictPlane() *strictPlane {
	return &strictPlane{refuses: map[string]codes.Code{}, changed: make(chan struct{}), ended: make(chan struct{}, 100)}
}

func (p *strictPlane) refuse(code codes.Code, ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		p.refuses[id] = code
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *strictPlane) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ids)
}

// admit returns an error if a Node is refused, now or once changed is closed.
func (p *strictPlane) admit(id string) (changed chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if code, is := p.refuses[id]; is {
		return nil, status.Errorf(code, "node %s is not registered", id)
	}
	return p.changed, nil
}

// end returns with what the plane ends a stream on which these names are requested.
func (p *strictPlane) end(names []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		if code, is := p.bad[name]; is {
			return status.Errorf(code, "%s is not yours", name)
		}
	}
	return nil
}

// serve serves a stream whose requests come from recv, which returns the requested names, and are answered by send.
func (p *strictPlane) serve(recv func() (*corev3.Node, []string, error), send func(nonce string, names []string) error) error {
	node, names, err := recv()
	if err != nil {
		return err
	}
	id := node.GetId()
	p.mu.Lock()
	p.ids = append(p.ids, id)
	p.mu.Unlock()
	requests := make(chan []string)
	ended := make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for ; err == nil; _, names, err = recv() {
			select {
			case requests <- names:
			case <-done:
				return
			}
		}
		ended <- err
	}()
	for n := 1; ; n++ {
		changed, err := p.admit(id)
		if err != nil {
			p.ended <- struct{}{}
			return err
		}
		select {
		case names := <-requests:
			if err := p.end(names); err != nil {
				return err
			}
			if len(names) > 0 {
				if err := send(fmt.Sprint(n), names); err != nil {
					return err
				}
			}
		case <-changed:
		case err := <-ended:
			return err
		}
	}
}

func clusterNamed(name string) *anypb.Any {
	a, err := anypb.New(&clusterv3.Cluster{Name: name})
	if err != nil {
		panic(err)
	}
	return a
}

// DeltaAggregatedResources implements the aggregated service.
func (p *strictPlane) DeltaAggregatedResources(st discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return p.serve(func() (*corev3.Node, []string, error) {
		r, err := st.Recv()
		return r.GetNode(), r.GetResourceNamesSubscribe(), err
	}, func(nonce string, names []string) error {
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterTypeURL, Nonce: nonce}
		for _, name := range names {
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: clusterNamed(name)})
		}
		return st.Send(resp)
	})
}

// StreamAggregatedResources implements the aggregated service.
func (p *strictPlane) StreamAggregatedResources(st discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	var last []string
	return p.serve(func() (*corev3.Node, []string, error) {
		r, err := st.Recv()
		if names := r.GetResourceNames(); !slices.Equal(names, last) {
			last = names
			return r.GetNode(), names, err
		}
		return r.GetNode(), nil, err // an ACK
	}, func(nonce string, names []string) error {
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: clusterTypeURL, VersionInfo: "1", Nonce: nonce}
		for _, name := range names {
			resp.Resources = append(resp.Resources, clusterNamed(name))
		}
		return st.Send(resp)
	})
}

// await receives until a client has n names. Errors of names pass.
func (c *deltaClient) await(t *testing.T, within time.Duration, n int) {
	t.Helper()
	began := time.Now()
	for got := 0; got < n; {
		given, _ := c.receive(t, 1)
		got += len(given)
	}
	if took := time.Since(began); took > within {
		t.Errorf("the answer has taken %s, want at most %s", took, within)
	}
}

func runStrict(t *testing.T, plane *strictPlane, protocol, backoff string) (r *Relay, conn *grpc.ClientConn, log *syncBuffer) {
	log = new(syncBuffer)
	r, address := runRelay(t, `
listeners: [{address: "127.0.0.1:0"}]
authorities: [{name: cp, servers: [{address: "`+testplane.Listen(t, plane)+`", protocol: `+protocol+`, backoff: {base: `+backoff+`}}]}]
old_style_names: [{authority: cp, partition: node.cluster}]
`, slog.New(slog.NewTextHandler(log, nil)))
	return r, connectTo(t, address), log
}

func edge(id string) *corev3.Node { return &corev3.Node{Id: id, Cluster: "edge"} }

// A control plane does not know the client any more whose Node a partition has. Those that are connected are served.
func TestARefusedNodeIsReplacedByThatOfAnotherClient(t *testing.T) {
	test := func(t *testing.T, protocol string, code codes.Code) {
		plane := newStrictPlane()
		_, conn, log := runStrict(t, plane, protocol, "500ms")
		gone, old := openDelta(t, conn), openDelta(t, conn)
		gone.ask(t, edge("gone"), "a")
		gone.receive(t, 1)
		old.ask(t, edge("old"), "a")
		old.receive(t, 1)
		gone.end()
		plane.refuse(code, "gone")
		newer := openDelta(t, conn)
		newer.ask(t, edge("newer"), "c")
		newer.await(t, 5*time.Second, 1)
		old.ask(t, nil, "b")
		old.await(t, 5*time.Second, 1)
		ids := plane.seen()
		if n := len(ids); n < 2 || ids[n-1] != "old" && ids[n-1] != "newer" || n > 4 {
			t.Errorf("the streams had the Nodes %q", ids)
		}
		if !strings.Contains(log.String(), "node=gone instead=") {
			t.Errorf("the log does not name the Nodes:\n%s", log.String())
		}
	}
	for _, protocol := range []string{"delta", "sotw"} {
		for _, code := range []codes.Code{codes.NotFound, codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated} {
			t.Run(protocol+"/"+code.String(), func(t *testing.T) {
				t.Parallel()
				test(t, protocol, code)
			})
		}
	}
}

// While the Node of a client that has left is refused and nobody else is connected, the next one that comes is served.
func TestTheNextClientReplacesARefusedNode(t *testing.T) {
	plane := newStrictPlane()
	r, conn, _ := runStrict(t, plane, "delta", "20s")
	gone := openDelta(t, conn)
	gone.ask(t, edge("gone"), "a")
	gone.receive(t, 1)
	gone.end()
	awaitNoClients(t, r)
	plane.refuse(codes.NotFound, "gone", "bad")
	<-plane.ended
	bad, good := openDelta(t, conn), openDelta(t, conn)
	bad.ask(t, edge("bad"), "b")
	good.ask(t, edge("good"), "c")
	good.await(t, 5*time.Second, 1)
	bad.await(t, 5*time.Second, 1)
}

// A name and a Node that a control plane does not like are problems as long as it does not.
func TestWhatAControlPlaneRefusesIsAProblemWhileItDoes(t *testing.T) {
	plane := newStrictPlane()
	plane.bad = map[string]codes.Code{"bad": codes.PermissionDenied}
	r, conn, log := runStrict(t, plane, "delta", "100ms")
	await := func(want bool, text string) {
		t.Helper()
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for deadline := time.Now().Add(time.Minute); hasProblem(r, operator.SeverityWarning, text) != want; <-pace.C {
			if time.Now().After(deadline) {
				t.Fatalf("it is a problem that it %s: %t; all problems are %+v", text, !want, r.observer.LookAround().Problems)
			}
		}
	}
	one := openDelta(t, conn)
	one.ask(t, edge("one"), "a", "bad")
	one.await(t, 5*time.Second, 1)
	await(true, "ends streams on which one of 1 names of partition \"edge\" is requested; the relay requests them apart: PermissionDenied: bad is not yours")
	if !strings.Contains(log.String(), "control plane ends each stream on which this is requested") {
		t.Errorf("the log does not say so:\n%s", log.String())
	}
	plane.mu.Lock()
	plane.bad = nil
	plane.mu.Unlock()
	await(false, "ends streams on which one")

	one.end()
	awaitNoClients(t, r)
	plane.refuse(codes.NotFound, "one")
	const refused = "may refuse the Node \"one\" of partition \"edge\"; the relay tries those of the other connected clients: NotFound: node one"
	await(true, refused)
	two := openDelta(t, conn)
	two.ask(t, edge("two"), "b")
	two.await(t, 5*time.Second, 1)
	await(false, "may refuse the Node")
}
