package integration

// Clients that poll: over REST-JSON, as Envoy does, and with the Fetch methods.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"syscall"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// pollable returns the configuration of a relay with a gRPC listener and a REST listener, both with the v2
// transport.
func pollable(address, upstream string) string {
	return strings.Replace(relayTo(address, upstream), "admin:", `    v2: true
  - address: 127.0.0.1:0
    protocol: rest
    v2: true
admin:`, 1)
}

// poller is a client of the REST listener.
type poller struct {
	t    testing.TB
	base string
	http *http.Client
	node string
}

func newPoller(t testing.TB, r *relay, id string) *poller {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	address := r.awaitLog(t, `msg="serving clients" address=(\S+) protocol=rest`)
	return &poller{t: t, base: "http://" + address, http: &http.Client{Transport: transport}, node: id}
}

// polled is the answer to a poll.
type polled struct {
	status  int
	version string
	values  map[topic]string
	msg     *discoveryv3.DiscoveryResponse
	body    string
}

// poll sends one request as Envoy's HTTP subscription does. milliseconds is the timeout in the request's
// header, 0 for no header.
func (p *poller) poll(ctx context.Context, path, version string, milliseconds int, names ...string) (*polled, error) {
	request, err := json.Marshal(map[string]any{"node": map[string]any{"id": p.node}, "version_info": version, "resource_names": names})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+path, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if milliseconds > 0 {
		req.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", fmt.Sprint(milliseconds))
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	answer := &polled{status: resp.StatusCode, body: string(body), msg: new(discoveryv3.DiscoveryResponse), values: map[topic]string{}}
	if resp.StatusCode != http.StatusOK {
		return answer, nil
	}
	if err := protojson.Unmarshal(body, answer.msg); err != nil {
		return nil, fmt.Errorf("%w in %s", err, body)
	}
	answer.version = answer.msg.GetVersionInfo()
	for _, r := range answer.msg.GetResources() {
		m, err := r.UnmarshalNew()
		if err != nil {
			return nil, err
		}
		answer.values[topic{r.GetTypeUrl(), nameOf(m)}] = encode(m)
	}
	return answer, nil
}

// must is poll, and fails the test if there is no answer.
func (p *poller) must(path, version string, milliseconds int, names ...string) *polled {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	answer, err := p.poll(ctx, path, version, milliseconds, names...)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer
}

func (a *polled) check(t testing.TB, what string, want ...proto.Message) {
	t.Helper()
	if a.status != http.StatusOK || !maps.Equal(a.values, contents(want...)) {
		t.Errorf("%s: got status %d, %s; want %v", what, a.status, a.body, want)
	}
}

// TestRESTClientsPoll checks that a client that polls receives the same resources as other clients, that its
// request waits if nothing has changed, and that it adds no load to the control plane.
func TestRESTClientsPoll(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		t.Run("upstream "+string(upstream), func(t *testing.T) {
			t.Parallel()
			cp := startControlPlane(t, upstream)
			cp.set(plainCluster("a", "1"), plainCluster("b", "1"), plainEndpoints("a", 1))
			r := startRelay(t, pollable(cp.address, string(upstream)))
			p := newPoller(t, r, "poller")

			first := p.must("/v3/discovery:clusters", "", 0)
			first.check(t, "without names", plainCluster("a", "1"), plainCluster("b", "1"))
			named := p.must("/v3/discovery:endpoints", "", 0, "a")
			named.check(t, "by name", plainEndpoints("a", 1))

			if again := p.must("/v3/discovery:clusters", first.version, 100); again.status != http.StatusNotModified || again.body != "" {
				t.Errorf("a request with the current version was answered with %d: %s, want 304", again.status, again.body)
			}
			waiting := make(chan *polled, 1)
			go func() {
				answer, err := p.poll(t.Context(), "/v3/discovery:clusters", first.version, 0)
				if err != nil {
					t.Error(err)
				}
				waiting <- answer
			}()
			eventually(t, "the request waits, and /clients shows it", func() error {
				if clients := fetch(t, "http://"+r.admin+"/clients"); !strings.Contains(clients, `"form": "rest"`) || !strings.Contains(clients, `"node": "poller"`) {
					return fmt.Errorf("the clients are %s", clients)
				}
				return nil
			})
			cp.set(plainCluster("a", "2"))
			if second := <-waiting; second != nil {
				second.check(t, "after the change", plainCluster("a", "2"), plainCluster("b", "1"))
			}

			// A client that polls and a client with a stream share one subscription upstream.
			c := newClient(t, r, delta, node("streams", ""))
			c.subscribe(clusterType, wildcard)
			c.awaitHas(t, "the clusters", plainCluster("a", "2"), plainCluster("b", "1"))
			if opened := look(cp.recorder, func(s *seen) int { return s.opened }); opened != 1 {
				t.Errorf("the control plane saw %d streams, want 1", opened)
			}
			r.mustShow(t, "/metrics", "xds_relay_downstream_streams 1\n") // only the stream: no request waits
		})
	}
}

// TestRESTClientsAreAnsweredWhenTheRelayEnds checks that a relay that ends answers a waiting request, instead
// of closing its connection without an answer.
func TestRESTClientsAreAnsweredWhenTheRelayEnds(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	cp.set(plainCluster("a", "1"))
	r := startRelay(t, pollable(cp.address, "delta"))
	p := newPoller(t, r, "poller")
	first := p.must("/v3/discovery:clusters", "", 0)
	waiting := make(chan error, 1)
	go func() {
		answer, err := p.poll(t.Context(), "/v3/discovery:clusters", first.version, 0)
		if err == nil && answer.status != http.StatusNotModified {
			err = fmt.Errorf("the answer is %d: %s, want 304", answer.status, answer.body)
		}
		waiting <- err
	}()
	eventually(t, "the request waits", func() error {
		if clients := fetch(t, "http://"+r.admin+"/clients"); !strings.Contains(clients, `"form": "rest"`) {
			return fmt.Errorf("the clients are %s", clients)
		}
		return nil
	})
	r.end(t, syscall.SIGTERM)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
}

// TestFetchMethodsPoll checks that the Fetch methods of gRPC work like polls over REST.
func TestFetchMethodsPoll(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	cp.set(plainEndpoints("a", 1))
	r := startRelay(t, pollable(cp.address, "delta"))
	eds := endpointservice.NewEndpointDiscoveryServiceClient(connect(t, r.address))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first, err := eds.FetchEndpoints(ctx, &discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}})
	if resources := first.GetResources(); err != nil || len(resources) != 1 || string(resources[0].GetValue()) != encode(plainEndpoints("a", 1)) {
		t.Fatalf("got %v (%v), want the endpoints", first, err)
	}
	changed := make(chan error, 1)
	go func() {
		second, err := eds.FetchEndpoints(ctx, &discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}, VersionInfo: first.GetVersionInfo()})
		if resources := second.GetResources(); err == nil && (len(resources) != 1 || string(resources[0].GetValue()) != encode(plainEndpoints("a", 2))) {
			err = fmt.Errorf("got %v, want the changed endpoints", second)
		}
		changed <- err
	}()
	cp.set(plainEndpoints("a", 2))
	if err := <-changed; err != nil {
		t.Error(err)
	}
}
