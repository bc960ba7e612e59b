package downstream

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// sizedRequest returns a request whose encoding has exactly so many bytes.
func sizedRequest(t *testing.T, form, typeURL string, size int) proto.Message {
	t.Helper()
	pad := size
	for range 3 { // the length's own length depends on it
		m := asking(form, typeURL, strings.Repeat("x", pad))
		if proto.Size(m) == size {
			return m
		}
		pad += size - proto.Size(m)
	}
	t.Fatalf("there is no request of %d bytes", size)
	return nil
}

// A request over max_request_bytes ends its stream, or is answered, with an error that names the limit. If it is far
// over the limit, gRPC reports the error and does not read the request.
func TestTheErrorOfARequestThatIsTooLongNamesTheLimit(t *testing.T) {
	const limit = 2000
	o := ListenerOptions{MaxRequestBytes: limit, V2: true}
	for _, call := range []struct {
		method, form, typeURL string
		gzip                  bool
	}{
		{method: adsMethods[deltaForm.name], form: deltaForm.name, typeURL: endpointType},
		{method: adsMethods[sotwForm.name], form: sotwForm.name, typeURL: endpointType},
		{method: adsMethods[sotwForm.name], form: sotwForm.name, typeURL: endpointType, gzip: true},
		{method: "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters", form: deltaForm.name, typeURL: clusterType},
		{method: "/envoy.service.discovery.v2.AggregatedDiscoveryService/DeltaAggregatedResources", form: deltaForm.name, typeURL: xdstype.ClusterV2},
		{method: "/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources", form: sotwForm.name, typeURL: xdstype.ClusterV2},
		{method: "/envoy.api.v2.ClusterDiscoveryService/StreamClusters", form: sotwForm.name, typeURL: xdstype.ClusterV2},
		{method: "/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters", form: formUnary, typeURL: clusterType},
		{method: "/envoy.api.v2.ClusterDiscoveryService/FetchClusters", form: formUnary, typeURL: xdstype.ClusterV2, gzip: true},
	} {
		ours := func(size int) string {
			return fmt.Sprintf("a request of %d bytes, but max_request_bytes is %d", size, limit)
		}
		for _, test := range []struct {
			size    int
			message string // empty for one that is taken
			counted uint64
		}{
			{limit, "", 0},
			{limit + 1, ours(limit + 1), 1},
			{100 * limit, ours(100 * limit), 1},
			{leastRead + 1, fmt.Sprintf("larger than max (%d vs. %d)", leastRead+1, leastRead), 1},
		} {
			if large := test.size > leastRead; large && strings.Contains(call.method, "v2") {
				continue // one of each form is enough
			}
			t.Run(fmt.Sprintf("%s gzip=%v %d", call.method, call.gzip, test.size), func(t *testing.T) {
				r := newBadRelay(t, Limits{}, o)
				m := serveInMemory(t, func(g *grpc.Server) { r.server.Register(g, o) }, ServerOptions(o)...)
				var options []grpc.CallOption
				if call.gzip {
					options = append(options, grpc.UseCompressor("gzip"))
				}
				req := sizedRequest(t, call.form, call.typeURL, test.size)
				var err error
				if call.form == formUnary {
					// Nothing has that name, so a request that is accepted gets that error.
					err = m.dial().Invoke(testContext(t), call.method, req, new(discoveryv3.DiscoveryResponse), options...)
				} else {
					g, opening := m.dial().NewStream(testContext(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, call.method, options...)
					if opening != nil {
						t.Fatal(opening)
					}
					_ = g.SendMsg(req) // that it was refused says ending
					if test.message == "" {
						eventually(t, "it is subscribed", func() bool { return r.subscriptions() == 2 })
						return
					}
					err = ending(g)
				}
				got := status.Convert(err)
				if test.message == "" {
					if got.Code() == codes.ResourceExhausted {
						t.Errorf("got %v", err)
					}
					return
				}
				if call.gzip && test.size > leastRead {
					test.message = "larger than max" // when it is decompressed, gRPC does not say how much it would be
				}
				if got.Code() != codes.ResourceExhausted || !strings.Contains(got.Message(), test.message) {
					t.Errorf("got %v, want RESOURCE_EXHAUSTED: %s", err, test.message)
				}
				// gRPC may end the stream before the relay hears of it.
				eventually(t, "it is counted", func() bool { return r.exceeded(limitRequestBytes) == test.counted })
				if lines := r.log.take(); len(lines) != 1 || !strings.Contains(lines[0], "limit=max_request_bytes") || !strings.Contains(lines[0], "client=") {
					t.Errorf("the log has %q", lines)
				}
			})
		}
	}
}
