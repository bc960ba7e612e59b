package relay

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// How long changes take to reach clients: the metrics compared with what clients see.

// countingPlane is a delta control plane whose clusters have the number of the last change as their timeout.
type countingPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*memoryServer

	changes chan int
}

func newCountingPlane() *countingPlane {
	p := &countingPlane{memoryServer: &memoryServer{}, changes: make(chan int)}
	p.ads = p
	return p
}

// numberOf returns the number of a cluster.
func numberOf(a *anypb.Any) int {
	var c clusterv3.Cluster
	if a.UnmarshalTo(&c) != nil {
		return -1
	}
	return int(c.GetConnectTimeout().AsDuration()/time.Second) - 1
}

// clustersOfPlane are what a countingPlane has. A change changes both.
var clustersOfPlane = []string{"one", "two"}

// DeltaAggregatedResources implements the service.
func (p *countingPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if _, err := stream.Recv(); err != nil { // what is not requested is ignored
		return err
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	for n := 0; ; {
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xdstype.ClusterV3, Nonce: strconv.Itoa(n)}
		select {
		case n = <-p.changes:
		case <-stream.Context().Done():
			return nil
		}
		for _, name := range clustersOfPlane {
			a, err := anypb.New(&clusterv3.Cluster{Name: name, ConnectTimeout: durationpb.New(time.Duration(n+1) * time.Second)})
			if err != nil {
				return err
			}
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: strconv.Itoa(n), Resource: a})
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// watchingClient notes when it has received each change, and when it has acknowledged it.
type watchingClient struct {
	works time.Duration // for so long, before it acknowledges a response
	node  *corev3.Node

	mu              sync.Mutex
	received, acked map[int]time.Time
}

// note notes that a response has brought the client to a change, and to all earlier ones.
func (c *watchingClient) note(of map[int]time.Time, change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 0; i <= change; i++ {
		if of[i].IsZero() {
			of[i] = time.Now()
		}
	}
}

// answer is a response as a client sees it: its content, and the request that acknowledges it.
type answer[R any] struct {
	change int
	ack    R
}

// converse sends the first request, receives all responses at once, and works on one after another.
func converse[R any](c *watchingClient, first R, send func(R) error, receive func() ([]*anypb.Any, R, error)) error {
	if err := send(first); err != nil {
		return err
	}
	responses := make(chan answer[R], 64)
	var working sync.WaitGroup
	defer working.Wait()
	defer close(responses)
	working.Go(func() {
		for r := range responses {
			time.Sleep(c.works)
			c.note(c.acked, r.change)
			_ = send(r.ack) // if that fails, so does receive
		}
	})
	for change := 0; ; {
		resources, ack, err := receive()
		if err != nil {
			return err
		}
		for _, a := range resources {
			change = max(change, numberOf(a))
		}
		c.note(c.received, change)
		responses <- answer[R]{change, ack}
	}
}

// run requests the clusters, and watches until ctx ends.
func (c *watchingClient) run(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, form string, names []string) error {
	if form == "delta" {
		stream, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		first := &discoveryv3.DeltaDiscoveryRequest{Node: c.node, TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: names}
		return converse(c, first, stream.Send, func() (resources []*anypb.Any, ack *discoveryv3.DeltaDiscoveryRequest, err error) {
			resp, err := stream.Recv()
			for _, r := range resp.GetResources() {
				resources = append(resources, r.GetResource())
			}
			return resources, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResponseNonce: resp.GetNonce()}, err
		})
	}
	stream, err := ads.StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	first := &discoveryv3.DiscoveryRequest{Node: c.node, TypeUrl: xdstype.ClusterV3, ResourceNames: names}
	return converse(c, first, stream.Send, func() ([]*anypb.Any, *discoveryv3.DiscoveryRequest, error) {
		resp, err := stream.Recv()
		ack := &discoveryv3.DiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNames: names, ResponseNonce: resp.GetNonce(), VersionInfo: resp.GetVersionInfo()}
		return resp.GetResources(), ack, err
	})
}

// measuredTimes returns the sums and the counts of the propagation histogram, by stage and client, in seconds.
// rolledOut selects the changes.
func measuredTimes(t *testing.T, r *Relay, rolledOut bool) (sums, counts map[string]float64) {
	t.Helper()
	w := askAdmin(r, "/metrics")
	sums, counts = map[string]float64{}, map[string]float64{}
	label := func(line, name string) string {
		_, rest, _ := strings.Cut(line, name+`="`)
		value, _, _ := strings.Cut(rest, `"`)
		return value
	}
	for line := range strings.Lines(w.Body.String()) {
		for of, into := range map[string]map[string]float64{"_sum{": sums, "_count{": counts} {
			if !strings.HasPrefix(line, "xds_relay_propagation_duration_seconds"+of) || label(line, "rollout") != strconv.FormatBool(rolledOut) {
				continue
			}
			if got := label(line, "grpc_xds_authority") + " " + label(line, "grpc_xds_resource_type"); got != "plane envoy.config.cluster.v3.Cluster" {
				t.Errorf("the labels are of %s", got)
			}
			v, err := strconv.ParseFloat(strings.Fields(line)[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			into[label(line, "stage")+" "+label(line, "client")] = v
		}
	}
	return sums, counts
}

// Clients work for a while before they acknowledge a response, so most of them lag: the relay sends them the next
// change late, or only the one after that. The measurements equal the clients' notes to the microsecond, because the
// test has its own clock.
func TestPropagationIsMeasuredAsClientsSeeIt(t *testing.T) {
	for _, form := range []string{"delta", "sotw"} {
		for _, names := range [][]string{{"*"}, {"one"}, clustersOfPlane} {
			t.Run(fmt.Sprint(form, names), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					plane := newCountingPlane()
					plane.up()
					defer plane.down()
					s := startInMemory(t, `
listeners: [{address: "127.0.0.1:18000"}]
authorities: [{name: plane, servers: [{address: "plane:18000", protocol: delta}]}]
old_style_names: [{authority: plane}]
`, func(string) dialer { return plane.dial })
					defer s.close()
					s.relay.changes.Measure(true)
					conn, _ := s.dial(t)
					defer conn.Close()
					ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
					ctx, cancel := context.WithCancel(t.Context())
					var running sync.WaitGroup
					defer running.Wait()
					defer cancel()
					var clients []*watchingClient
					for i := range 7 {
						c := &watchingClient{works: time.Duration(i) * 37 * time.Millisecond, received: map[int]time.Time{}, acked: map[int]time.Time{}}
						clients = append(clients, c)
						running.Go(func() { _ = c.run(ctx, ads, form, names) })
					}
					// One more leaves while the first change is on its way to it.
					gone, leave := context.WithCancel(ctx)
					defer leave()
					leaver := &watchingClient{works: time.Hour, received: map[int]time.Time{}, acked: map[int]time.Time{}}
					running.Go(func() { _ = leaver.run(gone, ads, form, names) })
					synctest.Wait()
					const changes = 8
					var sent []time.Time
					for n := range changes {
						sent = append(sent, time.Now())
						plane.changes <- n
						time.Sleep(61 * time.Millisecond)
						leave()
					}
					time.Sleep(5 * time.Second)
					synctest.Wait()

					sums, counts := measuredTimes(t, s.relay, false)
					for stage, times := range map[string]func(*watchingClient) map[int]time.Time{
						"sent":  func(c *watchingClient) map[int]time.Time { return c.received },
						"acked": func(c *watchingClient) map[int]time.Time { return c.acked },
					} {
						want := map[string]float64{}
						for n := range changes {
							var after []float64
							for _, c := range clients {
								after = append(after, times(c)[n].Sub(sent[n]).Seconds())
							}
							if n == 0 && stage == "sent" {
								after = append(after, 0) // who left
							}
							slices.Sort(after)
							want["first"] += after[0]
							want["median"] += after[(len(after)+1)/2-1]
							want["last"] += after[len(after)-1]
						}
						for client, sum := range want {
							key := stage + " " + client
							if counts[key] != changes {
								t.Errorf("%s: %v changes were measured, want %d", key, counts[key], changes)
							}
							if math.Abs(sums[key]-sum) > 1e-6 {
								t.Errorf("%s: the times are %v s altogether, clients note %v s", key, sums[key], sum)
							}
						}
					}
				})
			})
		}
	}
}

// The first clients that a change does not reach are an increase from 0, and not a counter that begins with their number.
func TestTheCountersOfClientsThatAreNotReachedBeginWithZero(t *testing.T) {
	s := startInMemory(t, `
listeners: [{address: "127.0.0.1:18000"}]
admin: {address: "127.0.0.1:19000"}
authorities: [{name: files, directory: `+t.TempDir()+`}]
`, nil)
	defer s.close()
	s.relay.changes.Measure(true)
	s.relay.changes.Begin(&propagation.Receipt{}, "files", xdstype.ClusterV3)
	for _, stage := range []string{"sent", "acked"} {
		want := fmt.Sprintf("xds_relay_propagation_not_reached_total{grpc_xds_authority=\"files\",grpc_xds_resource_type=\"envoy.config.cluster.v3.Cluster\",rollout=\"false\",stage=%q} 0\n", stage)
		if text := askAdmin(s.relay, "/metrics").Body.String(); !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
