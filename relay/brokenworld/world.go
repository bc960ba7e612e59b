// Package brokenworld starts a relay with problems, for tests of the operator's page: a route to a cluster
// that does not exist, a client that rejects resources, an authority without a reachable server, and a change
// that waits in a frozen rollout.
package brokenworld

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/relay"
)

// World is a relay with its clients. It runs until the test ends.
type World struct {
	// Operator is the address of the admin listener, and Clients that of the clients' listener.
	Operator, Clients string
	// Relay is the relay itself.
	Relay  *relay.Relay
	folder string
	conn   *grpc.ClientConn
	// rejectsEU says that the client of EU rejects responses.
	rejectsEU atomic.Bool
}

// RejectEU makes the client of EU reject all further responses, with the error message WordsEU.
func (w *World) RejectEU() { w.rejectsEU.Store(true) }

// The authorities, clients and problems of the world.
const (
	// Shop has a route to MissingCluster. EU has a change that waits in a frozen rollout. Down has no
	// reachable server.
	Shop = "shop.example.com"
	EU   = "eu.example.com"
	Down = "down.example.com"
	// Healthy is a client that accepts all responses, and Rejecting is one that rejects some.
	Healthy   = "envoy-web-1"
	Rejecting = "envoy-web-2"
	// MissingCluster does not exist.
	MissingCluster = "payments"
	// Words is the error message of Rejecting.
	Words = "cluster cart: unknown load balancing policy RING"
	// WordsEU is the error message of the client of EU.
	WordsEU = "cluster checkout: cannot be used"
	// Marker is a part of a private key. The relay must never show it.
	Marker = "c0ffee-private-key-marker"
)

// Start starts the relay and its clients, and causes all problems. The change of EU may reach the relay after
// Start has returned.
func Start(t testing.TB) *World {
	t.Helper()
	w := &World{folder: t.TempDir()}
	w.Write(t, Shop, shop)
	w.Write(t, EU, fmt.Sprintf(eu, "eu-first"))
	down := testplane.RefusingAddress(t)
	w.run(t, fmt.Sprintf(`
listeners: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0'}
authorities:
  - {name: %q, directory: %q}
  - {name: %q, directory: %q, rollout: {frozen: true}}
  - {name: %q, servers: [{address: %q}]}
old_style_names:
  - {when: node.cluster == "eu", authority: %q}
  - {authority: %q}
`, Shop, w.file(Shop), EU, w.file(EU), Down, down, EU, Shop))
	web := w.Connect(t, &corev3.Node{Id: Healthy, Cluster: "web"}, nil)
	web.Subscribe(t, xdstype.ListenerV3, "*")
	web.Subscribe(t, xdstype.ClusterV3, "*")
	web.Subscribe(t, xdstype.RouteV3, "web-routes")
	web.Subscribe(t, xdstype.EndpointsV3, "cart")
	web.Subscribe(t, xdstype.SecretV3, "web-certificate")
	web.Subscribe(t, xdstype.ClusterV3, "xdstp://"+Down+"/envoy.config.cluster.v3.Cluster/stock")
	web.Await(t, "web-certificate")
	rejects := w.Connect(t, &corev3.Node{Id: Rejecting, Cluster: "web"}, func(typeURL string) string {
		if typeURL == xdstype.ClusterV3 {
			return Words
		}
		return ""
	})
	rejects.Subscribe(t, xdstype.ListenerV3, "*")
	rejects.Subscribe(t, xdstype.ClusterV3, "*")
	rejects.Await(t, "cart")
	other := w.Connect(t, &corev3.Node{Id: "envoy-eu-1", Cluster: "eu"}, func(string) string {
		if w.rejectsEU.Load() {
			return WordsEU
		}
		return ""
	})
	other.Subscribe(t, xdstype.ClusterV3, "*")
	other.Await(t, "checkout")
	w.Write(t, EU, fmt.Sprintf(eu, "eu-second"))
	return w
}

// Change changes the listener that all clients of Shop have.
func (w *World) Change(t testing.TB) {
	t.Helper()
	w.Write(t, Shop, strings.Replace(shop, "port_value: 8443", "port_value: 9443", 1))
}

// ChangeSecret changes the private key of Shop.
func (w *World) ChangeSecret(t testing.TB) {
	t.Helper()
	w.Write(t, Shop, strings.ReplaceAll(shop, Marker, Marker+"-renewed"))
}

// ChangeClusters changes the clusters cart and front of Shop at the same time. Each n makes a different change.
func (w *World) ChangeClusters(t testing.TB, n int) {
	t.Helper()
	w.Write(t, Shop, strings.ReplaceAll(shop, "connect_timeout: 1s", fmt.Sprintf("connect_timeout: %ds", n)))
}

// WriteThird changes the cluster of EU again.
func (w *World) WriteThird(t testing.TB) {
	t.Helper()
	w.Write(t, EU, fmt.Sprintf(eu, "eu-third"))
}

// Write replaces all resources of an authority, in YAML.
func (w *World) Write(t testing.TB, authority, resources string) {
	t.Helper()
	w.WriteFile(t, authority, "all.yaml", resources)
}

// WriteFile replaces one file of an authority's directory.
func (w *World) WriteFile(t testing.TB, authority, name, resources string) {
	t.Helper()
	if err := os.MkdirAll(w.file(authority), 0o700); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(w.folder, "next")
	if err := os.WriteFile(next, []byte(resources), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(w.file(authority), name)); err != nil {
		t.Fatal(err)
	}
}

func (w *World) file(authority string) string { return filepath.Join(w.folder, authority) }

// run runs the relay until the test ends.
func (w *World) run(t testing.TB, config string) {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if w.Relay, err = relay.New(cfg, relay.Options{Log: slog.New(slog.NewTextHandler(&lockedWriter{w: &log}, nil))}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := w.Relay.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.Relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%v\n%s", err, &log)
		}
		w.Relay.Close()
	})
	w.Operator, w.Clients = w.Relay.AdminAddress(), w.Relay.Addresses()[0]
	w.Dial(t)
}

// Dial opens a new connection, which Connect uses from then on.
func (w *World) Dial(t testing.TB) {
	t.Helper()
	conn, err := grpc.NewClient(w.Clients, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	w.conn = conn
	t.Cleanup(func() { _ = conn.Close() })
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// Client is a client of the relay, which speaks delta.
type Client struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node   *corev3.Node
	reject func(typeURL string) string

	mu      sync.Mutex // guards Send and the fields below
	has     map[string]bool
	changed chan struct{}
	ended   error
}

// Connect opens the stream of a client, which ends with the test. reject, if not nil, returns the error
// message with which the client rejects a response of a type, or "" if the client accepts it.
func (w *World) Connect(t testing.TB, node *corev3.Node, reject func(typeURL string) string) *Client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(w.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{stream: stream, node: node, reject: reject, has: map[string]bool{}, changed: make(chan struct{})}
	done := make(chan struct{})
	go func() { defer close(done); c.follow() }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// Subscribe requests names.
func (c *Client) Subscribe(t testing.TB, typeURL string, names ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: c.node, TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	c.node = nil
}

// follow receives responses and answers them.
func (c *Client) follow() {
	for {
		m, err := c.stream.Recv()
		c.mu.Lock()
		if err != nil {
			c.ended = err
			close(c.changed)
			c.mu.Unlock()
			return
		}
		answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}
		if c.reject != nil {
			if words := c.reject(m.GetTypeUrl()); words != "" {
				answer.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: words}
			}
		}
		_ = c.stream.Send(answer) // the next Recv has the error
		for _, r := range m.GetResources() {
			c.has[r.GetName()] = true
		}
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
}

// Await waits until the client has received a resource.
func (c *Client) Await(t testing.TB, name string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		c.mu.Lock()
		has, ended, changed := c.has[name], c.ended, c.changed
		c.mu.Unlock()
		switch {
		case has:
			return
		case ended != nil:
			t.Fatalf("the stream ended before the client received %s: %v", name, ended)
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("the client does not receive %s", name)
		}
	}
}
