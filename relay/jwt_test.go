package relay

// Clients with tokens.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/identity/tokens"
	"github.com/xds-relay/xds-relay/internal/certs/certtest"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// tokenFor issues a token for a service account, for the relay.
func tokenFor(t *testing.T, i *certtest.Issuer, account string, lifetime time.Duration) string {
	t.Helper()
	namespace, _, _ := strings.Cut(account, ":")
	return i.Token(t, "system:serviceaccount:"+account, lifetime, map[string]any{"kubernetes.io": map[string]any{"namespace": namespace}})
}

// awaitTrue waits until a condition holds.
func awaitTrue(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func TestTokensProveWhoAClientIsOverEveryDoor(t *testing.T) {
	first, stranger := certtest.NewIssuer(t, "1"), certtest.NewIssuer(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, certtest.KeySet(t, first), 0o600); err != nil {
		t.Fatal(err)
	}
	r := listen(t, grpcAndREST(fmt.Sprintf(`jwt: {issuer: 'https://issuer', audiences: [xds-relay], jwks_file: %s}, admit: 'identity.source == "none" || identity.source == "jwt" && identity.claims["kubernetes.io"].namespace == "pay"'`, file)))
	pay := caller{token: tokenFor(t, first, "pay:gw", time.Hour)}
	everyDoor(t, r, pay, codes.OK)
	everyDoor(t, r, caller{}, codes.OK) // none is required
	everyDoor(t, r, caller{token: tokenFor(t, first, "shop:gw", time.Hour)}, codes.PermissionDenied)
	forged := tokenFor(t, stranger, "pay:gw", time.Hour)
	everyDoor(t, r, caller{token: forged}, codes.Unauthenticated)
	expired := tokenFor(t, first, "pay:gw", -time.Hour)
	everyDoor(t, r, caller{token: expired}, codes.Unauthenticated)
	everyDoor(t, r, caller{token: "nonsense"}, codes.Unauthenticated)
	if got, want := identities(t, r, r.Addresses()[0], pay), "{Source:jwt SPIFFEID: DNSNames:[] Subject:system:serviceaccount:pay:gw UID:<nil>}"; got != want {
		t.Errorf("/clients shows %s, want %s", got, want)
	}
	refused := r.server.Stats().ClientsRefused
	if n := uint64(len(doors)); refused["invalid_token"] != 3*n || refused["not_admitted"] != n {
		t.Errorf("refused: %v", refused)
	}

	// The keys are rotated.
	second := certtest.NewIssuer(t, "2")
	rotated := caller{token: tokenFor(t, second, "pay:gw", time.Hour)}
	if err := os.WriteFile(file, certtest.KeySet(t, second), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, door := range []door{doors[0], doors[len(doors)-1]} { // each listener reads the file by itself
		awaitTrue(t, "the new key", func() bool { return door.ask(t, r.Addresses()[i], rotated) == nil })
	}
	everyDoor(t, r, rotated, codes.OK)
	everyDoor(t, r, pay, codes.Unauthenticated)

	r.stop()
	for _, token := range []string{pay.token, forged, expired, rotated.token} {
		for part := range strings.SplitSeq(token, ".") {
			if strings.Contains(r.log.String(), part) {
				t.Errorf("the log has a part of a token: %s", part)
			}
		}
	}
	if !strings.Contains(r.log.String(), `refused=invalid_token reason="the token's signature is wrong"`) {
		t.Errorf("the log does not say why a token is refused:\n%s", r.log)
	}
}

func TestATokenMayBeRequired(t *testing.T) {
	i := certtest.NewIssuer(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, certtest.KeySet(t, i), 0o600); err != nil {
		t.Fatal(err)
	}
	r := listen(t, grpcAndREST(fmt.Sprintf(`jwt: {issuer: 'https://issuer', audiences: [xds-relay], jwks_file: %s, required: true}`, file)))
	everyDoor(t, r, caller{}, codes.Unauthenticated)
	everyDoor(t, r, caller{token: tokenFor(t, i, "pay:gw", time.Hour)}, codes.OK)
	if refused := r.server.Stats().ClientsRefused; refused["no_token"] != uint64(len(doors)) {
		t.Errorf("refused: %v", refused)
	}
}

// A token does not change what a certificate proves.
func TestACertificateGoesBeforeAToken(t *testing.T) {
	ca, i := certtest.NewCA(t, "ca"), certtest.NewIssuer(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, certtest.KeySet(t, i), 0o600); err != nil {
		t.Fatal(err)
	}
	r := listen(t, grpcAndREST(fmt.Sprintf(`tls: %s, jwt: {issuer: 'https://issuer', audiences: [xds-relay], jwks_file: %s},
    admit: 'identity.source == "mtls" && identity.spiffe_id == "spiffe://example.org/gw" && identity.claims.sub == "system:serviceaccount:pay:gw" && !has(identity.subject)'`,
		mutualTLS(t, ca, ", client_certificates: optional"), file)))
	both := with(t, ca, certtest.Options{SPIFFEID: "spiffe://example.org/gw"})
	everyDoor(t, r, both, codes.PermissionDenied)
	both.token = tokenFor(t, i, "pay:gw", time.Hour)
	everyDoor(t, r, both, codes.OK)
	tokenOnly := both
	tokenOnly.tls = both.tls.Clone()
	tokenOnly.tls.Certificates = nil
	everyDoor(t, r, tokenOnly, codes.PermissionDenied)
	both.token = tokenFor(t, certtest.NewIssuer(t, "1"), "pay:gw", time.Hour)
	everyDoor(t, r, both, codes.Unauthenticated) // a certificate does not make up for a forged token
}

// A client is not to blame if the relay cannot get the keys.
func TestWithoutKeysClientsAreSentUnavailable(t *testing.T) {
	i := certtest.NewIssuer(t, "1")
	var up atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(certtest.KeySet(t, i))
	}))
	defer server.Close()
	r := listen(t, grpcAndREST(fmt.Sprintf(`jwt: {issuer: 'https://issuer', audiences: [xds-relay], jwks_url: '%s'}`, server.URL)))
	c := caller{token: tokenFor(t, i, "pay:gw", time.Hour)}
	everyDoor(t, r, c, codes.Unavailable)
	everyDoor(t, r, caller{}, codes.OK)
	up.Store(true)
	awaitTrue(t, "the keys", func() bool { return status.Code(doors[0].ask(t, r.Addresses()[0], c)) == codes.OK })
	everyDoor(t, r, c, codes.OK)
	if n := r.issuers.failures(); len(n) != 1 || n[0].Value == 0 {
		t.Errorf("failures: %v", n)
	}
}

func TestAStreamOutlivesItsTokenByTheGrace(t *testing.T) {
	i := certtest.NewIssuer(t, "1")
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, certtest.KeySet(t, i), 0o600); err != nil {
		t.Fatal(err)
	}
	jwt := fmt.Sprintf("issuer: 'https://issuer', audiences: [xds-relay], jwks_file: %s", file)
	r := listen(t, fmt.Sprintf("listeners:\n- {address: '127.0.0.1:0', jwt: {%s, grace: 0s}}\n- {address: '127.0.0.1:0', jwt: {%[1]s}}", jwt))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var token string
	open := func(address string) (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, error) {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return subscribe(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), conn)
	}
	var ends, stays discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	for lifetime := 2 * time.Second; ; lifetime *= 2 { // as long as this machine needs to open both streams
		began := time.Now()
		token = tokenFor(t, i, "pay:gw", lifetime-tokens.Leeway)
		var err, other error
		ends, err = open(r.Addresses()[0])
		stays, other = open(r.Addresses()[1])
		if err = errors.Join(err, other); err == nil {
			break
		}
		if time.Since(began) < lifetime-time.Second { // the time in a token is in seconds
			t.Fatal(err)
		}
	}
	_, err := ends.Recv()
	if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != "the client's token has expired (want a new stream, with a new token)" {
		t.Errorf("without grace: got %v", err)
	}
	awaitTrue(t, "the end of the token", func() bool {
		_, err := open(r.Addresses()[1])
		return status.Code(err) == codes.Unauthenticated
	})
	if err := stays.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"d"}}); err != nil {
		t.Error(err)
	}
	if _, err := stays.Recv(); err != nil {
		t.Errorf("with grace: %v", err)
	}
}
