package relay

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/upstream"
)

// relabelledPlane is a labelledPlane in memory that changes its label for later streams. Once, it pauses within a first
// answer.
type relabelledPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	*memoryServer

	now    atomic.Pointer[labelledPlane]
	pauses atomic.Bool
}

// pausing sends the resources of the first response in two parts.
type pausing struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	pauses *atomic.Bool
}

const pause = 1500 * time.Millisecond

// Send implements the stream.
func (p pausing) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	if len(r.Resources) > 1 && p.pauses.Swap(false) {
		first := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.TypeUrl, Nonce: "first part", Resources: r.Resources[:1]}
		if err := p.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(first); err != nil {
			return err
		}
		time.Sleep(pause)
		r.Resources = r.Resources[1:]
	}
	return p.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(r)
}

// DeltaAggregatedResources implements the aggregated service.
func (p *relabelledPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return p.now.Load().DeltaAggregatedResources(pausing{stream, &p.pauses})
}

// A control plane does not say when its answer to a wildcard is complete. So the relay removes missing members later,
// and twice as late as the control plane has ever paused. It keeps what it knows when a reload changes the authority's
// settings, and does not apply it to another server.
func TestWhatIsKnownOfAControlPlaneStaysOverAReload(t *testing.T) {
	const config = `
listeners: [{address: "127.0.0.1:18000"}]
authorities: [{name: a, servers: [{address: "plane:18000", protocol: delta}]}]
old_style_names: [{authority: a}]
`
	const known, unknown = 2 * pause, 2 * time.Second
	for _, tt := range []struct {
		name   string
		change []string // old and new texts
		waits  time.Duration
	}{
		{"the same connection, other settings", []string{"protocol: delta", "protocol: delta, backoff: {base: 50ms}"}, known},
		{"another connection to the same server", []string{"protocol: delta", "protocol: delta, keepalive: {time: 1m}"}, known},
		{"another authority of the same server", []string{"name: a,", "name: b,", "authority: a", "authority: b"}, unknown},
		{"another server", []string{"plane:18000", "other:18000"}, unknown},
		{"the same address, as somebody else", []string{"protocol: delta", "protocol: delta, tls: {}"}, unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plane := &relabelledPlane{memoryServer: &memoryServer{}}
				plane.ads = plane
				plane.now.Store(&labelledPlane{label: "first", members: []string{"m", "gone"}})
				plane.pauses.Store(true)
				plane.up()
				defer plane.down()
				serving := startInMemory(t, config, func(string) dialer { return plane.dial })
				defer serving.close()
				conn, _ := serving.dial(t)
				defer conn.Close()
				client := hold(t, conn, true, &corev3.Node{Id: "sotw"})
				defer client.end()
				began := time.Now()
				client.awaitHas(t, "at the start", map[string]string{"m": "first", "gone": "first"})
				if took := time.Since(began); took > pause+time.Second {
					t.Errorf("a client that has nothing waits for %v", took)
				}
				time.Sleep(time.Minute)
				plane.now.Store(&labelledPlane{label: "second", members: []string{"m"}})
				began = time.Now()
				serving.reload(t, strings.NewReplacer(tt.change...).Replace(config), plane.dial)
				client.awaitHas(t, "after the reload", map[string]string{"m": "second"})
				if took := time.Since(began); took < tt.waits || took > tt.waits+500*time.Millisecond {
					t.Errorf("the client waits for %v, want %v", took, tt.waits)
				}
				if _, _, _, ended := client.state(); ended != nil {
					t.Errorf("its stream has ended: %v", ended)
				}
			})
		})
	}
}

// reload gives a relay in memory another configuration with the same listener. dial is the dialer for servers to
// which it had no connection.
func (s *servedRelay) reload(t *testing.T, config string, dial dialer) {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	before := map[*sharedConn]bool{}
	for _, o := range s.relay.now().origins {
		for _, server := range o.servers {
			before[server.conn] = true
		}
	}
	g, err := s.relay.origins.newGeneration(parts{cfg: cfg, before: s.relay.now()})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range g.origins {
		for _, server := range o.servers {
			if before[server.conn] {
				continue
			}
			_ = server.conn.Close()
			server.conn.connection, err = upstream.Dial("passthrough:///"+server.config.Address, upstream.DialOptions{
				Extra: []grpc.DialOption{grpc.WithContextDialer(dial)},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	s.relay.commit(&planned{generation: g})
}
