package interop

// Clients that authenticate to the relay: with a certificate, and with a token in gRPC's call credentials.

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// proof has the address, the credentials and the first request with which a client opens a stream.
type proof struct {
	Address string `json:"address"`
	CA      string `json:"ca"`             // this and the next two are files
	Cert    string `json:"cert,omitempty"` // no certificate if empty
	Key     string `json:"key,omitempty"`
	Token   string `json:"token,omitempty"`
	Request string `json:"request"` // in hexadecimal
}

// event is an event of a stream: a response, of which it has the length, or the end.
type event struct {
	Received int        `json:"received"`
	Ended    codes.Code `json:"ended"`
	Details  string     `json:"details"`
}

// prover is a kind of client that authenticates. open opens a stream, and returns a channel with the stream's
// events.
type prover struct {
	name    string
	prepare func() error
	open    func(testing.TB, proof) <-chan event
}

// prepared skips the test if the client cannot run here. In CI, it fails the test.
func (p prover) prepared(t testing.TB) {
	t.Helper()
	if err := p.prepare(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s cannot run: %v", p.name, err)
		}
		t.Skipf("%s is skipped: %v", p.name, err)
	}
}

var provers = []prover{
	{"grpc-go", always, openGo},
	{"grpc-js", prepareNode, openBy("grpc-js", "node", "grpcjs/stream.js")},
	{"C++ core", preparePython, openBy("the C++ core", python, "python/stream.py")},
}

// openBy returns an open function for a client in another language.
func openBy(name string, command ...string) func(testing.TB, proof) <-chan event {
	return func(t testing.TB, p proof) <-chan event {
		t.Helper()
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(command[0], append(command[1:], string(text))...)
		lines, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		start(t, name, cmd, os.Kill)
		events := make(chan event, 10)
		go func() {
			defer close(events)
			readEvents(lines, events)
		}()
		return events
	}
}

func readEvents(lines io.Reader, events chan<- event) {
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			e = event{Ended: codes.Unknown, Details: fmt.Sprintf("%q is no event: %v", scanner.Text(), err)}
		}
		events <- e
	}
}

// bearer implements gRPC's call credentials with a token.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return true }

func openGo(t testing.TB, p proof) <-chan event {
	t.Helper()
	ca, err := os.ReadFile(p.CA)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AppendCertsFromPEM(ca)
	if p.Cert != "" {
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	o := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}
	if p.Token != "" {
		o = append(o, grpc.WithPerRPCCredentials(bearer(p.Token)))
	}
	conn, err := grpc.NewClient(p.Address, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	request, err := hex.DecodeString(p.Request)
	if err != nil {
		t.Fatal(err)
	}
	var r discoveryv3.DiscoveryRequest
	if err := proto.Unmarshal(request, &r); err != nil {
		t.Fatal(err)
	}
	events := make(chan event, 10)
	go func() {
		defer close(events)
		end := func(err error) { events <- event{Ended: status.Code(err), Details: status.Convert(err).Message()} }
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
		if err != nil {
			end(err)
			return
		}
		_ = s.Send(&r) // Recv has the error
		for {
			response, err := s.Recv()
			if err != nil {
				end(err)
				return
			}
			events <- event{Received: proto.Size(response)}
		}
	}()
	return events
}

// await returns the next event of a stream.
func await(t testing.TB, events <-chan event) event {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case e, ok := <-events:
		if !ok {
			t.Fatal("the client has exited")
		}
		return e
	case <-deadline.C:
		t.Fatalf("the stream has no event within %v", patience)
		return event{}
	}
}

// certifier signs certificates and tokens.
type certifier struct {
	t           testing.TB
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	keyID       string // the key id of its tokens
}

func newCertifier(t testing.TB) *certifier {
	t.Helper()
	c := &certifier{t: t, dir: t.TempDir(), keyID: "1"}
	c.certificate, c.key = c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)})
	c.write("ca.pem", "CERTIFICATE", c.certificate.Raw)
	return c
}

func (c *certifier) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	parent, by := c.certificate, c.key
	if parent == nil {
		parent, by = template, key
	}
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		c.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return certificate, key
}

func (c *certifier) write(name, kind string, der []byte) (file string) {
	c.t.Helper()
	file = filepath.Join(c.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// issue writes a certificate for servers on 127.0.0.1 and clients, and its key.
func (c *certifier) issue(name, spiffeID string, notAfter time.Time) (cert, key string) {
	c.t.Helper()
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: name}, // OpenSSL takes a certificate without a name for its own CA
		NotAfter: notAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if spiffeID != "" {
		id, err := url.Parse(spiffeID)
		if err != nil {
			c.t.Fatal(err)
		}
		template.URIs = []*url.URL{id}
	}
	certificate, private := c.sign(template)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.write(name+".pem", "CERTIFICATE", certificate.Raw), c.write(name+"-key.pem", "PRIVATE KEY", der)
}

// keySet returns the JSON Web Key Set that verifies the tokens of certifiers.
func keySet(of ...*certifier) []byte {
	var keys []string
	for _, c := range of {
		c.t.Helper()
		point, err := c.key.PublicKey.Bytes()
		if err != nil {
			c.t.Fatal(err)
		}
		encode := base64.RawURLEncoding.EncodeToString
		keys = append(keys, fmt.Sprintf(`{"kty": "EC", "crv": "P-256", "kid": %q, "x": %q, "y": %q}`, c.keyID, encode(point[1:33]), encode(point[33:])))
	}
	return []byte(`{"keys": [` + strings.Join(keys, ", ") + `]}`)
}

// keys writes the key set that verifies this certifier's tokens.
func (c *certifier) keys() (file string) {
	c.t.Helper()
	file = filepath.Join(c.dir, "jwks.json")
	if err := os.WriteFile(file, keySet(c), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// token issues a token for the relay.
func (c *certifier) token(lifetime time.Duration) string {
	c.t.Helper()
	var parts []string
	for _, part := range []map[string]any{
		{"alg": "ES256", "kid": c.keyID},
		{"iss": "https://issuer", "aud": "xds-relay", "sub": "client", "exp": time.Now().Add(lifetime).Unix()},
	} {
		text, err := json.Marshal(part)
		if err != nil {
			c.t.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(text))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ".")))
	r, s, err := ecdsa.Sign(rand.Reader, c.key, sum[:])
	if err != nil {
		c.t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return strings.Join(append(parts, base64.RawURLEncoding.EncodeToString(signature)), ".")
}

// startGuardedRelay starts a relay that serves one cluster, on a listener with mTLS and on one that requires
// a token.
func startGuardedRelay(t testing.TB, c *certifier) (mtls, jwt string) {
	t.Helper()
	resources := filepath.Join(t.TempDir(), "clusters.json")
	if err := os.WriteFile(resources, []byte(`[{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "shop"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := c.issue("relay", "", time.Now().Add(time.Hour))
	config := fmt.Sprintf(`
listeners:
  - address: 127.0.0.1:0
    tls: {cert_file: %[1]s, key_file: %[2]s, client_ca_file: %[3]s, end_streams_at_expiry: true}
    admit: identity.spiffe_id == "spiffe://example.org/shop"
  - address: 127.0.0.1:0
    tls: {cert_file: %[1]s, key_file: %[2]s}
    jwt: {issuer: "https://issuer", audiences: [xds-relay], jwks_file: %[4]s, required: true}
authorities: [{name: files, directory: %[5]s}]
old_style_names: [{authority: files}]
`, cert, key, filepath.Join(c.dir, "ca.pem"), c.keys(), filepath.Dir(resources))
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &relay{}
	t.Cleanup(func() { r.check(t) }) // runs after start's cleanup, which ends the relay
	cmd := exec.Command(binary, "serve", "--config", file)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=50")
	r.process = start(t, "the relay", cmd, syscall.SIGTERM)
	addresses := strings.Fields(r.logged(t, `(?s)msg="serving clients" address=(\S+.*msg="serving clients" address=\S+)`))
	return addresses[0], strings.TrimPrefix(addresses[len(addresses)-1], "address=")
}

func TestClientsProveWhoTheyAre(t *testing.T) {
	request, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range provers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.prepared(t)
			c := newCertifier(t)
			mtls, jwt := startGuardedRelay(t, c)
			base := proof{CA: filepath.Join(c.dir, "ca.pem"), Request: hex.EncodeToString(request)}
			open := func(address string, change func(*proof)) <-chan event {
				of := base
				of.Address = address
				change(&of)
				return p.open(t, of)
			}
			withCertificate := func(name, id string, notAfter time.Time) func(*proof) {
				return func(of *proof) { of.Cert, of.Key = c.issue(name, id, notAfter) }
			}
			hour := time.Now().Add(time.Hour)

			if e := await(t, open(mtls, withCertificate("shop", "spiffe://example.org/shop", hour))); e.Received == 0 {
				t.Errorf("with the shop's certificate: got %+v, want a response", e)
			}
			if e := await(t, open(mtls, withCertificate("pay", "spiffe://example.org/pay", hour))); e.Ended != codes.PermissionDenied {
				t.Errorf("with the certificate of another identity: got %+v, want PERMISSION_DENIED", e)
			}
			if e := await(t, open(mtls, func(*proof) {})); e.Ended != codes.Unavailable {
				t.Errorf("without a certificate: got %+v, want UNAVAILABLE", e)
			}
			if e := await(t, open(jwt, func(of *proof) { of.Token = c.token(time.Hour) })); e.Received == 0 {
				t.Errorf("with a token: got %+v, want a response", e)
			}
			if e := await(t, open(jwt, func(of *proof) { of.Token = c.token(-time.Hour) })); e.Ended != codes.Unauthenticated || e.Details != "the token has expired" {
				t.Errorf("with an expired token: got %+v, want UNAUTHENTICATED", e)
			}
			if e := await(t, open(jwt, func(*proof) {})); e.Ended != codes.Unauthenticated {
				t.Errorf("without a token: got %+v, want UNAUTHENTICATED", e)
			}

			// When the certificate expires, the relay closes the connection. The client still receives the
			// reason.
			// Long enough to connect on a busy machine.
			soon := open(mtls, withCertificate("soon", "spiffe://example.org/shop", time.Now().Add(30*time.Second)))
			if e := await(t, soon); e.Received == 0 {
				t.Errorf("with a certificate that expires soon: got %+v, want a response", e)
			}
			if e := await(t, soon); e.Ended != codes.Unavailable || !strings.HasPrefix(e.Details, "the client's certificate has expired, or does so soon") {
				t.Errorf("when the certificate expires: got %+v, want UNAVAILABLE and the reason", e)
			}
		})
	}
}
