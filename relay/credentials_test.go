package relay

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// ask requests a path of the admin listener.
func ask(t *testing.T, r *Relay, path string) (status int, text string) {
	t.Helper()
	resp, err := http.Get("http://" + r.AdminAddress() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func writeFile(t *testing.T, dir, name string, data []byte) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// requestClusters subscribes to all clusters until the test ends.
func requestClusters(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "a"}, TypeUrl: xdstype.ClusterV3}); err != nil {
		t.Fatal(err)
	}
}

// A relay whose certificate has expired cannot serve clients until it has a new one.
func TestARelayWithAnExpiredCertificateIsNotReady(t *testing.T) {
	dir, ca := t.TempDir(), certtest.NewCA(t, "ca")
	expired := ca.Issue(t, certtest.Options{NotAfter: time.Now().Add(-time.Minute)})
	cert, key := writeFile(t, dir, "cert.pem", expired.Cert), writeFile(t, dir, "key.pem", expired.Key)
	r, _ := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0", tls: {cert_file: %s, key_file: %s}}]
admin: {address: "127.0.0.1:0"}
authorities: [{name: a, directory: %s}]
`, cert, key, dir), slog.New(slog.DiscardHandler))
	expiry := func(p *certtest.Pair) string {
		return fmt.Sprintf("xds_relay_certificate_expiry_timestamp_seconds{path=%q,role=\"listener\"} %s\n", cert, strconv.FormatFloat(float64(p.TLS.Leaf.NotAfter.Unix()), 'g', -1, 64))
	}
	await(t, "not ready, with the reason", func() bool {
		status, text := ask(t, r, "/readyz")
		want := "not ready: the listener's certificate " + cert + " has expired at " + expired.TLS.Leaf.NotAfter.Format(time.RFC3339) + "\n"
		return status == http.StatusServiceUnavailable && text == want
	})
	if _, text := ask(t, r, "/metrics"); !strings.Contains(text, expiry(expired)) {
		t.Errorf("the metrics lack %s", expiry(expired))
	}

	next := ca.Issue(t, certtest.Loopback)
	writeFile(t, dir, "cert.pem", next.Cert)
	writeFile(t, dir, "key.pem", next.Key)
	await(t, "ready", func() bool {
		status, text := ask(t, r, "/readyz")
		return status == http.StatusOK && text == "ready\n"
	})
	if _, text := ask(t, r, "/metrics"); !strings.Contains(text, expiry(next)) {
		t.Errorf("the metrics lack %s", expiry(next))
	}
	// The two files may have been read when only one of them was written, and a file while it is empty.
	failures := regexp.MustCompile(fmt.Sprintf(`xds_relay_certificate_reload_failures_total\{path=%s,role="listener"\} (\d+)\n`, regexp.QuoteMeta(strconv.Quote(cert))))
	counted := func() int {
		_, text := ask(t, r, "/metrics")
		if is := failures.FindStringSubmatch(text); is != nil {
			n, _ := strconv.Atoi(is[1])
			return n
		}
		t.Fatalf("the metrics lack %s", failures)
		return 0
	}
	before := counted()
	writeFile(t, dir, "key.pem", nil)
	await(t, "a failure is counted", func() bool { return counted() > before })
	if status, _ := ask(t, r, "/readyz"); status != http.StatusOK {
		t.Error("a broken file makes the relay not ready, though the last good one is in use")
	}
}

// await waits until is returns true.
func await(t testing.TB, what string, is func() bool) {
	t.Helper()
	giveUp := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-giveUp:
			t.Fatalf("%s: not so far", what)
		}
	}
}

// tokenPlane is a control plane that records the authorization of each stream or request, and sends nothing.
type tokenPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	seen chan string   // by each stream or request
	end  chan struct{} // ends a stream
}

// DeltaAggregatedResources implements discoveryv3.AggregatedDiscoveryServiceServer.
func (p *tokenPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	p.seen <- strings.Join(metadata.ValueFromIncomingContext(stream.Context(), "authorization"), ",")
	select {
	case <-p.end:
	case <-stream.Context().Done():
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (p *tokenPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.seen <- strings.Join(r.Header.Values("Authorization"), ",")
	w.WriteHeader(http.StatusNotModified)
}

func TestNewStreamsAndRequestsHaveTheNewestToken(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	for _, protocol := range []string{"delta", "rest"} {
		t.Run(protocol, func(t *testing.T) {
			dir, own := t.TempDir(), ca.Issue(t, certtest.Loopback)
			token := writeFile(t, dir, "token", []byte("eyJ.first\n"))
			plane := &tokenPlane{seen: make(chan string, 100), end: make(chan struct{})}
			var address string
			if protocol == "delta" {
				address = testplane.Listen(t, plane, grpc.Creds(credentials.NewServerTLSFromCert(&own.TLS)))
			} else {
				s := httptest.NewUnstartedServer(plane)
				s.TLS = &tls.Config{Certificates: []tls.Certificate{own.TLS}}
				s.StartTLS()
				t.Cleanup(s.Close)
				address = s.Listener.Addr().(*net.TCPAddr).String()
			}
			_, relay := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0"}]
authorities:
  - name: a
    servers:
      - address: %q
        protocol: %s
        backoff: {base: 1ms, max: 1ms}
        tls: {ca_file: %s}
        token_file: %s
%s
old_style_names: [{authority: a}]
`, address, protocol, writeFile(t, dir, "ca.pem", certtest.PEM(ca)), token, map[string]string{"rest": "        poll_interval: 100ms"}[protocol]), slog.New(slog.DiscardHandler))
			requestClusters(t, connectTo(t, relay))
			if got := <-plane.seen; got != "Bearer eyJ.first" {
				t.Errorf("the first stream has %q", got)
			}
			writeFile(t, dir, "token", []byte("eyJ.second"))
			giveUp := time.After(time.Minute)
			for {
				select {
				case plane.end <- struct{}{}: // the relay connects again, perhaps before it has read the file
				case got := <-plane.seen:
					if got == "Bearer eyJ.first" {
						continue
					}
					if got != "Bearer eyJ.second" {
						t.Errorf("a later stream has %q", got)
					}
					return
				case <-giveUp:
					t.Fatal("no stream has the new token")
				}
			}
		})
	}
}

// spiffePlane is a control plane that records the SPIFFE ID of the client of each stream, and sends nothing.
type spiffePlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	seen chan string
}

// DeltaAggregatedResources implements discoveryv3.AggregatedDiscoveryServiceServer.
func (p *spiffePlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	id := ""
	if from, ok := grpcpeer.FromContext(stream.Context()); ok {
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && info.SPIFFEID != nil {
			id = info.SPIFFEID.String()
		}
	}
	p.seen <- id
	<-stream.Context().Done()
	return nil
}

// The relay starts without its SPIFFE agent, and serves once the agent is there.
func TestARelayHasItsIdentityFromASPIFFEAgent(t *testing.T) {
	const relayID, planeID = "spiffe://example.org/relay", "spiffe://example.org/plane"
	ca := certtest.NewCA(t, "example.org")
	agent, socket := certtest.NewAgent(), filepath.Join(t.TempDir(), "agent.sock")
	own := ca.Issue(t, certtest.Options{SPIFFEID: planeID})
	plane := &spiffePlane{seen: make(chan string, 100)}
	address := testplane.Listen(t, plane, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{own.TLS}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	})))
	r, listener := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0", tls: {spiffe: {workload_api: "unix:%[1]s"}}}]
admin: {address: "127.0.0.1:0"}
authorities:
  - name: a
    servers:
      - address: %[2]q
        tls: {spiffe: {workload_api: "unix:%[1]s"}, server_id: %[3]s}
old_style_names: [{authority: a}]
`, socket, address, planeID), slog.New(slog.DiscardHandler))
	ready := func() (text string) {
		_, text = ask(t, r, "/readyz")
		return text
	}
	await(t, "what the relay waits for", func() bool {
		return ready() == "not ready: the SPIFFE agent unix:"+socket+" has not sent the listener's certificate yet\n"
	})
	agent.Issue(t, relayID, ca, nil)
	agent.Serve(t, socket)
	await(t, "ready", func() bool { return ready() == "ready\n" })

	client := ca.Issue(t, certtest.Options{SPIFFEID: "spiffe://example.org/client"})
	conn, err := grpc.NewClient(listener, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates:       []tls.Certificate{client.TLS},
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if got := state.PeerCertificates[0].URIs[0].String(); got != relayID {
				t.Errorf("the listener is %s, want %s", got, relayID)
			}
			return nil
		},
	})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	requestClusters(t, conn)
	if got := <-plane.seen; got != relayID {
		t.Errorf("the control plane sees %q, want %s", got, relayID)
	}
	if _, text := ask(t, r, "/metrics"); !strings.Contains(text, fmt.Sprintf("xds_relay_certificate_expiry_timestamp_seconds{path=%q,role=\"listener\"}", "unix:"+socket)) {
		t.Error("the metrics lack the expiry of the SVID")
	}
}

// Over REST, connections use the newest files, too: those of clients, and those to servers.
func TestRESTConnectionsTakeTheNewestFiles(t *testing.T) {
	old, next := certtest.NewCA(t, "old"), certtest.NewCA(t, "next")
	dir := t.TempDir()
	write := func(ca *certtest.CA) (leaf *x509.Certificate) {
		pair := ca.Issue(t, certtest.Loopback)
		writeFile(t, dir, "cert.pem", pair.Cert)
		writeFile(t, dir, "key.pem", pair.Key)
		writeFile(t, dir, "ca.pem", certtest.PEM(ca))
		return pair.TLS.Leaf
	}
	first := write(old)
	var server atomic.Pointer[tls.Certificate]
	server.Store(&old.Issue(t, certtest.Loopback).TLS)
	polled := make(chan *x509.Certificate, 100)
	plane := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		polled <- r.TLS.PeerCertificates[0]
		w.Header().Set("Connection", "close") // so that each poll shakes hands
		w.WriteHeader(http.StatusNotModified)
	}))
	plane.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*server.Load()}, ClientAuth: tls.RequireAnyClientCert}, nil
	}}
	plane.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	plane.StartTLS()
	t.Cleanup(plane.Close)
	_, listener := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0", protocol: rest, long_poll: 1ms, tls: {cert_file: %[1]s/cert.pem, key_file: %[1]s/key.pem, client_ca_file: %[1]s/ca.pem}}]
authorities:
  - name: a
    servers:
      - address: %[2]q
        protocol: rest
        poll_interval: 100ms
        backoff: {base: 1ms, max: 1ms}
        tls: {cert_file: %[1]s/cert.pem, key_file: %[1]s/key.pem, ca_file: %[1]s/ca.pem}
old_style_names: [{authority: a}]
`, dir, plane.Listener.Addr()), slog.New(slog.DiscardHandler))

	// request makes a request on a new connection, and returns the listener's certificate.
	request := func(own *certtest.Pair) (*x509.Certificate, error) {
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify:   true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own.TLS, nil },
		}}
		resp, err := (&http.Client{Transport: transport}).Post("https://"+listener+"/v3/discovery:clusters", "application/json", strings.NewReader(`{"node": {"id": "a"}}`))
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.TLS.PeerCertificates[0], nil
	}
	expect := func(own *certtest.Pair, leaf *x509.Certificate) {
		t.Helper()
		await(t, "a request sees the listener's newest certificate", func() bool {
			seen, err := request(own)
			return err == nil && seen.Equal(leaf)
		})
		giveUp := time.After(time.Minute)
		for {
			select {
			case seen := <-polled:
				if seen.Equal(leaf) {
					return
				}
			case <-giveUp:
				t.Fatal("the control plane does not see the relay's newest certificate")
			}
		}
	}
	own := old.Issue(t, certtest.Options{})
	expect(own, first)
	second := write(next)
	server.Store(&next.Issue(t, certtest.Loopback).TLS)
	expect(next.Issue(t, certtest.Options{}), second)
	if _, err := request(own); err == nil {
		t.Error("a client of the old CA is accepted")
	}
}
