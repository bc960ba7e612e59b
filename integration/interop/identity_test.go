package interop

// Clients that authenticate to the relay: with a certificate, and with a token in gRPC's call credentials.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
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
		start(t, name, cmd)
		events := make(chan event, 10)
		go func() {
			defer close(events)
			peers.EachLine(lines, func(e event, err error) {
				if err != nil {
					e = event{Ended: codes.Unknown, Details: err.Error()}
				}
				events <- e
			})
		}()
		return events
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
	e, err := peers.Receive(events)
	if err != nil {
		t.Fatalf("waiting for an event of a stream: %v", err)
	}
	return e
}

// guard has the addresses and files of a relay with two listeners: one with mTLS, and one that requires a token.
type guard struct {
	mtls, jwt                string
	cert, key, clients, keys string
	resources                string // a folder
}

func (g guard) config() peers.Config {
	return peers.Config{
		"listeners": []any{
			peers.Config{"address": g.mtls, "tls": peers.Config{"cert_file": g.cert, "key_file": g.key, "client_ca_file": g.clients}},
			peers.Config{
				"address": g.jwt, "tls": peers.Config{"cert_file": g.cert, "key_file": g.key},
				"jwt": peers.Config{"issuer": "https://issuer", "audiences": []any{"xds-relay"}, "jwks_file": g.keys, "required": true},
			},
		},
		"authorities":     []any{peers.Config{"name": "files", "directory": g.resources}},
		"old_style_names": []any{peers.Config{"authority": "files"}},
	}
}

// startGuardedRelay starts a relay that serves one cluster, and admits one identity to its listener with mTLS.
func startGuardedRelay(t testing.TB, c *peers.Certifier) guard {
	t.Helper()
	g := guard{mtls: peers.Address(t), jwt: peers.Address(t), clients: c.CA(), keys: c.Keys(), resources: t.TempDir()}
	if err := os.WriteFile(filepath.Join(g.resources, "clusters.json"), []byte(`[{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "shop"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	g.cert, g.key = c.Issue("relay", "", time.Now().Add(time.Hour), peers.Host(g.mtls), peers.Host(g.jwt))
	config := g.config()
	first := config["listeners"].([]any)[0].(peers.Config)
	first["admit"] = `identity.spiffe_id == "spiffe://example.org/shop"`
	first["tls"].(peers.Config)["end_streams_at_expiry"] = true
	peers.StartRelay(t, config)
	return g
}

// withEachProver runs a test with each kind of client, and with a request for clusters.
func withEachProver(t *testing.T, run func(t *testing.T, p prover, request string)) {
	t.Helper()
	request, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range provers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			required(t, p.name, p.prepare)
			run(t, p, hex.EncodeToString(request))
		})
	}
}

func TestClientsProveWhoTheyAre(t *testing.T) {
	withEachProver(t, func(t *testing.T, p prover, request string) {
		c := peers.NewCertifier(t)
		relay := startGuardedRelay(t, c)
		base := proof{CA: c.CA(), Request: request}
		open := func(address string, change func(*proof)) <-chan event {
			client := base
			client.Address = address
			change(&client)
			return p.open(t, client)
		}
		withCertificate := func(name, id string, notAfter time.Time) func(*proof) {
			return func(client *proof) { client.Cert, client.Key = c.Issue(name, id, notAfter) }
		}
		hour := time.Now().Add(time.Hour)

		if e := await(t, open(relay.mtls, withCertificate("shop", "spiffe://example.org/shop", hour))); e.Received == 0 {
			t.Errorf("with the shop's certificate: got %+v, want a response", e)
		}
		if e := await(t, open(relay.mtls, withCertificate("pay", "spiffe://example.org/pay", hour))); e.Ended != codes.PermissionDenied {
			t.Errorf("with the certificate of another identity: got %+v, want PERMISSION_DENIED", e)
		}
		if e := await(t, open(relay.mtls, func(*proof) {})); e.Ended != codes.Unavailable {
			t.Errorf("without a certificate: got %+v, want UNAVAILABLE", e)
		}
		if e := await(t, open(relay.jwt, func(client *proof) { client.Token = c.Token(time.Hour) })); e.Received == 0 {
			t.Errorf("with a token: got %+v, want a response", e)
		}
		if e := await(t, open(relay.jwt, func(client *proof) { client.Token = c.Token(-time.Hour) })); e.Ended != codes.Unauthenticated || e.Details != "the token has expired" {
			t.Errorf("with an expired token: got %+v, want UNAUTHENTICATED", e)
		}
		if e := await(t, open(relay.jwt, func(*proof) {})); e.Ended != codes.Unauthenticated {
			t.Errorf("without a token: got %+v, want UNAUTHENTICATED", e)
		}

		// When the certificate expires, the relay closes the connection. The client still receives the
		// reason.
		// Long enough to connect on a busy machine.
		soon := open(relay.mtls, withCertificate("soon", "spiffe://example.org/shop", time.Now().Add(30*time.Second)))
		if e := await(t, soon); e.Received == 0 {
			t.Errorf("with a certificate that expires soon: got %+v, want a response", e)
		}
		if e := await(t, soon); e.Ended != codes.Unavailable || !strings.HasPrefix(e.Details, "the client's certificate has expired, or does so soon") {
			t.Errorf("when the certificate expires: got %+v, want UNAVAILABLE and the reason", e)
		}
	})
}
