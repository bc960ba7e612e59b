package integration

// A control plane with globs, list collections and redirects, which go-control-plane does not support. It
// speaks delta, and sends resources with the versions that the test has given them.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// tp1Plane is a control plane that holds resources by name, of any types.
type tp1Plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*port
	watched[tp1State]
	t   testing.TB
	end func()
}

// tp1State has the control plane's resources, and the streams with their requests.
type tp1State struct {
	resources map[string]*discoveryv3.Resource
	streams   []*tp1Stream // all streams so far
}

// tp1Stream is a stream that a client has opened.
type tp1Stream struct {
	stream   discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer // nil after its end
	requests []*discoveryv3.DeltaDiscoveryRequest
	wanted   map[topic]bool
	sent     int
}

// String lists all requests, for a failed test.
func (s *tp1State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d streams", len(s.streams))
	for i, stream := range s.streams {
		for _, req := range stream.requests {
			fmt.Fprintf(&b, "\nstream %d, %s: subscribe %q unsubscribe %q nack %v", i, req.GetTypeUrl(),
				req.GetResourceNamesSubscribe(), req.GetResourceNamesUnsubscribe(), req.GetErrorDetail())
		}
	}
	return b.String()
}

// newTP1Plane returns a control plane with resources. It does not serve before start.
func newTP1Plane(t testing.TB, resources ...*discoveryv3.Resource) *tp1Plane {
	t.Helper()
	p := &tp1Plane{port: openPort(t), t: t}
	p.value.resources = map[string]*discoveryv3.Resource{}
	p.set(resources...)
	return p
}

// startTP1Plane returns a control plane with resources that serves.
func startTP1Plane(t testing.TB, resources ...*discoveryv3.Resource) *tp1Plane {
	t.Helper()
	p := newTP1Plane(t, resources...)
	p.start()
	return p
}

func (p *tp1Plane) start() {
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	p.end = s.Stop
	serve(s, p.listen())
	p.t.Cleanup(p.end)
}

// DeltaAggregatedResources implements the service.
func (p *tp1Plane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	s := &tp1Stream{stream: stream, wanted: map[topic]bool{}}
	p.update(func(all *tp1State) { all.streams = append(all.streams, s) })
	defer p.update(func(*tp1State) { s.stream = nil })
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		p.update(func(all *tp1State) { err = s.take(all, req) })
		if err != nil {
			return err
		}
	}
}

// take records a request, and answers its subscriptions in one response.
func (s *tp1Stream) take(all *tp1State, req *discoveryv3.DeltaDiscoveryRequest) error {
	s.requests = append(s.requests, req)
	for _, name := range req.GetResourceNamesUnsubscribe() {
		delete(s.wanted, topic{req.GetTypeUrl(), name})
	}
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl()}
	for _, name := range req.GetResourceNamesSubscribe() {
		s.wanted[topic{req.GetTypeUrl(), name}] = true
		before := len(resp.GetResources())
		for _, has := range slices.Sorted(maps.Keys(all.resources)) {
			if covers(name, has) {
				resp.Resources = append(resp.Resources, all.resources[has])
			}
		}
		if len(resp.GetResources()) == before {
			resp.RemovedResources = append(resp.RemovedResources, name)
		}
	}
	return s.respond(resp)
}

// respond sends a response, unless it is empty.
func (s *tp1Stream) respond(resp *discoveryv3.DeltaDiscoveryResponse) error {
	if s.stream == nil || len(resp.GetResources())+len(resp.GetRemovedResources()) == 0 {
		return nil
	}
	s.sent++
	resp.Nonce = fmt.Sprint(s.sent)
	return s.stream.Send(resp)
}

// set adds or changes resources.
func (p *tp1Plane) set(resources ...*discoveryv3.Resource) {
	p.t.Helper()
	p.update(func(all *tp1State) {
		for _, r := range resources {
			all.resources[r.GetName()] = r
		}
		for _, s := range all.streams {
			for _, resp := range s.news(resources) {
				if err := s.respond(resp); err != nil {
					p.t.Errorf("sending a change: %v", err)
				}
			}
		}
	})
}

// news returns, by type, the responses with those changed resources that the stream has subscribed to.
func (s *tp1Stream) news(changed []*discoveryv3.Resource) map[string]*discoveryv3.DeltaDiscoveryResponse {
	news := map[string]*discoveryv3.DeltaDiscoveryResponse{}
	for _, r := range changed {
		for t := range s.wanted {
			if !covers(t.name, r.GetName()) {
				continue
			}
			if news[t.typeURL] == nil {
				news[t.typeURL] = &discoveryv3.DeltaDiscoveryResponse{TypeUrl: t.typeURL}
			}
			if resp := news[t.typeURL]; !slices.Contains(resp.Resources, r) {
				resp.Resources = append(resp.Resources, r)
			}
		}
	}
	return news
}

// covers reports whether requested is the name, or a glob with the name as a member. TP1: "Glob": one level
// deep, with the same context parameters.
func covers(requested, name string) bool {
	requested, name = sortedParams(requested), sortedParams(name)
	if requested == name {
		return true
	}
	directory, params, _ := strings.Cut(requested, "?")
	directory, glob := strings.CutSuffix(directory, "/*")
	name, of, _ := strings.Cut(name, "?")
	return glob && params == of && name[:strings.LastIndexByte(name, '/')] == directory
}

// sortedParams returns a name with its context parameters in order. TP1: "Normalization".
func sortedParams(name string) string {
	path, params, has := strings.Cut(name, "?")
	if !has {
		return name
	}
	all := strings.Split(params, "&")
	slices.Sort(all)
	return path + "?" + strings.Join(all, "&")
}

// subscribed counts the subscriptions to each topic on all streams so far.
func (s *tp1State) subscribed() map[topic]int {
	all := map[topic]int{}
	for _, stream := range s.streams {
		for _, req := range stream.requests {
			for _, name := range req.GetResourceNamesSubscribe() {
				all[topic{req.GetTypeUrl(), sortedParams(name)}]++
			}
		}
	}
	return all
}

// mustHaveSeenRequestsFor checks that the relay has subscribed to exactly these names, each once and all on
// one stream, has unsubscribed from none, and has rejected nothing.
func (p *tp1Plane) mustHaveSeenRequestsFor(t testing.TB, topics ...topic) {
	t.Helper()
	want := map[topic]int{}
	for _, topic := range topics {
		topic.name = sortedParams(topic.name)
		want[topic] = 1
	}
	p.read(func(s *tp1State) {
		if got := s.subscribed(); !maps.Equal(got, want) || len(s.streams) != min(1, len(want)) {
			t.Errorf("want one stream with subscriptions to %v, each once; the control plane has seen %s", topics, s)
		}
		for _, stream := range s.streams {
			for _, req := range stream.requests {
				if len(req.GetResourceNamesUnsubscribe()) > 0 || req.GetErrorDetail() != nil {
					t.Errorf("the relay unsubscribed from a name or rejected a response: %v", req)
				}
			}
		}
	})
}

// TestControlPlaneOfTheExamples checks tp1Plane itself.
func TestControlPlaneOfTheExamples(t *testing.T) {
	p := startTP1Plane(t, resources(t, `
resources:
- version: 1
  name: xdstp://a/T/dir/x?b=2&a=1
  resource: {"@type": type.googleapis.com/envoy.config.listeners.v3.Listener, payload: x's}
`)...)
	c := openTP1Client(t, p.address)
	const none, glob = "xdstp://a/T/none/*", "xdstp://a/T/dir/*?a=1&b=2"
	c.subscribe(listenersType, none, glob)
	c.awaitReceived(t, topic{listenersType, "-" + none}, topic{listenersType, "xdstp://a/T/dir/x?b=2&a=1"})
	for requested, want := range map[string]bool{
		"xdstp://a/T/dir/x?b=2&a=1": true, "xdstp://a/T/dir/x?a=1&b=2": true, "xdstp://a/T/dir/x": false,
		"xdstp://a/T/dir/*": false, "xdstp://a/T/dir/*?a=1": false, "xdstp://a/T/*?a=1&b=2": false,
	} {
		if got := covers(requested, "xdstp://a/T/dir/x?b=2&a=1"); got != want {
			t.Errorf("covers(%s) is %v, want %v", requested, got, want)
		}
	}
	p.mustHaveSeenRequestsFor(t, topic{listenersType, none}, topic{listenersType, glob})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	changed := proto.Clone(resources(t, `
resources:
- version: 2
  name: xdstp://a/T/dir/x?b=2&a=1
  resource: {"@type": type.googleapis.com/envoy.config.listeners.v3.Listener, payload: changed}
`)[0]).(*discoveryv3.Resource)
	p.set(changed)
	if err := c.wait(ctx, func(v *tp1View) bool { return v.held[changed.GetName()].GetVersion() == "2" }); err != nil {
		t.Error("the client did not receive the change")
	}
}
