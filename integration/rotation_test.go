package integration

// Replacement of certificates, keys and CAs while clients are connected and others connect.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// rotated is a relay with mTLS to its clients and to its control plane, and what its clients have seen.
type rotated struct {
	*relay
	trusts *x509.CertPool                // the clients' CAs, for all certificates of the listener
	own    atomic.Pointer[certtest.Pair] // the certificate of clients that connect
	seen   watched[map[string]time.Time] // when a client first saw each certificate of the listener, by its name
}

// dial returns a connection, which connects at its first use.
func (r *rotated) dial() (*grpc.ClientConn, error) {
	own := r.own.Load()
	return grpc.NewClient(r.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs:      r.trusts,
		Certificates: []tls.Certificate{own.TLS},
		VerifyConnection: func(state tls.ConnectionState) error {
			name := state.PeerCertificates[0].Subject.CommonName
			r.seen.update(func(all *map[string]time.Time) {
				if _, known := (*all)[name]; !known {
					(*all)[name] = time.Now()
				}
			})
			return nil
		},
	})))
}

// connect opens a connection, sends an RPC, and closes the connection.
func (r *rotated) connect(ctx context.Context) error {
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

// openStream is a stream that stays open, on its own connection.
type openStream struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	values watched[[]string] // the received resources
	err    error             // why the stream ended; set before ended is closed
	ended  chan struct{}
}

// open opens a stream and subscribes to a name.
func (r *rotated) open(t *testing.T, i int, name string) *openStream {
	t.Helper()
	conn, err := r.dial()
	if err != nil {
		t.Fatal(err)
	}
	s := &openStream{ended: make(chan struct{})}
	if s.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node(fmt.Sprint(i), ""), TypeUrl: endpointType, ResourceNamesSubscribe: []string{name}}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		for {
			response, err := s.stream.Recv()
			if err != nil {
				s.err = err
				return
			}
			s.values.update(func(all *[]string) {
				for _, r := range response.GetResources() {
					*all = append(*all, string(r.GetResource().GetValue()))
				}
			})
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-s.ended })
	return s
}

// awaitValue waits until the newest resource on the stream is want.
func (s *openStream) awaitValue(t *testing.T, want string) {
	t.Helper()
	s.values.await(t, "the stream has the newest value", func(all *[]string) bool {
		select {
		case <-s.ended:
			return true
		default:
			return len(*all) > 0 && (*all)[len(*all)-1] == want
		}
	})
	select {
	case <-s.ended:
		t.Fatalf("a stream has ended: %v", s.err)
	default:
	}
}

// TestRotationFailsNoHandshakeAndEndsNoStream replaces the listener's certificate and its CA, the CA of
// clients, the relay's own certificate, and the CA of its control plane. Meanwhile no handshake fails and no
// stream ends.
func TestRotationFailsNoHandshakeAndEndsNoStream(t *testing.T) {
	const streams, connecting = 1000, 4
	front, front2 := certtest.NewCA(t, "front"), certtest.NewCA(t, "front 2")
	clients, clients2 := certtest.NewCA(t, "clients"), certtest.NewCA(t, "clients 2")
	planes, planes2 := certtest.NewCA(t, "planes"), certtest.NewCA(t, "planes 2")

	// The control plane accepts certificates of both CAs. Its own certificate is first one of the first CA.
	var planeCertificate atomic.Pointer[tls.Certificate]
	planeCertificate.Store(&issued(t, planes, "plane").TLS)
	var sawRelay watched[[]string] // the names of the relay's certificates that the control plane has seen
	cp := startControlPlane(t, delta)
	cp.stop()
	cp.options = []grpc.ServerOption{grpc.Creds(credentials.NewTLS(&tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return planeCertificate.Load(), nil },
		ClientAuth:     tls.RequireAndVerifyClientCert, ClientCAs: pool(planes, planes2),
		VerifyConnection: func(state tls.ConnectionState) error {
			sawRelay.update(func(all *[]string) { *all = append(*all, state.PeerCertificates[0].Subject.CommonName) })
			return nil
		},
	}))}
	cp.start()
	cp.set(plainEndpoints("backend", 1))

	listener, relayCert := issued(t, front, "listener 1"), issued(t, planes, "relay 1")
	toClients := mount(t, map[string][]byte{"tls.crt": listener.Cert, "tls.key": listener.Key, "ca.crt": certtest.PEM(clients)})
	toPlane := mount(t, map[string][]byte{"tls.crt": relayCert.Cert, "tls.key": relayCert.Key, "ca.crt": certtest.PEM(planes)})
	r := &rotated{trusts: pool(front, front2), seen: watched[map[string]time.Time]{value: map[string]time.Time{}}}
	r.own.Store(issued(t, clients, "client 1"))
	r.relay = startRelay(t, fmt.Sprintf(`
listeners:
  - address: 127.0.0.1:0
    tls: {cert_file: %s, key_file: %s, client_ca_file: %s}
    limits: {connections_per_second: 1000000}
admin: {address: "127.0.0.1:0"}
authorities:
  - name: cp.example.com
    servers:
      - address: %s
        backoff: {base: 20ms, max: 200ms}
        tls: {cert_file: %s, key_file: %s, ca_file: %s}
old_style_names: [{authority: cp.example.com}]
`, toClients.path("tls.crt"), toClients.path("tls.key"), toClients.path("ca.crt"), cp.address,
		toPlane.path("tls.crt"), toPlane.path("tls.key"), toPlane.path("ca.crt")))

	open := make([]*openStream, streams)
	for i := range open {
		open[i] = r.open(t, i, "backend")
	}
	expect := func(content uint32) {
		t.Helper()
		want := plainEndpoints("backend", content)
		cp.set(want)
		for _, s := range open {
			s.awaitValue(t, encode(want))
		}
	}
	expect(2)

	// Other clients connect all the time.
	ctx, stop := context.WithCancel(t.Context())
	var succeeded, failed atomic.Int64
	var running sync.WaitGroup
	var connects sync.RWMutex // read-locked by clients that connect
	for range connecting {
		running.Go(func() {
			for ctx.Err() == nil {
				connects.RLock()
				err := r.connect(t.Context())
				connects.RUnlock()
				if err != nil {
					failed.Add(1)
					t.Errorf("a new connection failed: %v", err)
				} else {
					succeeded.Add(1)
				}
			}
		})
	}
	// replaced waits until a new connection sees a certificate, and logs how long that took.
	replaced := func(name string, since time.Time) {
		t.Helper()
		var at time.Time
		r.seen.await(t, "a new connection sees "+name, func(all *map[string]time.Time) bool {
			at = (*all)[name]
			return !at.IsZero()
		})
		t.Logf("a client saw the certificate %s %s after its files were replaced", name, at.Sub(since).Round(time.Millisecond))
	}
	// connectMore waits until more clients have connected with the current certificates.
	connectMore := func() {
		t.Helper()
		const more = 40
		enough := succeeded.Load() + failed.Load() + connecting + more
		eventually(t, "more clients have connected", func() error {
			if n := enough - succeeded.Load() - failed.Load(); n > 0 {
				return fmt.Errorf("%d connections are missing", n)
			}
			return nil
		})
	}
	// accepted returns an error unless the listener accepts a client with this certificate.
	accepted := func(own *certtest.Pair) error {
		probe := &rotated{relay: r.relay, trusts: r.trusts, seen: watched[map[string]time.Time]{value: map[string]time.Time{}}}
		probe.own.Store(own)
		return probe.connect(t.Context())
	}

	// The listener's certificate: another one of the same CA, then one of another CA.
	for i, ca := range []*certtest.CA{front, front2} {
		name := fmt.Sprint("listener ", i+2)
		next := issued(t, ca, name)
		began := time.Now()
		toClients.update(t, map[string][]byte{"tls.crt": next.Cert, "tls.key": next.Key})
		replaced(name, began)
		connectMore()
	}

	// The CA of clients: the listener trusts both CAs, then clients get certificates of the new CA, then the
	// listener trusts only the new CA.
	old, next := r.own.Load(), issued(t, clients2, "client 2")
	toClients.update(t, map[string][]byte{"ca.crt": certtest.PEM(clients, clients2)})
	eventually(t, "the new CA is trusted", func() error { return accepted(next) })
	connects.Lock() // no client may be connecting with the old certificate
	r.own.Store(next)
	connects.Unlock()
	connectMore()
	toClients.update(t, map[string][]byte{"ca.crt": certtest.PEM(clients2)})
	eventually(t, "the old CA is not trusted", func() error {
		if accepted(old) == nil {
			return fmt.Errorf("the listener accepts a client of the old CA")
		}
		return nil
	})
	connectMore()
	expect(3)

	// The relay's own certificate and that of the control plane: both of another CA.
	relayCert = issued(t, planes2, "relay 2")
	toPlane.update(t, map[string][]byte{"tls.crt": relayCert.Cert, "tls.key": relayCert.Key, "ca.crt": certtest.PEM(planes, planes2)})
	r.awaitLog(t, `msg="read changed files" role=(upstream)`)
	r.awaitLog(t, `msg="read changed files" role=(ca) path="?`+toPlane.path("ca.crt"))
	planeCertificate.Store(&issued(t, planes2, "plane 2").TLS)
	cp.stop()
	cp.start()
	expect(4)
	sawRelay.read(func(all *[]string) {
		if last := (*all)[len(*all)-1]; last != "relay 2" {
			t.Errorf("the control plane saw the certificate %s, want relay 2", last)
		}
	})

	stop()
	running.Wait()
	t.Logf("%d new connections, %d failed; %d open streams", succeeded.Load(), failed.Load(), streams)
}
