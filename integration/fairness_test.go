package integration

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Streams from one address do not wait behind 1,000 streams from another address: the relay serves them while
// most of the others still wait for admission.
func TestAnAddressWithManyStreamsInLineDelaysNoOther(t *testing.T) {
	const hogs, others, streams = 10, 3, 1000
	cp := startControlPlane(t, delta)
	cp.set(plainCluster("a", ""))
	config := strings.Replace(relayTo(cp.address, "delta"), "  - address: 127.0.0.1:0\n",
		"  - address: 127.0.0.1:0\n    admission: {streams_per_second: 20, burst: 1, wait: 2m}\n", 1)
	r := startRelay(t, config+"drain: {time: 0s}\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}} // on Linux, all of 127.0.0.0/8 is local
	for range hogs {
		conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range streams / hogs {
			s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
			if err != nil {
				t.Skipf("this system has no second loopback address: %v", err)
			}
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node("hog", ""), TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	waiting := func() (n int) {
		_, text, _ := strings.Cut(fetch(t, "http://"+r.admin+"/metrics"), "\nxds_relay_downstream_admission_waiting ")
		_, _ = fmt.Sscan(text, &n)
		return n
	}
	eventually(t, "many streams wait for admission", func() error {
		if n := waiting(); n < streams/2 {
			return fmt.Errorf("%d streams wait", n)
		}
		return nil
	})
	before := waiting()
	for i := range others {
		c := newClient(t, r, delta, node(fmt.Sprint("other-", i), ""))
		c.subscribe(clusterType, "a")
		c.awaitHas(t, "its cluster", plainCluster("a", ""))
	}
	if n := waiting(); n < before/2 {
		t.Errorf("of the hogs' streams, %d waited before the others came and %d wait after them: the others had to wait behind them", before, n)
	} else {
		t.Logf("the relay served %d streams while %d of %d streams from the other address waited", others, n, before)
	}
}
