package integration

// Tests of the output of `xds-relay bootstrap`, with gRPC's own client and with a client that connects
// as Envoy does.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	grpccredentialv3 "github.com/envoyproxy/go-control-plane/envoy/config/grpc_credential/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3" // in the bootstrap
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// visitorBootstrap is the file of a bootstrap. With it in its environment, the test's binary is a gRPC client
// that prints which backend answered it. The client needs its own process: gRPC reads only once, at its
// start, from the environment whether it may send tokens.
const visitorBootstrap = "XDS_TEST_VISITOR_BOOTSTRAP"

func runVisitor(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	resolver, err := xds.NewXDSResolverWithConfigForTesting(text)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("xds:///shop", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var id wrapperspb.StringValue
	if err := conn.Invoke(ctx, someMethod, &emptypb.Empty{}, &id, grpc.WaitForReady(true)); err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, id.GetValue())
	return err
}

// printedBootstrap runs `xds-relay bootstrap` and returns its output.
func printedBootstrap(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := command(append([]string{"bootstrap"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("bootstrap %q: %v: %s", args, err, stderr.String())
	}
	return text
}

// shopPlane starts a control plane with all resources of xds:///shop, which lead to b.
func shopPlane(t *testing.T, node string, b *backend) *controlPlane {
	t.Helper()
	snapshots := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	snapshot, err := cachev3.NewSnapshot("1", map[resource.Type][]types.Resource{
		listenerType: {apiListener(t, "shop", "shop-routes")},
		routeType:    {routeConfiguration("shop-routes", routeTo("shop-cluster", prefix("")))},
		clusterType:  {edsCluster("shop-cluster", "shop-endpoints")},
		endpointType: {endpointsAt(t, "shop-endpoints", b.address)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshots.SetSnapshot(t.Context(), node, snapshot); err != nil {
		t.Fatal(err)
	}
	return serveControlPlane(t, snapshots, delta, sotw)
}

func TestPrintedBootstrapsLeadClientsToTheRelay(t *testing.T) {
	ca := certtest.NewCA(t, "the CA")
	server, client := issued(t, ca, "relay"), issued(t, ca, "client")
	tokens := certtest.NewIssuer(t, "k")
	files := mount(t, map[string][]byte{
		"server.pem": server.Cert, "server-key.pem": server.Key, "client.pem": client.Cert, "client-key.pem": client.Key,
		"ca.pem": certtest.PEM(ca), "jwks.json": certtest.KeySet(t, tokens), "token": []byte(tokens.Token(t, "client", time.Hour, nil)),
	})
	certificate := fmt.Sprintf("cert_file: %s, key_file: %s", files.path("server.pem"), files.path("server-key.pem"))
	trusted := []string{"--ca-file", files.path("ca.pem")}
	for _, tt := range []struct {
		name     string
		listener string
		flags    []string // of xds-relay bootstrap
		envoy    []string // more flags, for Envoy only
		token    bool
	}{
		{name: "in plaintext"},
		{name: "with TLS", listener: "tls: {" + certificate + "}", flags: trusted},
		{
			name: "with client certificates", listener: "tls: {" + certificate + ", client_ca_file: " + files.path("ca.pem") + "}",
			flags: append([]string{"--cert-file", files.path("client.pem"), "--key-file", files.path("client-key.pem")}, trusted...),
		},
		{
			name: "with a token",
			listener: fmt.Sprintf("tls: {%s}\n    jwt: {issuer: 'https://issuer', audiences: [xds-relay], jwks_file: %s, required: true}",
				certificate, files.path("jwks.json")),
			flags: append([]string{"--token-file", files.path("token")}, trusted...), token: true,
			envoy: []string{"--server-name", "127.0.0.1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := startBackend(t, "the backend")
			cp := shopPlane(t, "edge-1", b)
			config := strings.Replace(relayTo(cp.address, "auto"), "- address: 127.0.0.1:0", "- address: 127.0.0.1:0\n    "+tt.listener, 1) + "    partition: node.id\n"
			r := startRelay(t, config)
			file := filepath.Join(t.TempDir(), "relay.yaml")
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			nobody := openPort(t)
			flags := append([]string{"--config", file, "--node-id", "edge-1", "--server", r.address}, tt.flags...)

			text := printedBootstrap(t, append([]string{"--for", "grpc"}, flags...)...)
			visit(t, text, b.id, tt.token)

			// Of two addresses, no server listens at the first.
			flags = append([]string{"--server", nobody.address}, flags...)
			text = printedBootstrap(t, append([]string{"--for", "grpc"}, flags...)...)
			visit(t, text, b.id, tt.token)

			flags = append(flags, tt.envoy...)
			text = printedBootstrap(t, append([]string{"--for", "envoy", "--xdstp", "--output", "json"}, flags...)...)
			connectAsEnvoy(t, text, tt.token)
		})
	}
}

// visit sends an RPC with a bootstrap for gRPC, and checks that it reaches the backend.
func visit(t *testing.T, bootstrap []byte, backend string, token bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), visitorBootstrap+"="+file, "GORACE=atexit_sleep_ms=50")
	if token {
		cmd.Env = append(cmd.Env, "GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS=true")
	}
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if got := strings.TrimSpace(string(out)); err != nil || got != backend {
		t.Errorf("the RPC reached %q, want %q: %v\n%s", got, backend, err, bootstrap)
	}
}

// connectAsEnvoy opens a delta stream to the last address in a bootstrap for Envoy, with its
// Node, files and header, and receives the clusters.
func connectAsEnvoy(t *testing.T, text []byte, token bool) {
	t.Helper()
	var b bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	ads := b.GetDynamicResources().GetAdsConfig().GetGrpcServices()[0]
	if by := b.GetConfigSources()[0].GetApiConfigSource().GetGrpcServices()[0]; !proto.Equal(ads, by) {
		t.Errorf("the bootstrap sends names with authorities to %v, and other names to %v", by, ads)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var target string
	creds := insecure.NewCredentials()
	if token {
		google := ads.GetGoogleGrpc()
		target = google.GetTargetUri() // ipv4:… with both addresses
		target = target[strings.LastIndex(target, ",")+1:]
		// gRPC's core verifies the name in the arguments, or else the path of the target as a whole.
		name := google.GetChannelArgs().GetArgs()["grpc.ssl_target_name_override"].GetStringValue()
		if name == "" {
			name = strings.TrimPrefix(strings.TrimPrefix(google.GetTargetUri(), "dns:///"), "ipv4:")
		}
		ssl := google.GetChannelCredentials().GetSslCredentials()
		creds = clientTLS(t, ssl.GetRootCerts().GetFilename(), ssl.GetCertChain().GetFilename(), ssl.GetPrivateKey().GetFilename(), "", []string{name})
		var header grpccredentialv3.FileBasedMetadataConfig
		if err := google.GetCallCredentials()[0].GetFromPlugin().GetTypedConfig().UnmarshalTo(&header); err != nil {
			t.Fatal(err)
		}
		token, err := os.ReadFile(header.GetSecretData().GetFilename())
		if err != nil {
			t.Fatal(err)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, header.GetHeaderKey(), header.GetHeaderPrefix()+string(token))
	} else {
		cluster := b.GetStaticResources().GetClusters()[0]
		endpoints := cluster.GetLoadAssignment().GetEndpoints()
		at := endpoints[len(endpoints)-1].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
		target = fmt.Sprintf("%s:%d", at.GetAddress(), at.GetPortValue())
		if socket := cluster.GetTransportSocket(); socket != nil {
			var upstream tlsv3.UpstreamTlsContext
			if err := socket.GetTypedConfig().UnmarshalTo(&upstream); err != nil {
				t.Fatal(err)
			}
			common := upstream.GetCommonTlsContext()
			cert, key := "", ""
			for _, c := range common.GetTlsCertificates() {
				cert, key = c.GetCertificateChain().GetFilename(), c.GetPrivateKey().GetFilename()
			}
			var names []string
			for _, m := range common.GetValidationContext().GetMatchTypedSubjectAltNames() {
				names = append(names, m.GetMatcher().GetExact())
			}
			creds = clientTLS(t, common.GetValidationContext().GetTrustedCa().GetFilename(), cert, key, upstream.GetSni(), names)
		}
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: b.GetNode(), TypeUrl: clusterType, ResourceNamesSubscribe: []string{"*"}}); err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || len(resp.GetResources()) != 1 || resp.GetResources()[0].GetName() != "shop-cluster" {
		t.Errorf("with Envoy's bootstrap, the response is %v: %v", resp, err)
	}
}

// clientTLS is TLS as Envoy does it: it sends sni, and requires one of the names in the server's certificate.
func clientTLS(t *testing.T, ca, cert, key, sni string, names []string) credentials.TransportCredentials {
	t.Helper()
	text, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	config := &tls.Config{ServerName: sni, InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
		leaf := state.PeerCertificates[0]
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots}); err != nil {
			return err
		}
		if !slices.ContainsFunc(names, func(name string) bool { return leaf.VerifyHostname(name) == nil }) {
			return fmt.Errorf("the relay's certificate has none of the names %q", names)
		}
		return nil
	}}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config)
}
