package integration

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// oneWay is the latency in each direction to a server that is far away: a round trip takes 100 ms.
const oneWay = 50 * time.Millisecond

// startFarAway starts a TCP proxy that adds the latency of a server that is far away.
func startFarAway(t testing.TB, to string) (address string) {
	t.Helper()
	return acceptEach(t, func(front net.Conn) {
		defer front.Close()
		back, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer back.Close()
		var both sync.WaitGroup
		both.Go(func() { copyLate(front, back); _ = back.Close() })
		both.Go(func() { copyLate(back, front); _ = front.Close() })
		both.Wait()
	})
}

// copyLate copies each piece of data with a delay of oneWay, until from ends.
func copyLate(from io.Reader, to io.Writer) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	pieces := make(chan piece, 1<<10)
	var writing sync.WaitGroup
	writing.Go(func() {
		for p := range pieces {
			<-time.After(time.Until(p.due))
			_, _ = to.Write(p.bytes) // after an error, the other direction ends
		}
	})
	for buf := make([]byte, 32<<10); ; {
		n, err := from.Read(buf)
		if n > 0 {
			pieces <- piece{append([]byte(nil), buf[:n]...), time.Now().Add(oneWay)}
		}
		if err != nil {
			break
		}
	}
	close(pieces)
	writing.Wait()
}

// TestPrefetchSavesRoundTrips measures the time to the first RPC of a gRPC client, with a round trip of 100
// ms between relay and control plane. The client is next to the relay or has a round trip of 100 ms to it. It
// connects a first time, and again after the relay has dropped the resources. Without prefetching, each of
// the four levels of resources waits for the one before.
func TestPrefetchSavesRoundTrips(t *testing.T) {
	type result struct{ first, again time.Duration }
	var results watched[map[string]result]
	results.update(func(all *map[string]result) { *all = map[string]result{} })
	shop := startBackend(t, "shop")
	t.Run("measure", func(t *testing.T) {
		for _, far := range []bool{false, true} {
			for _, prefetch := range []bool{false, true} {
				name := fmt.Sprintf("far=%v prefetch=%v", far, prefetch)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					var r result
					r.first, r.again = timeToFirstRPC(t, shop, far, prefetch)
					results.update(func(all *map[string]result) { (*all)[name] = r })
				})
			}
		}
	})
	results.update(func(all *map[string]result) {
		of := *all
		for name, r := range of {
			t.Logf("%s: first %v, again %v", name, r.first.Round(time.Millisecond), r.again.Round(time.Millisecond))
		}
		saves := func(what string, without, with time.Duration, roundTrips float64) {
			t.Helper()
			// Half of the expected saving is enough, because the machine may be busy.
			if saved := without - with; saved < time.Duration(roundTrips*float64(oneWay)) {
				t.Errorf("%s: the first RPC took %v with prefetching, and %v without: want about %v round trips less", what, with, without, roundTrips)
			}
		}
		saves("far, first", of["far=true prefetch=false"].first, of["far=true prefetch=true"].first, 3)
		saves("near, again", of["far=false prefetch=false"].again, of["far=false prefetch=true"].again, 3)
		saves("far, again", of["far=true prefetch=false"].again, of["far=true prefetch=true"].again, 3)
	})
}

// timeToFirstRPC returns the time from a channel's start to its first RPC: the shortest of several
// measurements.
func timeToFirstRPC(t *testing.T, shop *backend, far, prefetch bool) (first, again time.Duration) {
	plane := startControlPlane(t, sotw, delta)
	r := startRelay(t, fmt.Sprintf(`
listeners: [{address: 127.0.0.1:0, prefetch: %v}]
admin: {address: 127.0.0.1:0}
authorities: [{name: cp.example.com, servers: [{address: %s}]}]
old_style_names: [{authority: cp.example.com}]
cache: {linger: 0s}
`, prefetch, startFarAway(t, plane.address)))
	address := r.address
	if far {
		address = startFarAway(t, address)
	}
	plane.set(plainCluster("other", ""))
	holdOther(t, r)
	first, again = time.Hour, time.Hour
	const times = 3
	for i := range times {
		name := fmt.Sprint("shop-", i)
		plane.set(apiListener(t, name, name+"-routes"), routeConfiguration(name+"-routes", routeTo(name+"-cluster", prefix(""))),
			edsCluster(name+"-cluster", name+"-endpoints"), endpointsAt(t, name+"-endpoints", shop.address))
		for _, took := range []*time.Duration{&first, &again} {
			b := bootstrapFor(r, "client")
			b.Servers[0].URI = address
			began := time.Now()
			c := dialXDS(t, b, "xds:///"+name)
			if _, err := c.call(someMethod); err != nil {
				t.Fatal(err)
			}
			*took = min(*took, time.Since(began))
			_ = c.Close()
			eventually(t, "the relay holds only the other client's resource", func() error {
				if text := fetch(t, "http://"+r.admin+"/metrics"); !strings.Contains(text, "\nxds_relay_cache_entries 1\n") {
					_, text, _ = strings.Cut(text, "\nxds_relay_cache_entries ")
					text, _, _ = strings.Cut(text, "\n")
					return fmt.Errorf("it holds %s resources", text)
				}
				return nil
			})
		}
	}
	return first, again
}

// holdOther connects a client that subscribes to another resource, so that the relay keeps its stream to the
// control plane.
func holdOther(t *testing.T, r *relay) {
	t.Helper()
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"other"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
}
