package integration

// A delta client that stores responses unchanged, including types and versions.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// tp1Client is a client as TP1 describes it, with one stream.
type tp1Client struct {
	watched[tp1View]
	stream   discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	requests chan *discoveryv3.DeltaDiscoveryRequest // requests to send
	node     *corev3.Node                            // nil after the first request
}

// tp1View is what the client has received.
type tp1View struct {
	held     map[string]*discoveryv3.Resource
	received []topic // in order; the names of removals have a - in front
	// seen is the number of entries of received that a test has checked.
	seen   int
	errors []*discoveryv3.ResourceError // errors other than those of removed resources
	ended  error
}

// String describes the view, for a failed test.
func (v *tp1View) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ended %v, errors %v", v.ended, v.errors)
	for _, t := range v.received {
		fmt.Fprintf(&b, "\n%s version %q", t.name, v.held[t.name].GetVersion())
	}
	return b.String()
}

// openTP1Client opens a stream, which ends with the test.
func openTP1Client(t testing.TB, address string) *tp1Client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connect(t, address)).DeltaAggregatedResources(ctx)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	c := &tp1Client{stream: stream, requests: make(chan *discoveryv3.DeltaDiscoveryRequest, 64), node: node("a client", "")}
	c.value.held = map[string]*discoveryv3.Resource{}
	t.Cleanup(cancel)
	go c.sendAll(ctx)
	go c.takeAll()
	return c
}

// sendAll sends all requests and ACKs. Nothing else sends on the stream.
func (c *tp1Client) sendAll(ctx context.Context) {
	for {
		select {
		case req := <-c.requests:
			req.Node, c.node = c.node, nil
			if c.stream.Send(req) != nil {
				return // takeAll receives the error
			}
		case <-ctx.Done():
			return
		}
	}
}

func (c *tp1Client) takeAll() {
	for {
		resp, err := c.stream.Recv()
		c.update(func(v *tp1View) { v.take(resp, err) })
		if err != nil {
			return
		}
		select {
		case c.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}:
		case <-c.stream.Context().Done():
			return
		}
	}
}

func (v *tp1View) take(resp *discoveryv3.DeltaDiscoveryResponse, err error) {
	v.ended = err
	for _, r := range resp.GetResources() {
		v.held[r.GetName()] = r
		v.received = append(v.received, topic{resp.GetTypeUrl(), r.GetName()})
	}
	for _, name := range resp.GetRemovedResources() {
		delete(v.held, name)
		v.received = append(v.received, topic{resp.GetTypeUrl(), "-" + name})
	}
	for _, e := range resp.GetResourceErrors() {
		// A removal may have an error with its reason.
		if name := e.GetResourceName().GetName(); !slices.Contains(resp.GetRemovedResources(), name) {
			v.errors = append(v.errors, e)
		}
	}
}

// subscribe sends one request.
func (c *tp1Client) subscribe(typeURL string, names ...string) {
	c.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names}
}

// awaitReceived waits until the client has received these resources and removals, and nothing else, each
// once, since the last check.
func (c *tp1Client) awaitReceived(t testing.TB, want ...topic) {
	t.Helper()
	c.await(t, fmt.Sprintf("the client receives %v", want), func(v *tp1View) bool { return v.ended != nil || len(v.received)-v.seen >= len(want) })
	c.read(func(v *tp1View) {
		order := func(a, b topic) int { return strings.Compare(a.typeURL+" "+a.name, b.typeURL+" "+b.name) }
		got := slices.SortedFunc(slices.Values(v.received[v.seen:]), order)
		v.seen = len(v.received)
		if slices.SortFunc(want, order); !slices.Equal(got, want) || v.ended != nil || len(v.errors) > 0 {
			t.Fatalf("want that the client received only %v; it has\n%s", want, v)
		}
	})
}

// awaitPrinted waits until the client has received the resources that TP1 prints, under a type, and nothing
// else.
func (c *tp1Client) awaitPrinted(t testing.TB, typeURL, text string) {
	t.Helper()
	want := resources(t, text)
	var names []topic
	for _, r := range want {
		names = append(names, topic{typeURL, r.GetName()})
	}
	c.awaitReceived(t, names...)
	c.read(func(v *tp1View) {
		for _, r := range want {
			if d := difference(v.held[r.GetName()], r); d != "" {
				t.Fatalf("%s: %s", r.GetName(), d)
			}
		}
	})
}
