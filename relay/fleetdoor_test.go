package relay

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/process"
)

// TestMembersServeEachOtherInAContainerWithAMemoryLimit: the peers' door refuses streams when memory is short, not
// whenever there is a limit.
func TestMembersServeEachOtherInAContainerWithAMemoryLimit(t *testing.T) {
	f := startFleetTest(t)
	memory := process.NewMemory(func() process.Usage { return process.Usage{Used: 100 << 20, Limit: 8 << 30} })
	for i := range f.relays {
		config := f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1]))
		f.relays[i], _ = runRelayWith(t, config, Options{Log: slog.New(slog.DiscardHandler), Memory: memory})
	}
	f.awaitShared()
	f.connect()
	if n := f.plane.opened(); n != fleetZones {
		t.Errorf("%d streams were opened, want one for each partition: %d", n, fleetZones)
	}
}

// TestOtherMembersGiveNamesOfOtherAuthorities: a control plane of two authorities may give names of one with those of the
// other, and a member passes them on.
func TestOtherMembersGiveNamesOfOtherAuthorities(t *testing.T) {
	f := startFleetTest(t)
	const foreign = "xdstp://b/envoy.config.cluster.v3.Cluster/x"
	f.plane = startLabelledPlane(t, "first", "m1", foreign)
	second := fmt.Sprintf(`}]}, {name: b, servers: [{address: "%s", protocol: delta}]}]`, f.plane.address)
	for i := range f.relays {
		config := f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1]))
		f.run(i, strings.Replace(config, "}]}]", second, 1))
	}
	f.awaitShared()
	for i := range f.relays {
		conn := connectTo(t, f.addresses[i])
		for zone := range fleetZones {
			c := hold(t, conn, false, &corev3.Node{Id: fmt.Sprintf("%d-%d", i, zone), Cluster: fmt.Sprint(zone)})
			c.awaitHas(t, "at the start", map[string]string{"m1": "first", foreign: "first"})
		}
	}
}

// TestMembersWhoseIDIsNoLongerThatOfTheFleetAreNotServed: also if they have come before the reload.
func TestMembersWhoseIDIsNoLongerThatOfTheFleetAreNotServed(t *testing.T) {
	f := startFleetTest(t)
	dir, ca := t.TempDir(), certtest.NewCA(t, "ca")
	pair := ca.Issue(t, certtest.Options{SPIFFEID: "spiffe://example.org/old"})
	tlsOf := func(id string) string {
		return fmt.Sprintf(`, tls: {cert_file: "%s", key_file: "%s", ca_file: "%s", server_id: "spiffe://example.org/%s"}`,
			writeFile(t, dir, "cert.pem", pair.Cert), writeFile(t, dir, "key.pem", pair.Key), writeFile(t, dir, "ca.pem", certtest.PEM(ca)), id)
	}
	f.run(0, f.config(0, "a", f.fleetOf(0, tlsOf("old"), f.peers[0])))
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(f.peers[0], grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
	})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(fleet.ForScope(conn, zoneScope(0))).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "x", Cluster: "0"}, TypeUrl: clusterTypeURL, ResourceNamesSubscribe: []string{"m1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: fleet.ServiceOf("edge")})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	f.mustReload(0, f.config(0, "a", f.fleetOf(0, tlsOf("new"), f.peers[0])))
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the stream of a scope has ended with %v", err)
	}
	for err == nil { // the relay is there until it has the other id
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("the health watch has ended with %v", err)
	}
}

// TestThePeersDoorHasLimitsOfItsOwn: nobody can use up the relay's descriptors there.
func TestThePeersDoorHasLimitsOfItsOwn(t *testing.T) {
	f := startFleetTest(t)
	cfg, err := configs.Parse("relay.yaml", []byte(f.config(0, "a", f.fleetOf(0, "", f.peers[0]))))
	if err != nil {
		t.Fatal(err)
	}
	f.run(0, f.config(0, "a", f.fleetOf(0, "", f.peers[0])))
	o := f.relays[0].listenerOptions(cfg, cfg.PeersListener())
	if l := o.Limits; l.Connections == 0 || l.ConnectionsPerSecond == 0 || o.ConnStreams == 0 {
		t.Errorf("the limits are %+v, and %d streams on a connection", l, o.ConnStreams)
	}
	if l := o.Limits; l.Streams != 0 || l.Scopes != 0 || l.Subscriptions != 0 || o.PerIdentity != (downstream.IdentityLimits{}) {
		t.Errorf("members have the limits of clients: %+v", l)
	}
}
