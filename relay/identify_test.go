package relay

// Who clients are, over all protocols of a listening relay.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// listening is a relay that listens, and serves one cluster of the name c.
type listening struct {
	*Relay
	log *sharedLog
	// stop ends the relay.
	stop func()
}

// sharedLog is a log that is read while streams end.
type sharedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *sharedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns what was logged so far.
func (l *sharedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// listen runs a relay with these `listeners`, until the test ends.
func listen(t *testing.T, listeners string) *listening {
	t.Helper()
	dir := t.TempDir()
	cluster := `[{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "c"}]`
	if err := os.WriteFile(filepath.Join(dir, "c.json"), []byte(cluster), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := configs.Parse("relay.yaml", []byte(listeners+`
authorities: [{name: files, directory: `+dir+`}]
old_style_names: [{authority: files}]
`))
	if err != nil {
		t.Fatal(err)
	}
	log := new(sharedLog)
	r, err := New(cfg, Options{Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Listen(t.Context()); err != nil {
		r.Close()
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	l := &listening{Relay: r, log: log}
	stopped := false
	l.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r.Close()
	}
	t.Cleanup(l.stop)
	return l
}

// caller is how a client connects to a listener.
type caller struct {
	tls   *tls.Config // nil for plaintext
	token string
	// header comes first on each connection.
	header string
}

// connect connects to host:port or unix:/path.
func (c caller) connect(ctx context.Context, address string) (net.Conn, error) {
	conn, err := dialAny(ctx, address)
	if err != nil || c.header == "" {
		return conn, err
	}
	_, err = io.WriteString(conn, c.header)
	return conn, err
}

// door is a way to request the cluster c. It returns the error, whose code is gRPC's.
type door struct {
	name string
	rest bool
	ask  func(t *testing.T, address string, c caller) error
}

var doors = []door{
	{"an aggregated delta stream", false, overGRPC(func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		_ = s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"c"}})
		_, err = s.Recv()
		return err
	})},
	{"an aggregated stream", false, overGRPC(func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
		if err != nil {
			return err
		}
		_ = s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: xdstype.ClusterV3})
		_, err = s.Recv()
		return err
	})},
	{"a stream of one type", false, overGRPC(func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := clusterservice.NewClusterDiscoveryServiceClient(conn).StreamClusters(ctx)
		if err != nil {
			return err
		}
		_ = s.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"c"}})
		_, err = s.Recv()
		return err
	})},
	{"a Fetch", false, overGRPC(func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := clusterservice.NewClusterDiscoveryServiceClient(conn).FetchClusters(ctx, &discoveryv3.DiscoveryRequest{})
		return err
	})},
	{"HTTP/1.1", true, overREST(func(p *http.Protocols) { p.SetHTTP1(true) })},
	{"HTTP/2", true, overREST(func(p *http.Protocols) { p.SetHTTP2(true); p.SetUnencryptedHTTP2(true) })},
}

const patience = time.Minute

func overGRPC(ask func(context.Context, *grpc.ClientConn) error) func(*testing.T, string, caller) error {
	return func(t *testing.T, address string, c caller) error {
		t.Helper()
		ctx, conn, leave := c.dial(t, address)
		defer leave()
		return ask(ctx, conn)
	}
}

// dial returns a connection that proves who the client is, and the context of its streams.
func (c caller) dial(t *testing.T, address string) (_ context.Context, _ *grpc.ClientConn, leave func()) {
	t.Helper()
	creds := insecure.NewCredentials()
	if c.tls != nil {
		creds = credentials.NewTLS(c.tls)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds), grpc.WithContextDialer(c.connect))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	if c.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	}
	return ctx, conn, func() {
		cancel()
		_ = conn.Close()
	}
}

// dialAny connects to host:port or unix:/path.
func dialAny(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	if path, unix := configs.UnixPath(address); unix {
		return d.DialContext(ctx, "unix", path)
	}
	return d.DialContext(ctx, "tcp", address)
}

func overREST(protocols func(*http.Protocols)) func(*testing.T, string, caller) error {
	return func(t *testing.T, address string, c caller) error {
		t.Helper()
		scheme, host := "http", address
		transport := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: c.tls, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.connect(ctx, address)
		}}
		protocols(transport.Protocols)
		defer transport.CloseIdleConnections()
		if c.tls != nil {
			scheme, transport.TLSClientConfig = "https", c.tls.Clone()
		}
		if _, unix := configs.UnixPath(address); unix {
			host = "relay"
		}
		answer, err := postFor(t, &http.Client{Transport: transport}, scheme+"://"+host, c.token)
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		code, ok := map[int]codes.Code{200: codes.OK, 401: codes.Unauthenticated, 403: codes.PermissionDenied, 503: codes.Unavailable}[answer.StatusCode]
		if !ok {
			t.Errorf("status %s", answer.Status)
		}
		if want := code == codes.Unauthenticated; (answer.Header.Get("WWW-Authenticate") != "") != want {
			t.Errorf("%s has WWW-Authenticate: %q", answer.Status, answer.Header.Get("WWW-Authenticate"))
		}
		return status.Error(code, answer.Header.Get("Test-Body"))
	}
}

// postFor requests the cluster c. The response has its body in the header Test-Body.
func postFor(t *testing.T, client *http.Client, base, token string) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v3/discovery:clusters", strings.NewReader(`{"resourceNames": ["c"]}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	answer.Header.Set("Test-Body", string(body))
	return answer, err
}

// mutualTLS returns `listeners[].tls` with a certificate of the CA for servers and clients.
func mutualTLS(t *testing.T, ca *certtest.CA, keys string) string {
	t.Helper()
	dir, pair := t.TempDir(), ca.Issue(t, certtest.Loopback)
	for name, content := range map[string][]byte{"cert.pem": pair.Cert, "key.pem": pair.Key, "ca.pem": certtest.PEM(ca)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("{cert_file: %[1]s/cert.pem, key_file: %[1]s/key.pem, client_ca_file: %[1]s/ca.pem%s}", dir, keys)
}

// with returns a client with a certificate of the CA.
func with(t *testing.T, ca *certtest.CA, o certtest.Options) caller {
	t.Helper()
	return caller{tls: &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, o).TLS}, MinVersion: tls.VersionTLS12}}
}

// everyDoor requests over every protocol. listeners are those for gRPC and for REST.
func everyDoor(t *testing.T, r *listening, c caller, want codes.Code) {
	t.Helper()
	for _, d := range doors {
		address := r.Addresses()[0]
		if d.rest {
			address = r.Addresses()[1]
		}
		err := d.ask(t, address, c)
		if status.Code(err) != want {
			t.Errorf("%s: got %v, want %v", d.name, err, want)
		}
	}
}

// identities returns what /clients shows of a client with an open stream.
func identities(t *testing.T, r *listening, address string, c caller) string {
	t.Helper()
	ctx, conn, leave := c.dial(t, address)
	defer leave()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: xdstype.ClusterV3}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	var all []string
	await(t, "clients that were there before have left", func() bool {
		all = nil
		for c := range r.observer.Clients() {
			all = append(all, fmt.Sprintf("%+v", c.Identity))
		}
		return len(all) == 1
	})
	return all[0]
}

// grpcAndREST are `listeners` with the same keys.
func grpcAndREST(keys string) string {
	return fmt.Sprintf("listeners:\n- {address: '127.0.0.1:0', %s}\n- {address: '127.0.0.1:0', protocol: rest, long_poll: 1s, %s}", keys, keys)
}

func TestAdmitDecidesByCertificateOverEveryDoor(t *testing.T) {
	ca := certtest.NewCA(t, "ca")
	r := listen(t, grpcAndREST(`tls: `+mutualTLS(t, ca, "")+`, admit: 'identity.spiffe_id == "spiffe://example.org/pay" || "gw.example.org" in identity.dns_names'`))
	pay := with(t, ca, certtest.Options{SPIFFEID: "spiffe://example.org/pay"})
	shop := with(t, ca, certtest.Options{SPIFFEID: "spiffe://example.org/shop"})
	named := with(t, ca, certtest.Options{DNSNames: []string{"gw.example.org"}, CommonName: "gw"})
	everyDoor(t, r, pay, codes.OK)
	everyDoor(t, r, named, codes.OK) // an error on one side of || does not matter if the other is true
	everyDoor(t, r, shop, codes.PermissionDenied)
	everyDoor(t, r, with(t, ca, certtest.Options{}), codes.PermissionDenied) // what it does not have cannot be evaluated
	if got, want := identities(t, r, r.Addresses()[0], pay), "{Source:mtls SPIFFEID:spiffe://example.org/pay DNSNames:[] Subject: UID:<nil>}"; got != want {
		t.Errorf("/clients shows %s, want %s", got, want)
	}
	if got, want := identities(t, r, r.Addresses()[0], named), "{Source:mtls SPIFFEID: DNSNames:[gw.example.org] Subject:CN=gw UID:<nil>}"; got != want {
		t.Errorf("/clients shows %s, want %s", got, want)
	}
	refused := r.server.Stats().ClientsRefused
	// shop has neither name: the second half cannot be evaluated.
	if refused["admit_failed"] != uint64(2*len(doors)) || refused["not_admitted"] != 0 {
		t.Errorf("refused: %v", refused)
	}
	r.stop()
	for _, want := range []string{
		`msg="client is refused because of its identity"`, "refused=admit_failed",
		`evaluated for mtls spiffe://example.org/shop: the client has no dns_names`,
	} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, r.log)
		}
	}
}

func TestTheErrorOfAClientThatIsNotAdmittedSaysNothingOfTheRule(t *testing.T) {
	r := listen(t, grpcAndREST(`admit: 'identity.source == "mtls" && identity.spiffe_id == "spiffe://example.org/secret"'`))
	for _, d := range doors {
		address := r.Addresses()[0]
		if d.rest {
			address = r.Addresses()[1]
		}
		err := d.ask(t, address, caller{})
		if status.Code(err) != codes.PermissionDenied || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "`admit`") {
			t.Errorf("%s: got %v", d.name, err)
		}
	}
	if refused := r.server.Stats().ClientsRefused; refused["not_admitted"] != uint64(len(doors)) {
		t.Errorf("refused: %v", refused)
	}
}

// A client is refused before the relay reads its request.
func TestAClientThatIsNotAdmittedNeedNotSendARequest(t *testing.T) {
	r := listen(t, grpcAndREST(`admit: 'false'`))
	err := overGRPC(func(ctx context.Context, conn *grpc.ClientConn) error {
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	})(t, r.Addresses()[0], caller{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %v", err)
	}
	conn, err := net.Dial("tcp", r.Addresses()[1])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(conn, "POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\nContent-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n") // of which nothing comes
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 403 ") {
		t.Errorf("got %q, %v", answer[:n], err)
	}
}

func TestClientsOverUnixSocketsAreTheirUsers(t *testing.T) {
	folder := t.TempDir()
	grpcPath, restPath := filepath.Join(folder, "grpc.sock"), filepath.Join(folder, "rest.sock")
	r := listen(t, fmt.Sprintf(`listeners:
- {address: 'unix:%s', admit: 'identity.source == "unix" && identity.uid == %d'}
- {address: 'unix:%[3]s', protocol: rest, mode: '0600', admit: 'identity.source == "unix" && identity.uid == %[2]d'}
- {address: 'unix:%[4]s', admit: 'identity.uid != %[2]d'}`, grpcPath, os.Getuid(), restPath, filepath.Join(folder, "other.sock")))
	if got, want := strings.Join(r.Addresses()[:2], " "), "unix:"+grpcPath+" unix:"+restPath; got != want {
		t.Errorf("it listens on %s, want %s", got, want)
	}
	for path, want := range map[string]os.FileMode{grpcPath: 0o660, restPath: 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got %v, %v, want %v", path, info, err, want)
		}
	}
	everyDoor(t, r, caller{}, codes.OK)
	if err := doors[0].ask(t, r.Addresses()[2], caller{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another user's: got %v", err)
	}
	if got := identities(t, r, r.Addresses()[0], caller{}); !strings.HasPrefix(got, "{Source:unix SPIFFEID: DNSNames:[] Subject: UID:0x") { // a pointer
		t.Errorf("/clients shows %s", got)
	}
	r.stop()
	for _, path := range []string{grpcPath, restPath} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// rotating is a client that shows the newest of its certificates.
type rotating struct {
	certificate atomic.Pointer[tls.Certificate]
	handshakes  atomic.Int64
}

func (r *rotating) get(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	r.handshakes.Add(1)
	return r.certificate.Load(), nil
}

// connect returns a connection of that client.
func (r *rotating) connect(t *testing.T, ca *certtest.CA, address string) *grpc.ClientConn {
	t.Helper()
	creds := credentials.NewTLS(&tls.Config{RootCAs: ca.Pool(), GetClientCertificate: r.get, MinVersion: tls.VersionTLS12})
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// subscribe opens a stream, and returns it when it has received the cluster c.
func subscribe(ctx context.Context, conn *grpc.ClientConn) (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, error) {
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"c"}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_, err = s.Recv() // which has the status, too, if the stream ended before the request was sent
	return s, err
}

// brief is the validity of a certificate whose expiry a test waits for: long enough for the steps before it, on a
// busy machine. These tests wait in parallel.
const brief = 30 * time.Second

func TestAStreamEndsWithItsCertificateAndTheClientReconnects(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ca")
	r := listen(t, grpcAndREST(`tls: `+mutualTLS(t, ca, ", end_streams_at_expiry: true")))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first, second := time.Now().Add(brief).Truncate(time.Second), time.Now().Add(2*time.Hour).Truncate(time.Second)
	var c rotating
	c.certificate.Store(&ca.Issue(t, certtest.Options{SPIFFEID: "spiffe://example.org/a", NotAfter: first}).TLS)
	conn := c.connect(t, ca, r.Addresses()[0])
	streams := make([]discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, 3)
	for i := range streams {
		var err error
		if streams[i], err = subscribe(ctx, conn); err != nil {
			t.Fatal(err)
		}
	}
	var later rotating // is not concerned
	later.certificate.Store(&ca.Issue(t, certtest.Options{NotAfter: second}).TLS)
	stays, err := subscribe(ctx, later.connect(t, ca, r.Addresses()[0]))
	if err != nil {
		t.Fatal(err)
	}
	expiry := func() (at int64) {
		for _, s := range r.certificateExpiries() {
			if s.Labels[0].Value.AsString() == "client" {
				if path := s.Labels[1].Value.AsString(); path != r.Addresses()[0] || at != 0 {
					t.Errorf("clients of %s have an expiry", path)
				}
				at = s.Value
			}
		}
		return at
	}
	if got := expiry(); got != first.Unix() {
		t.Errorf("the first expiry is %d, want %d", got, first.Unix())
	}
	c.certificate.Store(&ca.Issue(t, certtest.Options{SPIFFEID: "spiffe://example.org/a", NotAfter: second}).TLS)
	for _, s := range streams {
		_, err := s.Recv()
		if st := status.Convert(err); st.Code() != codes.Unavailable || !strings.HasPrefix(st.Message(), "the client's certificate has expired, or does so soon") {
			t.Errorf("the stream ends with %v", err)
		}
	}
	if early := time.Until(first); early > 0 && early > time.Second {
		t.Errorf("the streams end %v before the certificate", early)
	}
	// At once, and without an error: the next stream is on a new connection.
	if _, err := subscribe(ctx, conn); err != nil {
		t.Errorf("the next stream: %v", err)
	}
	if n := c.handshakes.Load(); n != 2 {
		t.Errorf("%d handshakes, want 2", n)
	}
	if err := stays.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"d"}}); err != nil {
		t.Error(err)
	}
	if _, err := stays.Recv(); err != nil {
		t.Errorf("another client's stream: %v", err)
	}
	await(t, "afterwards the first expiry is the second certificate's", func() bool { return expiry() == second.Unix() })
	if refused := r.server.Stats().ClientsRefused; refused["certificate_expired"] != uint64(len(streams)) {
		t.Errorf("refused: %v", refused)
	}
}

// Without end_streams_at_expiry, streams stay open. New ones need a certificate that is valid.
func TestAStreamOnAConnectionWhoseCertificateHasExpiredIsRefused(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ca")
	r := listen(t, grpcAndREST(`tls: `+mutualTLS(t, ca, ", end_streams_at_expiry: false")))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	expires := time.Now().Add(brief).Truncate(time.Second)
	var c rotating
	c.certificate.Store(&ca.Issue(t, certtest.Options{NotAfter: expires}).TLS)
	conn := c.connect(t, ca, r.Addresses()[0])
	open, err := subscribe(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	c.certificate.Store(&ca.Issue(t, certtest.Options{}).TLS)
	<-time.After(time.Until(expires))
	if _, err := subscribe(ctx, conn); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	// That sends the client to a new connection.
	if _, err := subscribe(ctx, conn); err != nil {
		t.Errorf("the next stream: %v", err)
	}
	if err := open.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"d"}}); err != nil {
		t.Error(err)
	}
	if _, err := open.Recv(); err != nil {
		t.Errorf("the open stream: %v", err)
	}
}

func TestARequestOnAConnectionWhoseCertificateHasExpiredIsRefused(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ca")
	r := listen(t, grpcAndREST(`tls: `+mutualTLS(t, ca, "")))
	expires := time.Now().Add(brief).Truncate(time.Second)
	client := with(t, ca, certtest.Options{NotAfter: expires})
	transport := &http.Transport{TLSClientConfig: client.tls}
	defer transport.CloseIdleConnections()
	web := &http.Client{Transport: transport}
	if answer, err := postFor(t, web, "https://"+r.Addresses()[1], ""); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v", answer, err)
	}
	select {
	case <-time.After(time.Until(expires)):
	case <-t.Context().Done():
	}
	answer, err := postFor(t, web, "https://"+r.Addresses()[1], "")
	if err != nil || answer.StatusCode != http.StatusServiceUnavailable || !answer.Close {
		t.Errorf("got %v, %v, want 503 and the end of the connection", answer, err)
	}
	if refused := r.server.Stats().ClientsRefused; refused["certificate_expired"] != 1 {
		t.Errorf("refused: %v", refused)
	}
}
