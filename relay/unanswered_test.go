package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

// snapshotPlane has some resources. In SotW it answers a request only if it has every name of it, and in delta the names
// that it has.
type snapshotPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	mu      sync.Mutex
	has     []string
	changed chan struct{} // closed when it has more
}

func (p *snapshotPlane) add(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.has = append(p.has, names...)
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
}

// held returns those of some names that it has, the version of its snapshot, and what is closed when it has more.
func (p *snapshotPlane) held(names []string) (held []string, version string, changed chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	version = fmt.Sprint(len(p.has))
	for _, name := range names {
		if slices.Contains(p.has, name) {
			held = append(held, name)
		}
	}
	return held, version, p.changed
}

// requestsOf receives requests until the stream ends.
func requestsOf[R any](recv func() (R, error)) <-chan R {
	requests := make(chan R, 100)
	go func() {
		defer close(requests)
		for {
			r, err := recv()
			if err != nil {
				return
			}
			requests <- r
		}
	}()
	return requests
}

// StreamAggregatedResources implements the aggregated service.
func (p *snapshotPlane) StreamAggregatedResources(st discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	requests := requestsOf(st.Recv)
	wanted, sent := map[string][]string{}, map[string]string{}
	_, _, changed := p.held(nil)
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			wanted[r.GetTypeUrl()] = r.GetResourceNames()
		case <-changed:
		}
		for typeURL, names := range wanted {
			held, version, more := p.held(names)
			changed = more
			if now := fmt.Sprint(names, version); len(held) == len(names) && sent[typeURL] != now {
				sent[typeURL] = now
				resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version, Nonce: now}
				for _, name := range held {
					resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: typeURL, Value: appendText(nil, 1, name)})
				}
				if err := st.Send(resp); err != nil {
					return err
				}
			}
		}
	}
}

// DeltaAggregatedResources implements the aggregated service.
func (p *snapshotPlane) DeltaAggregatedResources(st discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	requests := requestsOf(st.Recv)
	wanted, sent := map[string][]string{}, map[string]bool{}
	_, _, changed := p.held(nil)
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			wanted[r.GetTypeUrl()] = append(wanted[r.GetTypeUrl()], r.GetResourceNamesSubscribe()...)
		case <-changed:
		}
		for typeURL, names := range wanted {
			held, _, more := p.held(names)
			changed = more
			resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "n"}
			for _, name := range held {
				if !sent[name] {
					sent[name] = true
					resp.Resources = append(resp.Resources, &discoveryv3.Resource{
						Name: name, Version: "1", Resource: &anypb.Any{TypeUrl: typeURL, Value: appendText(nil, 1, name)},
					})
				}
			}
			if len(resp.GetResources()) > 0 {
				if err := st.Send(resp); err != nil {
					return err
				}
			}
		}
	}
}

// What a control plane does not answer is a problem as long as it does not, and is in the authority's status.
func TestWhatAControlPlaneDoesNotAnswerIsAProblemWhileItDoesNot(t *testing.T) {
	for _, test := range []struct {
		protocol, text string
		after          time.Duration
		leftOut        int
	}{
		{"sotw", `authority "a": server plane:18000 has not answered 2 requested names of type endpoint: "wrong", "worse"; 2 of them are left out of requests, ` +
			"because the server answers only requests of which it has every name", 6 * time.Second, 2},
		{"delta", `authority "a": server plane:18000 has not answered 2 requested names of type endpoint: "`, 16 * time.Second, 0},
	} {
		t.Run(test.protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plane, lis, log := &snapshotPlane{}, memconn.Listen(connBuffer), new(syncBuffer)
				plane.add("good", "better")
				server := grpc.NewServer()
				discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, plane)
				go func() { _ = server.Serve(lis) }()
				defer server.Stop()
				serving := startInMemoryWith(t, `
listeners: [{address: "127.0.0.1:18000"}]
node: {id: relay}
authorities: [{name: a, servers: [{address: "plane:18000", protocol: `+test.protocol+`}]}]
old_style_names: [{authority: a}]
`, Options{Log: slog.New(slog.NewTextHandler(log, nil))}, func(string) dialer {
					return func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }
				})
				defer serving.close()
				conn, _ := serving.dial(t)
				defer func() { _ = conn.Close() }()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				st, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
				if err != nil {
					t.Fatal(err)
				}
				endpoints, err := xdstype.Parse("endpoint")
				if err != nil {
					t.Fatal(err)
				}
				if err := st.Send(&discoveryv3.DiscoveryRequest{TypeUrl: endpoints, ResourceNames: []string{"good", "wrong", "better", "worse"}}); err != nil {
					t.Fatal(err)
				}
				unanswered := func() (all []operator.UnansweredStatus) {
					for _, st := range serving.relay.observer.Authorities()[0].Streams {
						all = append(all, st.Unanswered...)
					}
					return all
				}
				<-time.After(test.after)
				if !hasProblem(serving.relay, operator.SeverityWarning, test.text) {
					t.Errorf("it is no problem: %+v", serving.relay.observer.LookAround().Problems)
				}
				if got := unanswered(); len(got) != 1 || got[0].Names != 2 || got[0].LeftOut != test.leftOut || got[0].Type != "endpoint" || len(got[0].Newest) != 2 {
					t.Errorf("the authority has %+v", got)
				}
				plane.add("wrong", "worse")
				<-time.After(4 * time.Second)
				if got := unanswered(); len(got) > 0 || hasProblem(serving.relay, operator.SeverityWarning, "has not answered") {
					t.Errorf("it is still a problem: %+v, %+v", got, serving.relay.observer.LookAround().Problems)
				}
				for _, line := range []string{"control plane does not answer what is requested", "control plane has answered what it did not"} {
					if !strings.Contains(log.String(), line) {
						t.Errorf("the log lacks %q:\n%s", line, log.String())
					}
				}
			})
		})
	}
}
