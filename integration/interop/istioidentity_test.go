package interop

// Istio's identity check, with the configuration in docs/istio.md and docs/security.md.

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"istio.io/istio/pkg/security"
	"istio.io/istio/security/pkg/server/ca/authenticate"
	"istio.io/istio/security/pkg/server/ca/authenticate/kubeauth"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// tokenOf returns the token of a service account that the fake Kubernetes accepts.
func tokenOf(namespace, account string) string { return "token-of." + namespace + "." + account }

// startCheckingIstio starts Istio's discovery server with TLS, like istiod's port 15012. It authenticates
// clients by certificates of the mesh, and by tokens of service accounts.
func startCheckingIstio(t *testing.T, mesh *peers.Certifier) (address string) {
	t.Helper()
	i, _ := startIstio(t).(*istio)
	kubernetes := fake.NewClientset()
	kubernetes.PrependReactor("create", "tokenreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(k8stesting.CreateAction)
		review, _ := create.GetObject().(*authenticationv1.TokenReview)
		answer := review.DeepCopy()
		if account, ok := strings.CutPrefix(review.Spec.Token, "token-of."); ok {
			answer.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true, Audiences: review.Spec.Audiences,
				User: authenticationv1.UserInfo{Username: "system:serviceaccount:" + strings.ReplaceAll(account, ".", ":"), Groups: []string{"system:serviceaccounts"}},
			}
		}
		return true, answer, nil
	})
	i.Discovery.Authenticators = []security.Authenticator{
		&authenticate.ClientCertAuthenticator{},
		kubeauth.NewKubeJWTAuthenticator(i.Env().Watcher, kubernetes, "Kubernetes", nil, nil),
	}
	cert, key := mesh.Issue("istiod", "", time.Now().Add(time.Hour))
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(mesh.Roots())
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
	})))
	i.register(s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(lis)
	}()
	t.Cleanup(func() { s.Stop(); <-served })
	return lis.Addr().String()
}

// startIstioRelay starts the relay with the example. It replaces the addresses and files, and the texts in
// change.
func startIstioRelay(t *testing.T, istiod string, mesh *peers.Certifier, change ...string) (*peers.Relay, proof) {
	t.Helper()
	example, err := os.ReadFile("../../configs/examples/istio-identity.yaml")
	if err != nil {
		t.Fatal(err)
	}
	address := peers.Address(t)
	cert, key := mesh.Issue("relay", "", time.Now().Add(time.Hour), peers.Host(address))
	token := filepath.Join(t.TempDir(), "istio-token")
	if err := os.WriteFile(token, []byte(tokenOf("shop", "gateway")), 0o600); err != nil {
		t.Fatal(err)
	}
	config := string(example)
	for _, swap := range [][2]string{
		{"0.0.0.0:15012", address}, {"istiod.istio-system.svc:15012", istiod},
		{"/etc/xds-relay/server.pem", cert}, {"/etc/xds-relay/server-key.pem", key},
		{"/etc/istio/root-cert.pem", mesh.CA()}, {"/var/run/secrets/tokens/istio-token", token},
	} {
		if !strings.Contains(config, swap[0]) {
			t.Fatalf("the example has no %s", swap[0])
		}
		config = strings.ReplaceAll(config, swap[0], swap[1])
	}
	changed := strings.NewReplacer(change...).Replace(config)
	if len(change) > 0 && changed == config {
		t.Fatal("the example does not contain the text to change")
	}
	return peers.StartRelay(t, peers.ParseConfig(t, changed)), proof{Address: address, CA: mesh.CA()}
}

// podOf returns p with the first request of a pod's proxy.
func podOf(t *testing.T, p proof, namespace, account string) proof {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "SERVICE_ACCOUNT": account, "ISTIO_VERSION": "1.31.0"})
	if err != nil {
		t.Fatal(err)
	}
	request, err := proto.Marshal(&discoveryv3.DiscoveryRequest{
		TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
		Node:    &corev3.Node{Id: fmt.Sprintf("sidecar~10.0.0.1~%[2]s.%[1]s~%[1]s.svc.cluster.local", namespace, account), Metadata: metadata},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Request = hex.EncodeToString(request)
	return p
}

const (
	exampleToken = "token_file: "
	exampleRule  = `when: node.metadata.NAMESPACE == "shop" && node.metadata.SERVICE_ACCOUNT == "gateway"`
)

func TestIstioKnowsTheRelayByItsToken(t *testing.T) {
	mesh := peers.NewCertifier(t)
	istiod := startCheckingIstio(t, mesh)
	_, at := startIstioRelay(t, istiod, mesh)
	if e := await(t, openGo(t, podOf(t, at, "shop", "gateway"))); e.Received == 0 {
		t.Errorf("a pod of the relay's account gets %+v", e)
	}
}

func TestIstioKnowsTheRelayByItsCertificate(t *testing.T) {
	mesh := peers.NewCertifier(t)
	istiod := startCheckingIstio(t, mesh)
	cert, key := mesh.Issue("workload", "spiffe://cluster.local/ns/shop/sa/gateway", time.Now().Add(time.Hour))
	_, at := startIstioRelay(t, istiod, mesh, "        "+exampleToken, fmt.Sprintf("          cert_file: %s\n          key_file: %s\n#", cert, key))
	if e := await(t, openGo(t, podOf(t, at, "shop", "gateway"))); e.Received == 0 {
		t.Errorf("a pod of the relay's account gets %+v", e)
	}
}

// Without the rule of the example, the relay sends requests for pods of other accounts to istiod, which
// refuses them. The refusals do not affect pods of the relay's own account.
func TestIstioRefusesPodsOfOtherAccounts(t *testing.T) {
	mesh := peers.NewCertifier(t)
	istiod := startCheckingIstio(t, mesh)
	for _, other := range [][2]string{{"shop", "payments"}, {"other", "gateway"}} {
		r, at := startIstioRelay(t, istiod, mesh, exampleRule, `when: "true"`)
		refused := openGo(t, podOf(t, at, other[0], other[1]))
		r.Process().Logged(t, `(PermissionDenied|PERMISSION_DENIED).*authorization failed`)
		if e := await(t, openGo(t, podOf(t, at, "shop", "gateway"))); e.Received == 0 {
			t.Errorf("a pod of the relay's account gets %+v", e)
		}
		select {
		case e := <-refused:
			if e.Received > 0 {
				t.Errorf("a pod of %s received %+v, want no response", other, e)
			}
		default:
		}
	}
}

func TestIstioRefusesARelayItDoesNotKnow(t *testing.T) {
	mesh := peers.NewCertifier(t)
	istiod := startCheckingIstio(t, mesh)
	token := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(token, []byte("token-of-nobody"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, at := startIstioRelay(t, istiod, mesh, exampleToken, "token_file: "+token+" #")
	_ = openGo(t, podOf(t, at, "shop", "gateway"))
	r.Process().Logged(t, `(authentication failure)`)
}
