package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// everybody maps all Nodes to one key of a snapshot cache.
type everybody struct{}

// ID implements cachev3.NodeHash.
func (everybody) ID(*corev3.Node) string { return "" }

// polledPlane is a control plane that is polled: the HTTP gateway of go-control-plane.
type polledPlane struct {
	*port
	snapshots cachev3.SnapshotCache
	end       func()
	start     func()

	// answered counts the answered polls by their status.
	answered watched[map[int]int]
	// nodes has the Nodes of the requests, by id.
	nodes watched[map[string]*corev3.Node]
}

func startPolled(t testing.TB) *polledPlane {
	t.Helper()
	cp := &polledPlane{port: openPort(t), snapshots: cachev3.NewSnapshotCache(false, everybody{}, nil)}
	cp.answered.value, cp.nodes.value = map[int]int{}, map[string]*corev3.Node{}
	gateway := serverv3.HTTPGateway{Server: serverv3.NewServer(t.Context(), cp.snapshots, serverv3.CallbackFuncs{
		FetchRequestFunc: func(_ context.Context, r *discoveryv3.DiscoveryRequest) error {
			cp.nodes.update(func(nodes *map[string]*corev3.Node) { (*nodes)[r.GetNode().GetId()] = r.GetNode() })
			return nil
		},
	})}
	cp.start = func() {
		cp.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, code, err := gateway.ServeHTTP(r)
			if err != nil {
				body = []byte(err.Error())
			}
			w.WriteHeader(code)
			_, _ = w.Write(body)
			cp.answered.update(func(n *map[int]int) { (*n)[code]++ })
		}))
	}
	cp.start()
	t.Cleanup(func() { cp.end() })
	return cp
}

// serve serves handler on the port, until end.
func (p *polledPlane) serve(handler http.Handler) {
	s := &http.Server{Handler: handler}
	var serving sync.WaitGroup
	l := p.listen()
	serving.Go(func() { _ = s.Serve(l) })
	p.end = func() {
		_ = s.Close()
		serving.Wait()
	}
}

// set replaces the resources of the control plane.
func (p *polledPlane) set(t testing.TB, version string, resources ...proto.Message) {
	t.Helper()
	byType := map[resource.Type][]types.Resource{}
	for _, r := range resources {
		byType[typeOf(r)] = append(byType[typeOf(r)], r)
	}
	snapshot, err := cachev3.NewSnapshot(version, byType)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.snapshots.SetSnapshot(t.Context(), "", snapshot); err != nil {
		t.Fatal(err)
	}
}

// polledFrom returns the configuration for a control plane that is polled.
func polledFrom(address string) string {
	return prelude + fmt.Sprintf(`
authorities:
  - name: cp.example.com
    servers:
      - address: %s
        protocol: rest
        poll_interval: 100ms
        backoff: {base: 20ms, max: 200ms}
old_style_names:
  - authority: cp.example.com
`, address)
}

// TestControlPlaneThatIsPolled checks that the relay serves gRPC clients from a control plane that speaks
// only REST-JSON, also during and after an outage.
func TestControlPlaneThatIsPolled(t *testing.T) {
	t.Parallel()
	cp := startPolled(t)
	before := []proto.Message{plainCluster("stays", "1"), plainCluster("changes", "1"), plainCluster("goes", "1"), plainEndpoints("at", 1)}
	cp.set(t, "1", before...)
	r := startRelay(t, polledFrom(cp.address))
	var clients []*client
	for _, f := range []form{delta, sotw} {
		id := node(string(f), "")
		id.ClientFeatures = []string{"envoy.lb.does_not_support_overprovisioning"}
		c := newClient(t, r, f, id)
		c.subscribe(clusterType, wildcard)
		c.subscribe(endpointType, "at")
		clients = append(clients, c)
	}
	for _, c := range clients {
		c.awaitHas(t, "all resources", before...)
	}
	cp.answered.await(t, "the relay's polls are answered with 304", func(n *map[int]int) bool { return (*n)[304] > 2 })

	cp.set(t, "2", before[0], plainCluster("changes", "2"), before[3])
	for _, c := range clients {
		c.awaitHas(t, "the changed cluster", plainCluster("changes", "2"))
		c.await(t, "the client receives the removal", func(v *view) bool { return v.gone[topic{clusterType, "goes"}] })
	}

	cp.end()
	late := newClient(t, r, delta, node("late", ""))
	late.subscribe(clusterType, wildcard)
	late.subscribe(endpointType, "another")
	late.awaitHas(t, "the cached clusters while the control plane is away", before[0], plainCluster("changes", "2"))
	late.await(t, "the client receives an error for a name that the relay does not hold", func(v *view) bool {
		return v.errors[topic{endpointType, "another"}] != ""
	})
	cp.set(t, "3", before[0], plainCluster("changes", "3"), before[3], plainEndpoints("another", 1))
	cp.start()
	late.awaitHas(t, "the endpoints that it got an error for", plainEndpoints("another", 1))
	for _, c := range append(clients, late) {
		c.awaitHas(t, "the next change", plainCluster("changes", "3"))
		c.mustLive(t)
	}
	// The relay does not send the features of one client on behalf of others, see docs/partitions.md.
	cp.nodes.read(func(nodes *map[string]*corev3.Node) {
		for _, n := range *nodes {
			if got := strings.Join(n.GetClientFeatures(), " "); got != "xds.config.resource-in-sotw xds.config.supports-resource-in-sotw xds.config.supports-resource-ttl" {
				t.Errorf("the features of node %q are %s", n.GetId(), got)
			}
		}
		if len(*nodes) != 1 {
			t.Errorf("the requests had the Nodes %v, want one client's Node in all", *nodes)
		}
	})
}

// TestBadResourceOfAPollIsRejectedAlone checks that the relay NACKs only the resource with an Any of an
// unknown type, which cannot be read from JSON.
func TestBadResourceOfAPollIsRejectedAlone(t *testing.T) {
	t.Parallel()
	good, err := protojson.Marshal(toAny(t, plainCluster("good", "1")))
	if err != nil {
		t.Fatal(err)
	}
	bad, err := protojson.Marshal(toAny(t, plainCluster("bad", "1")))
	if err != nil {
		t.Fatal(err)
	}
	bad = append([]byte(`{"typedExtensionProtocolOptions": {"x": {"@type": "made.up/of.nothing", "secret": "hush"}},`), bad[1:]...)
	cp := &polledPlane{port: openPort(t)}
	var nacks watched[[]string]
	cp.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req discoveryv3.DiscoveryRequest
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = protojson.Unmarshal(body, &req)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if req.GetErrorDetail() != nil {
			nacks.update(func(all *[]string) { *all = append(*all, req.GetErrorDetail().GetMessage()) })
		}
		fmt.Fprintf(w, `{"version_info": "1", "resources": [%s, %s]}`, bad, good)
	}))
	t.Cleanup(func() { cp.end() })

	r := startRelay(t, polledFrom(cp.address))
	c := newClient(t, r, sotw, node("a", ""))
	c.subscribe(clusterType, wildcard)
	c.awaitHas(t, "the good resource", plainCluster("good", "1"))
	nacks.await(t, "the relay rejects the bad resource", func(all *[]string) bool { return len(*all) > 0 })
	nacks.read(func(all *[]string) {
		if want := `resources[0] "bad" cannot be read: unable to resolve "made.up/of.nothing"`; (*all)[0] != want {
			t.Errorf("the relay rejected the response with %q, want %q", (*all)[0], want)
		}
	})
	if strings.Contains(r.stderr.String(), "hush") {
		t.Error("the relay logged a secret value")
	}
}
