package relay

// A control plane that records its requests, and a relay that uses it over TCP.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/configs"
)

const clusterTypeURL = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// recordingPlane has a cluster of every requested name, and one named "all" for a wildcard.
type recordingPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	mu     sync.Mutex
	nodes  []*corev3.Node // of each stream's first request
	open   int
	most   int // that were open at once
	change chan struct{}
}

func newRecordingPlane() *recordingPlane { return &recordingPlane{change: make(chan struct{})} }

func (p *recordingPlane) count(n int, node *corev3.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open += n
	p.most = max(p.most, p.open)
	if node != nil {
		p.nodes = append(p.nodes, node)
	}
	close(p.change)
	p.change = make(chan struct{})
}

// await waits until what the plane has seen is as wanted.
func (p *recordingPlane) await(t *testing.T, what string, wanted func() bool) {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		p.mu.Lock()
		done, change, open := wanted(), p.change, p.open
		p.mu.Unlock()
		if done {
			return
		}
		select {
		case <-change:
		case <-deadline:
			t.Fatalf("%s: not within a minute; %d streams are open", what, open)
		}
	}
}

// DeltaAggregatedResources implements the aggregated service.
func (p *recordingPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	p.count(1, req.GetNode())
	defer p.count(-1, nil)
	for n := 0; err == nil; req, err = stream.Recv() {
		names := slices.Clone(req.GetResourceNamesSubscribe())
		if n == 0 && len(names) == 0 {
			names = []string{"*"}
		}
		if len(names) == 0 {
			continue
		}
		n++
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: fmt.Sprint(n)}
		for _, name := range names {
			if name == "*" {
				name = "all"
			}
			a, err := anypb.New(&clusterv3.Cluster{Name: name})
			if err != nil {
				return err
			}
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: a})
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
	return nil
}

// runRelay runs a relay until the test ends, and returns its client listener's address.
func runRelay(t testing.TB, config string, log *slog.Logger) (*Relay, string) {
	t.Helper()
	return runRelayWith(t, config, Options{Log: log})
}

// runRelayWith is runRelay with other options.
func runRelayWith(t testing.TB, config string, o Options) (*Relay, string) {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := r.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return r, r.Addresses()[0]
}

// askAdmin returns the response of the admin listener.
func askAdmin(r *Relay, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.admin.HTTP(slog.New(slog.DiscardHandler), nil).Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
	return w
}

// connectTo makes a connection until the test ends.
func connectTo(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// deltaClient is a delta stream of a client.
type deltaClient struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	end context.CancelFunc
}

func openDelta(t *testing.T, conn *grpc.ClientConn) *deltaClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &deltaClient{stream, cancel}
}

// ask subscribes to clusters.
func (c *deltaClient) ask(t *testing.T, node *corev3.Node, names ...string) {
	t.Helper()
	err := c.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: clusterTypeURL, ResourceNamesSubscribe: names})
	if err != nil {
		t.Fatal(err)
	}
}

// receive receives responses until n names were given or refused.
func (c *deltaClient) receive(t *testing.T, n int) (given []string, refused map[string]string) {
	t.Helper()
	refused = map[string]string{}
	for len(given)+len(refused) < n {
		resp, err := c.Recv()
		if err != nil {
			t.Fatalf("after %d names and %d errors: %v", len(given), len(refused), err)
		}
		for _, r := range resp.GetResources() {
			given = append(given, r.GetName())
		}
		for _, e := range resp.GetResourceErrors() {
			refused[e.GetResourceName().GetName()] = fmt.Sprintf("%d %s", e.GetErrorDetail().GetCode(), e.GetErrorDetail().GetMessage())
		}
		if err := c.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}); err != nil {
			t.Fatal(err)
		}
	}
	return given, refused
}

func unsubscribe(names ...string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterTypeURL, ResourceNamesUnsubscribe: names}
}

// postJSON requests clusters over REST.
func postJSON(ctx context.Context, t *testing.T, address, body string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v3/discovery:clusters", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}
