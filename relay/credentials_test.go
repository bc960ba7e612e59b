package relay

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/xds-relay/xds-relay/certs/certtest"
	"github.com/xds-relay/xds-relay/testplane"
	"github.com/xds-relay/xds-relay/xdstype"
)

func writeFile(t *testing.T, dir, name string, data []byte) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// requestClusters subscribes to all clusters at a listener until the test ends.
func requestClusters(t *testing.T, address string) {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connectTo(t, address)).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "a"}, TypeUrl: xdstype.ClusterV3}); err != nil {
		t.Fatal(err)
	}
}

// A relay whose certificate has expired can serve nobody, until there is a new one.
func TestARelayWithAnExpiredCertificateIsNotReady(t *testing.T) {
	dir, ca := t.TempDir(), certtest.NewCA(t, "ca")
	expired := ca.Issue(t, certtest.Options{NotAfter: time.Now().Add(-time.Minute)})
	cert, key := writeFile(t, dir, "cert.pem", expired.Cert), writeFile(t, dir, "key.pem", expired.Key)
	r, _ := runRelay(t, fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0", tls: {cert_file: %s, key_file: %s}}]
admin: {address: "127.0.0.1:0"}
authorities: [{name: a, directory: %s}]
`, cert, key, dir), slog.New(slog.DiscardHandler))
	get := func(path string) (status int, text string) {
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
	expiry := func(p *certtest.Pair) string {
		return fmt.Sprintf("xds_relay_certificate_expiry_timestamp_seconds{path=%q,role=\"listener\"} %s\n", cert, strconv.FormatFloat(float64(p.TLS.Leaf.NotAfter.Unix()), 'g', -1, 64))
	}
	await(t, "not ready, with the reason", func() bool {
		status, text := get("/readyz")
		want := "not ready: the listener's certificate " + cert + " has expired at " + expired.TLS.Leaf.NotAfter.Format(time.RFC3339) + "\n"
		return status == http.StatusServiceUnavailable && text == want
	})
	if _, text := get("/metrics"); !strings.Contains(text, expiry(expired)) {
		t.Errorf("the metrics lack %s", expiry(expired))
	}

	next := ca.Issue(t, certtest.Loopback)
	writeFile(t, dir, "cert.pem", next.Cert)
	writeFile(t, dir, "key.pem", next.Key)
	await(t, "ready", func() bool {
		status, text := get("/readyz")
		return status == http.StatusOK && text == "ready\n"
	})
	if _, text := get("/metrics"); !strings.Contains(text, expiry(next)) {
		t.Errorf("the metrics lack %s", expiry(next))
	}
	writeFile(t, dir, "key.pem", nil)
	await(t, "a failure is counted", func() bool {
		_, text := get("/metrics")
		return strings.Contains(text, fmt.Sprintf("xds_relay_certificate_reload_failures_total{path=%q,role=\"listener\"} 1\n", cert))
	})
	if status, _ := get("/readyz"); status != http.StatusOK {
		t.Error("a broken file makes the relay not ready, though the last good one is in use")
	}
}

// await waits until is returns true.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	giveUp := time.After(15 * time.Second)
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

// tokenPlane is a control plane that gives the authorization of each stream or request, and has
// nothing to say.
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
			requestClusters(t, relay)
			if got := <-plane.seen; got != "Bearer eyJ.first" {
				t.Errorf("the first stream has %q", got)
			}
			writeFile(t, dir, "token", []byte("eyJ.second"))
			giveUp := time.After(15 * time.Second)
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
