package integration

// Names, types and parameters that clients invent, and how they send them.

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func fictionalTypes(cluster string) func(context.Context, *testing.T, *target, int, *answers) {
	const perStream = 64
	return func(ctx context.Context, t *testing.T, at *target, n int, o *answers) {
		at.say(ctx, t, o, 50, n/perStream, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
			var reqs []*discoveryv3.DeltaDiscoveryRequest
			for i := range perStream {
				reqs = append(reqs, ask(fmt.Sprintf("made.up/%d-%d", stream, i), "x"))
			}
			reqs[0].Node = &corev3.Node{Id: "made-up", Cluster: cluster}
			return ctx, reqs
		})
	}
}

func fictionalAuthorities(ctx context.Context, t *testing.T, at *target, n int, o *answers) {
	const perStream = 100
	at.say(ctx, t, o, 100, n/perStream, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		req := ask(clusterType)
		for i := range perStream {
			req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, fmt.Sprintf("xdstp://a%d-%d.made.example.com/envoy.config.cluster.v3.Cluster/x", stream, i))
		}
		return ctx, []*discoveryv3.DeltaDiscoveryRequest{req}
	})
}

// fictionalChurn requests very many authorities, but only a few at the same time.
func fictionalChurn(ctx context.Context, t *testing.T, at *target, n int, o *answers) {
	const streams, atOnce = 10, 30
	at.say(ctx, t, o, streams, streams, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		var reqs []*discoveryv3.DeltaDiscoveryRequest
		for i := range n / streams / atOnce {
			begin := ask(clusterType)
			for j := range atOnce {
				begin.ResourceNamesSubscribe = append(begin.ResourceNamesSubscribe, fmt.Sprintf("xdstp://c%d-%d-%d.made.example.com/envoy.config.cluster.v3.Cluster/x", stream, i, j))
			}
			reqs = append(reqs, begin, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesUnsubscribe: begin.ResourceNamesSubscribe})
		}
		return ctx, reqs
	})
}

func fictionalParameters(ctx context.Context, t *testing.T, at *target, n int, o *answers) {
	const perType = 16 // sets of parameters on one stream
	words := []string{clusterType, endpointType, listenerType, routeType}
	at.say(ctx, t, o, 50, n/perType/len(words), func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		var reqs []*discoveryv3.DeltaDiscoveryRequest
		for _, typeURL := range words {
			req := ask(typeURL)
			for i := range perType {
				req.ResourceLocatorsSubscribe = append(req.ResourceLocatorsSubscribe, &discoveryv3.ResourceLocator{
					Name:              "xdstp://made.example.com/" + strings.TrimPrefix(typeURL, "type.googleapis.com/") + "/x",
					DynamicParameters: map[string]string{"n": fmt.Sprint(typeURL, stream, i)},
				})
			}
			reqs = append(reqs, req)
		}
		return ctx, reqs
	})
}

// fictionalPartitions opens the next stream of a connection only when the last one has ended or has a
// partition. The relay reads more slowly from clients that it refuses, so the clients may open fewer than n
// streams.
func fictionalPartitions(ctx context.Context, t *testing.T, at *target, n int, o *answers) {
	const conns = 20
	var saying sync.WaitGroup
	began := time.Now()
	for i := range conns {
		cc := at.dial(ctx, t)
		saying.Go(func() {
			for j := i; j < n && ctx.Err() == nil && time.Since(began) < saidFor; j += conns {
				req := ask(clusterType, "x")
				req.Node = &corev3.Node{Id: fmt.Sprint("made-up-", j), Cluster: "partitions"}
				s := at.send(ctx, t, cc, req)
				if s == nil {
					return
				}
				ended := make(chan struct{})
				o.reading.Go(func() {
					defer close(ended)
					o.read(s)
				})
				select {
				case <-ended:
				case <-time.After(20 * time.Millisecond): // the relay has accepted the stream
				}
			}
		})
	}
	saying.Wait()
}

func fictionalRelays(ctx context.Context, t *testing.T, at *target, n int, o *answers) {
	const perStream = 64
	at.say(ctx, t, o, 50, n/perStream, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		ids := make([]string, perStream)
		for i := range ids {
			ids[i] = fmt.Sprintf("%d-%d-%s", stream, i, strings.Repeat("r", 200))
		}
		req := ask(clusterType, "x")
		req.Node = &corev3.Node{Id: "made-up", Cluster: "one"}
		return metadata.AppendToOutgoingContext(ctx, "x-xds-relay-chain", strings.Join(ids, ",")), []*discoveryv3.DeltaDiscoveryRequest{req}
	})
}

func fictionalNames(ctx context.Context, t *testing.T, at *target, n int, o *answers) {
	const streams = 50
	at.say(ctx, t, o, streams, streams, func(ctx context.Context, stream int) (context.Context, []*discoveryv3.DeltaDiscoveryRequest) {
		req := ask(clusterType)
		for i := range n / streams {
			req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, fmt.Sprintf("made-up-%d-%d", stream, i))
		}
		req.Node = &corev3.Node{Id: "made-up", Cluster: "one"}
		return ctx, []*discoveryv3.DeltaDiscoveryRequest{req}
	})
}

// fictionalRequests sends requests over REST for a while, each on its own connection.
func fictionalRequests(ctx context.Context, t *testing.T, at *target, _ int, o *answers) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	time.AfterFunc(2*attackedFor(), end)
	var answered atomic.Int64
	began := time.Now()
	again(ctx, 128, func(int) {
		transport := &http.Transport{DisableKeepAlives: true}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at.rest+"/v3/discovery:clusters", strings.NewReader(`{"node":{"id":"made-up","cluster":"one"},"resource_names":["x"]}`))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return // ctx has ended
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			o.note(status.Error(codes.ResourceExhausted, "limits.requests_per_second_per_identity"))
			return
		}
		answered.Add(1)
	})
	if most := fictionRequests * (5 + 2 + int64(time.Since(began)/time.Second)); answered.Load() > most {
		t.Errorf("the relay answered %d requests, want at most %d", answered.Load(), most)
	}
}

// countingPlane is a control plane that counts streams and requests, and answers none.
type countingPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	address string

	mu   sync.Mutex
	open int
	seen counted
}

// counted is what a countingPlane has seen.
type counted struct {
	opened, most, requests int // most is the largest number of streams at the same time
	types                  []string
}

func startCountingPlane(t *testing.T) *countingPlane {
	t.Helper()
	port := openPort(t)
	p := &countingPlane{address: port.address}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p)
	serve(s, port.listen())
	t.Cleanup(s.Stop)
	return p
}

// DeltaAggregatedResources implements the service in delta.
func (p *countingPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	count := func(f func()) {
		p.mu.Lock()
		defer p.mu.Unlock()
		f()
	}
	count(func() {
		p.open++
		p.seen.opened++
		p.seen.most = max(p.seen.most, p.open)
	})
	defer count(func() { p.open-- })
	for {
		req, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		count(func() {
			p.seen.requests++
			if at, has := slices.BinarySearch(p.seen.types, req.GetTypeUrl()); !has {
				p.seen.types = slices.Insert(p.seen.types, at, req.GetTypeUrl())
			}
		})
	}
}

// reset resets the counts when the streams of unused scopes have ended.
func (p *countingPlane) reset(t *testing.T) {
	t.Helper()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for began := time.Now(); ; <-pace.C {
		p.mu.Lock()
		open := p.open
		p.seen = counted{most: open}
		p.mu.Unlock()
		if open <= idleFictions {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%d streams of unused scopes are still open", open)
		}
	}
}

func (p *countingPlane) report() counted {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}
