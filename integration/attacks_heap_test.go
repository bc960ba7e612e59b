package integration

// The memory that an attack leaves behind.

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Go never frees the descriptor of a goroutine, and libraries keep what they allocate on first use. So the
// test measures the live heap before the attacks only after the relay has served many clients.
const (
	crowdConns   = 150
	crowdStreams = 6 // of each connection
)

// serveCrowd connects well-behaved clients of all kinds, nearly as many as the relay's limits allow, and
// disconnects them again.
func (at *target) serveCrowd(t *testing.T) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var crowd sync.WaitGroup
	served := make(chan struct{}, crowdConns*crowdStreams)
	for range crowdConns {
		conn := at.dial(ctx, t)
		for range crowdStreams {
			crowd.Go(func() {
				s := at.send(ctx, t, conn, ask(endpointType, canaryName))
				if s == nil {
					t.Error("a well-behaved client could not open a stream")
				} else if _, err := s.Recv(); err != nil {
					t.Errorf("a well-behaved client got the error %v", err)
				}
				served <- struct{}{}
				<-ctx.Done()
			})
		}
	}
	for range cap(served) {
		<-served
	}
	conn := at.dial(ctx, t)
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	if s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx); err != nil {
		t.Error(err)
	} else if err := s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: []string{canaryName}}); err != nil {
		t.Error(err)
	} else if _, err := s.Recv(); err != nil {
		t.Error(err)
	}
	rest := &http.Transport{TLSClientConfig: at.tls}
	defer rest.CloseIdleConnections()
	resp, err := (&http.Client{Transport: rest}).Post("https://"+at.rest+"/v3/discovery:endpoints", "application/json", strings.NewReader(`{"resource_names": ["`+canaryName+`"]}`))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	fetch(t, "http://"+at.relay.admin+"/clients")
	leave()
	crowd.Wait()
}

const (
	liveHeap   = "go_gc_heap_live_bytes"
	liveWithin = time.Minute
)

// settledLive returns the live heap after clients have left: the smallest of several measurements.
func (at *target) settledLive(t *testing.T) int {
	t.Helper()
	least := at.metric(t, liveHeap)
	for began := time.Now(); time.Since(began) < 4*time.Second; {
		least = min(least, at.metric(t, liveHeap))
	}
	return least
}

// awaitLive waits until the live heap in the relay's metrics is at most 20 % larger than before. Reading the
// metrics makes garbage, so Go runs collections during the wait.
func (at *target) awaitLive(t *testing.T, before int) {
	t.Helper()
	most := before + before/5
	for began := time.Now(); ; {
		now := at.metric(t, liveHeap)
		if now <= most {
			t.Logf("the live heap is %d KiB after %v, and was %d KiB", now>>10, time.Since(began).Round(time.Millisecond), before>>10)
			return
		}
		if time.Since(began) > liveWithin {
			t.Errorf("the live heap is %d KiB after %v, and was %d KiB: want 20 %% more at most", now>>10, liveWithin, before>>10)
			return
		}
	}
}

// metric returns the value of one of the relay's metrics.
func (at *target) metric(t *testing.T, name string) int {
	t.Helper()
	resp, err := at.metrics.Get("http://" + at.relay.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(body), "\n"+name+" ")
	var value float64
	if _, err := fmt.Sscan(rest, &value); !ok || err != nil {
		t.Fatalf("the relay has no metric %s", name)
	}
	return int(value)
}

// metricsClient requests uncompressed pages, because a compressor would be part of the measured heap.
func metricsClient(t *testing.T) *http.Client {
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}
