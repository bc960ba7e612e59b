package integration

// A client that opens more streams than the relay admits.

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

const (
	floodPerSecond = 1700
	floodConns     = 8
	floodedFor     = 8 * time.Second
	// servedWithin is how long a client of another identity may take to be served, with its handshake.
	servedWithin = time.Second
)

// TestOneIdentityDoesNotKeepOthersInLine checks that clients of other identities are served at once while the clients of
// one certificate, at the same address, open three times as many streams as the relay admits; and that a client that is
// served already sees all updates.
func TestOneIdentityDoesNotKeepOthersInLine(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	ca := certtest.NewCA(t, "clients")
	at, dial := startSecure(t, cp, ca, "admission: {streams_per_second: 500}")
	watch := startCanary(t, cp, at.relay, startRelay(t, relayTo(cp.address, "delta")))
	watch.updates(t, 10)

	ctx, cancel := context.WithCancel(t.Context())
	var attacking sync.WaitGroup
	defer attacking.Wait()
	defer cancel()
	bad := issued(t, ca, "bad")
	for range floodConns {
		conn := dial(bad)
		attacking.Go(func() { at.openStreams(ctx, t, conn, floodPerSecond/floodConns, &attacking) })
	}
	eventually(t, "many streams wait in line", func() error {
		if n := at.metric(t, "xds_relay_downstream_admission_waiting"); n < 1000 {
			return fmt.Errorf("%d streams wait", n)
		}
		return nil
	})
	for i := range 10 {
		pair := issued(t, ca, fmt.Sprint("good-", i))
		began := time.Now()
		c := newClientOn(t, dial(pair), delta, node(fmt.Sprint("good-", i), ""))
		c.subscribe(endpointType, canaryName)
		c.awaitHas(t, "its endpoints", plainEndpoints(canaryName, watch.version))
		if took := time.Since(began); took > servedWithin && !raceDetector() {
			t.Errorf("client %d is served after %v, want at most %v", i, took, servedWithin)
		}
	}
	within, stop := context.WithTimeout(ctx, floodedFor)
	defer stop()
	seen := watch.watch(within, t)
	attacked, alone := seen.medians() // client, control planes and relays share the machine with the flood
	if most := 2*alone + mostSlower; attacked > most && !raceDetector() {
		t.Errorf("the canary's updates took %v, and %v without the attack: want at most %v", attacked, alone, most)
	}
	waiting, refused := at.metric(t, "xds_relay_downstream_admission_waiting"), at.metric(t, `xds_relay_downstream_admission_refused_total{reason="wait"}`)
	// Admission.Wait times the rate is 5000. A stream whose turn has come counts until its goroutine runs.
	if waiting > 5500 {
		t.Errorf("%d streams of one identity wait in line", waiting)
	}
	t.Logf("%d updates in %v, and in %v without the attack; %d streams wait, and %d were refused", len(seen), attacked, alone, waiting, refused)
}

// startSecure starts a relay with a second listener, for clients with certificates, that has more keys. dial connects a
// client to it.
func startSecure(t *testing.T, cp *controlPlane, ca *certtest.CA, keys string) (at *target, dial func(*certtest.Pair) *grpc.ClientConn) {
	server := issued(t, ca, "relay")
	dir := mount(t, map[string][]byte{"tls.crt": server.Cert, "tls.key": server.Key, "ca.crt": certtest.PEM(ca)})
	secure := strings.Replace(relayTo(cp.address, "delta"), "  - address: 127.0.0.1:0\n", fmt.Sprintf(`  - address: 127.0.0.1:0
  - address: 127.0.0.1:0
    tls: {cert_file: %s, key_file: %s, client_ca_file: %s}
    %s
`, dir.path("tls.crt"), dir.path("tls.key"), dir.path("ca.crt"), keys), 1)
	at = &target{relay: startRelay(t, secure), metrics: metricsClient(t)}
	at.grpc = at.relay.awaitSecond(t)
	return at, func(pair *certtest.Pair) *grpc.ClientConn {
		conn, err := grpc.NewClient(at.grpc, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: pool(ca), Certificates: []tls.Certificate{pair.TLS}, MinVersion: tls.VersionTLS12,
		})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

// TestStreamsWithoutRequestsKeepNoOneInLine checks that clients of other identities are served at once, with the default
// admission, while an identity opens streams on which it sends no request, and so is sent no first answer.
func TestStreamsWithoutRequestsKeepNoOneInLine(t *testing.T) {
	t.Parallel()
	const silent, good = 4000, 20
	cp := startControlPlane(t, delta)
	cp.set(plainEndpoints("a", 1))
	ca := certtest.NewCA(t, "clients")
	at, dial := startSecure(t, cp, ca, "")
	ctx, cancel := context.WithCancel(t.Context())
	var attacking sync.WaitGroup
	defer attacking.Wait()
	defer cancel()
	bad := issued(t, ca, "bad")
	for range floodConns {
		conn := dial(bad)
		attacking.Go(func() {
			for range silent / floodConns {
				at.send(ctx, t, conn)
			}
		})
	}
	for i := range good {
		pair := issued(t, ca, fmt.Sprint("good-", i))
		began := time.Now()
		c := newClientOn(t, dial(pair), delta, node(fmt.Sprint("good-", i), ""))
		c.subscribe(endpointType, "a")
		c.awaitHas(t, "its endpoints", plainEndpoints("a", 1))
		if took := time.Since(began); took > servedWithin && !raceDetector() {
			t.Errorf("client %d is served after %v, want at most %v", i, took, servedWithin)
		}
	}
	eventually(t, "all streams are admitted", func() error {
		if n := at.metric(t, "xds_relay_downstream_streams"); n < silent {
			return fmt.Errorf("%d streams are open", n)
		}
		if n := at.metric(t, "xds_relay_downstream_admission_waiting"); n > 0 {
			return fmt.Errorf("%d streams wait", n)
		}
		return nil
	})
	if waited, refused := at.metric(t, "xds_relay_downstream_admission_waited_total"), at.metric(t, `xds_relay_downstream_admission_refused_total{reason="wait"}`); waited == 0 || refused > 0 {
		t.Errorf("%d streams had to wait, and %d were refused", waited, refused)
	}
}

// openStreams opens streams on a connection at a steady rate until ctx ends. Each stream ends when it was served or refused.
func (at *target) openStreams(ctx context.Context, t *testing.T, conn *grpc.ClientConn, perSecond int, streams *sync.WaitGroup) {
	pace := time.NewTicker(time.Second / time.Duration(perSecond))
	defer pace.Stop()
	for ; ctx.Err() == nil; <-pace.C {
		streams.Go(func() {
			ctx, end := context.WithCancel(ctx)
			defer end()
			if s := at.send(ctx, t, conn, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{canaryName}}); s != nil {
				_, _ = s.Recv() // the answer, or why it was refused
			}
		})
	}
}
