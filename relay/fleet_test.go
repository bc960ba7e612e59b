package relay

import (
	"context"
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
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/internal/fleet"
)

// fleetTest are two relays in front of a control plane, and clients of both in some partitions. The relays are in a
// fleet as their configurations say.
type fleetTest struct {
	*testing.T
	plane     *labelledPlane
	relays    [2]*Relay
	clients   []*holder
	addresses [2]string // of the listeners for clients
	peers     [2]string // for each other
}

const fleetZones = 8

func (f *fleetTest) config(i int, authority, fleet string) string {
	return fmt.Sprintf(`
listeners: [{address: "%s"}]
node: {id: relay-%d}
authorities: [{name: %s, servers: [{address: "%s", protocol: delta}]}]
old_style_names: [{authority: %s, partition: node.cluster}]
drain: {time: 0s}
%s`, f.addresses[i], i, authority, f.plane.address, authority, fleet)
}

// fleetOf returns a configuration of a fleet with these members. more are further keys.
func (f *fleetTest) fleetOf(i int, more string, members ...string) string {
	return fmt.Sprintf(`fleet: {name: edge, listen: "%s", members: {static: ["%s"]}%s}`, f.peers[i], strings.Join(members, `", "`), more)
}

func startFleetTest(t *testing.T) *fleetTest {
	t.Helper()
	f := &fleetTest{T: t, plane: startLabelledPlane(t, "first", "m1", "m2")}
	for i := range f.relays {
		f.addresses[i], f.peers[i] = freeAddress(t), freeAddress(t)
	}
	return f
}

// run starts a relay.
func (f *fleetTest) run(i int, config string) {
	f.Helper()
	f.relays[i], _ = runRelay(f.T, config, slog.New(slog.DiscardHandler))
}

func (f *fleetTest) mustReload(i int, config string) {
	f.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte(config))
	if err == nil {
		err = f.relays[i].Reload(f.Context(), cfg)
	}
	if err != nil {
		f.Fatal(err)
	}
}

// connect connects clients of all partitions to both relays, and waits until they have everything.
func (f *fleetTest) connect() {
	f.Helper()
	for i := range f.relays {
		conn := connectTo(f.T, f.addresses[i])
		for zone := range fleetZones {
			c := hold(f.T, conn, zone%2 == 0, &corev3.Node{Id: fmt.Sprintf("%d-%d", i, zone), Cluster: fmt.Sprint(zone)})
			f.clients = append(f.clients, c)
		}
	}
	f.awaitLabel("at the start", "first")
}

func (f *fleetTest) awaitLabel(when, label string) {
	f.Helper()
	for _, c := range f.clients {
		c.awaitHas(f.T, when, map[string]string{"m1": label, "m2": label})
		c.mustBeOpen(f.T, when)
	}
}

// zone returns the scope of a partition.
func zoneScope(zone int) cache.Scope {
	return cache.Scope{Authority: "a", Partition: fmt.Sprint(zone), OldStyle: true}
}

// routed returns how many of the partitions come to a relay from another member.
func (f *fleetTest) routed(i int) (n int) {
	m := f.relays[i].fleet.Load()
	if m == nil {
		return 0
	}
	for zone := range fleetZones {
		if from, _ := m.Route(zoneScope(zone)); from != nil {
			n++
		}
	}
	return n
}

// awaitShared waits until each partition comes to exactly one relay from the other one.
func (f *fleetTest) awaitShared() {
	f.Helper()
	await(f.T, "the relays know each other", func() bool {
		return f.routed(0)+f.routed(1) == fleetZones && f.routed(0) > 0 && f.routed(1) > 0
	})
}

func TestTheListOfMembersIsReloaded(t *testing.T) {
	f := startFleetTest(t)
	both := func(i int) string { return f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1])) }
	for i := range f.relays {
		f.run(i, f.config(i, "a", f.fleetOf(i, "", f.peers[i])))
	}
	f.connect()
	if n := f.plane.opened(); n != 2*fleetZones {
		t.Errorf("%d streams were opened, want %d: the relays do not know each other", n, 2*fleetZones)
	}
	for i := range f.relays {
		f.mustReload(i, both(i))
	}
	f.awaitShared()
	for i := range f.relays {
		await(t, "scopes have moved", func() bool { return f.moved(i) == f.routed(i) })
	}
	before := f.plane.opened()
	f.awaitLabel("in a fleet", "first")
	if before != 2*fleetZones {
		t.Errorf("%d streams were opened, want none for the fleet", before-2*fleetZones)
	}
	f.mustReload(0, f.config(0, "a", ""))
	f.mustReload(1, f.config(1, "a", ""))
	for i := range f.relays {
		await(t, "scopes have moved back", func() bool { return f.moved(i) == 0 })
	}
	await(t, "each relay has its streams again", func() bool { return f.plane.opened() == before+fleetZones })
	f.awaitLabel("without a fleet", "first")
}

// TestARelayFindsItselfAmongTheMembers: the list may have another name of the relay than the address at which it listens.
func TestARelayFindsItselfAmongTheMembers(t *testing.T) {
	f := startFleetTest(t)
	var named []string
	for _, address := range f.peers {
		named = append(named, strings.Replace(address, "127.0.0.1", "localhost", 1))
	}
	for i := range f.relays {
		f.run(i, f.config(i, "a", f.fleetOf(i, "", named...)))
	}
	f.awaitShared()
	f.connect()
	if n := f.plane.opened(); n != fleetZones {
		t.Errorf("%d streams were opened, want one for each partition: %d", n, fleetZones)
	}
	for i := range f.relays {
		if moved := f.moved(i); moved != f.routed(i) {
			t.Errorf("relay %d has %d partitions from another one, want %d", i, moved, f.routed(i))
		}
	}
	for i, r := range f.relays {
		s := r.fleetStatus()
		if s.Name != "edge" || s.Alone || s.Problem != "" || s.OwnedScopes != fleetZones-f.routed(i) || s.PeerScopes != f.routed(i) || len(s.Members) != 2 {
			t.Errorf("relay %d says %+v", i, s)
		}
		for _, m := range s.Members {
			if self := m.Address == named[i]; !m.Reachable || m.Self != self {
				t.Errorf("relay %d says of a member %+v", i, m)
			}
		}
		metrics := askAdmin(r, "/metrics").Body.String()
		for _, want := range []string{"members 2", "alone 0", fmt.Sprint("owned_scopes ", s.OwnedScopes), fmt.Sprint("peer_scopes ", s.PeerScopes), "handovers_total 0"} {
			if !strings.Contains(metrics, "\nxds_relay_fleet_"+want+"\n") {
				t.Errorf("relay %d has no metric xds_relay_fleet_%s", i, want)
			}
		}
	}
}

// moved returns how many partitions a relay gets from the other one.
func (f *fleetTest) moved(i int) (n int) {
	s := f.relays[i].scopes
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.sources {
		if strings.Contains(of.fingerprint, routed) && of.source != nil {
			n++
		}
	}
	return n
}

// TestAScopeThatAMemberRefusesComesFromTheServers: the members' configurations may differ for a while.
func TestAScopeThatAMemberRefusesComesFromTheServers(t *testing.T) {
	f := startFleetTest(t)
	for i, authority := range []string{"a", "b"} {
		f.run(i, f.config(i, authority, f.fleetOf(i, "", f.peers[0], f.peers[1])))
	}
	await(t, "the relays know each other", func() bool { return f.routed(0) > 0 && f.routed(1) > 0 })
	f.connect()
	if n := f.plane.opened(); n != 2*fleetZones {
		t.Errorf("%d streams were opened, want %d", n, 2*fleetZones)
	}
}

// TestAMemberThatLosesAnAuthorityTakesNothingAway: clients of other members get neither errors nor removals.
func TestAMemberThatLosesAnAuthorityTakesNothingAway(t *testing.T) {
	f := startFleetTest(t)
	for i := range f.relays {
		f.run(i, f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1])))
	}
	f.awaitShared()
	f.connect()
	if n := f.plane.opened(); n != fleetZones {
		t.Errorf("%d streams were opened, want one for each partition: %d", n, fleetZones)
	}
	f.mustReload(1, f.config(1, "b", f.fleetOf(1, "", f.peers[0], f.peers[1])))
	await(t, "scopes have moved", func() bool { return f.moved(0) == 0 })
	for _, c := range f.clients[:fleetZones] {
		c.mustBeOpen(t, "the other relay has lost the authority")
		if has, errors, removed, _ := c.state(); len(has) != 2 || len(removed) > 0 || len(errors) > 0 {
			t.Errorf("a client has %v, removed %v, errors %v", has, removed, errors)
		}
	}
}

func TestOnlyMembersAreServedAtThePeersDoor(t *testing.T) {
	f := startFleetTest(t)
	dir, ca := t.TempDir(), certtest.NewCA(t, "ca")
	files := func(name string, p *certtest.Pair) (cert, key string) {
		return writeFile(t, dir, name+".pem", p.Cert), writeFile(t, dir, name+"-key.pem", p.Key)
	}
	const id = "spiffe://example.org/xds-relay"
	cert, key := files("peer", ca.Issue(t, certtest.Options{SPIFFEID: id}))
	strangerCert, strangerKey := files("stranger", ca.Issue(t, certtest.Options{SPIFFEID: "spiffe://example.org/gateway"}))
	secure := fmt.Sprintf(`, tls: {cert_file: "%s", key_file: "%s", ca_file: "%s", server_id: "%s"}`, cert, key, writeFile(t, dir, "ca.pem", certtest.PEM(ca)), id)
	for i := range f.relays {
		f.run(i, f.config(i, "a", f.fleetOf(i, secure, f.peers[0], f.peers[1])))
	}
	f.awaitShared()
	f.connect()
	if n := f.plane.opened(); n != fleetZones {
		t.Errorf("%d streams were opened, want one for each partition: %d", n, fleetZones)
	}

	dial := func(cert, key string) *grpc.ClientConn {
		creds := insecure.NewCredentials()
		if cert != "" {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			creds = credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
		}
		conn, err := grpc.NewClient(f.peers[0], grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	deltaADS := func(conn grpc.ClientConnInterface) error {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
		if err == nil {
			_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}) // Recv has the error
			_, err = stream.Recv()
		}
		return err
	}
	sotwADS := func(conn grpc.ClientConnInterface) error {
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	check := func(conn grpc.ClientConnInterface) error {
		_, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: fleet.ServiceOf("edge")})
		return err
	}
	member, stranger, nobody := dial(cert, key), dial(strangerCert, strangerKey), dial("", "")
	for _, tt := range []struct {
		name string
		conn grpc.ClientConnInterface
		call func(grpc.ClientConnInterface) error
		want codes.Code
	}{
		{"a member's check", member, check, codes.OK},
		{"a member's scope", fleet.ForScope(member, zoneScope(0)), deltaADS, codes.OK},
		{"a member without a scope", member, deltaADS, codes.InvalidArgument},
		{"a scope of nobody", fleet.ForScope(member, cache.Scope{Authority: "z"}), deltaADS, codes.FailedPrecondition},
		{"a member in SotW", fleet.ForScope(member, zoneScope(0)), sotwADS, codes.Unimplemented},
		{"another id", fleet.ForScope(stranger, zoneScope(0)), deltaADS, codes.PermissionDenied},
		{"another id's check", stranger, check, codes.PermissionDenied},
		{"no certificate", fleet.ForScope(nobody, zoneScope(0)), deltaADS, codes.Unavailable},
	} {
		if got := status.Code(tt.call(tt.conn)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
