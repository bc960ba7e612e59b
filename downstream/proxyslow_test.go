package downstream

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// dialWith returns a dialer whose connections begin with a header.
func (d *drained) dialWith(header string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := d.lis.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		_, err = io.WriteString(conn, header)
		return conn, err
	}
}

// Connections whose header does not come delay nobody, and are closed when the handshake has taken too long. What is
// counted by address counts by the header's.
func TestHeadersThatDoNotComeDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 50
		d := newDrained(t, ListenerOptions{
			Proxies:     func(net.Addr) bool { return true },
			PerIdentity: IdentityLimits{Streams: 1},
		})
		began := time.Now()
		ended := make(chan time.Duration, slow)
		var writing sync.WaitGroup
		defer writing.Wait()
		for i := range slow {
			conn, err := d.lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			writing.Go(func() { // a byte of the header each second, or nothing
				for header := v2(t, "192.0.2.1:1234", "192.0.2.2:443"); i%2 == 0 && header != ""; header = header[1:] {
					if _, err := io.WriteString(conn, header[:1]); err != nil {
						break
					}
					time.Sleep(time.Second)
				}
			})
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
				ended <- time.Since(began)
			}()
		}
		subscribe := func(client string) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
			conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(d.dialWith(v2(t, client, "192.0.2.2:443"))))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			s := openDelta(t, conn)
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return s
		}
		for _, client := range []string{"192.0.2.1:1", "192.0.2.3:1", "[2001:db8::1]:1"} {
			subscribe(client)
		}
		if n, took := d.server.Clients(), time.Since(began); n != 3 || took > 0 {
			t.Errorf("%d clients are served after %v", n, took)
		}
		if _, err := subscribe("192.0.2.1:2").Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a second stream of an address ends with %v", err)
		}
		for range slow {
			if took := <-ended; took != connectionSetup {
				t.Errorf("a connection without a header is closed after %v", took)
			}
		}
		synctest.Wait()
		if n := d.server.Clients(); n != 3 {
			t.Errorf("%d clients are left", n)
		}
	})
}
