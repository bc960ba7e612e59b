package integration

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/certs/certtest"
)

// clientStatus sends a request to CSDS: as grpcdebug does, without matchers, if id is empty; otherwise for
// the clients with this Node id.
func clientStatus(t testing.TB, address, id string) (*statusv3.ClientStatusResponse, error) {
	t.Helper()
	req := &statusv3.ClientStatusRequest{}
	if id != "" {
		req.NodeMatchers = []*matcherv3.NodeMatcher{{NodeId: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: id}}}}
	}
	return statusv3.NewClientStatusDiscoveryServiceClient(connect(t, address)).FetchClientStatus(t.Context(), req)
}

// statusTable has a line for each resource, like `grpcdebug xds status`, and also shows errors.
func statusTable(resp *statusv3.ClientStatusResponse) string {
	var lines []string
	for _, c := range resp.GetConfig() {
		for _, g := range c.GetGenericXdsConfigs() {
			kind := g.GetTypeUrl()[strings.LastIndexByte(g.GetTypeUrl(), '.')+1:]
			line := fmt.Sprintf("%s %s %s %s", kind, g.GetName(), g.GetClientStatus(), g.GetConfigStatus())
			if details := g.GetErrorState().GetDetails(); details != "" {
				line += ": " + details
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// awaitStatus waits until CSDS on the admin listener shows exactly these lines, and returns the response.
func awaitStatus(t testing.TB, r *relay, id string, lines ...string) (resp *statusv3.ClientStatusResponse) {
	t.Helper()
	want := strings.Join(lines, "\n")
	eventually(t, "CSDS shows\n"+want, func() (err error) {
		if resp, err = clientStatus(t, r.admin, id); err != nil {
			return err
		}
		if got := statusTable(resp); got != want {
			return fmt.Errorf("CSDS shows\n%s", got)
		}
		return nil
	})
	return resp
}

// CSDS on the admin listener shows for each client which resources it has accepted, rejected (with its error
// message), or requested without an answer so far, with the contents that the client was sent. Without
// matchers, CSDS shows the relay's own resources in one ClientConfig.
func TestCSDSShowsWhatAClientHas(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	good, bad := plainCluster("x", "1"), plainCluster("x", "2")
	cp.set(good, plainCluster("y", "1"))
	r := startRelay(t, relayTo(cp.address, "delta"))

	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connect(t, r.address)).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(req *discoveryv3.DeltaDiscoveryRequest) {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	// receive receives resources until there are n, and answers each response.
	receive := func(n int, nack string) {
		t.Helper()
		for n > 0 {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			n -= len(resp.GetResources())
			answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}
			if nack != "" {
				answer.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: nack}
			}
			send(answer)
		}
	}
	send(&discoveryv3.DeltaDiscoveryRequest{Node: node("envoy-1", "edge"), TypeUrl: clusterType, ResourceNamesSubscribe: []string{"x", "y", "none"}})
	receive(2, "")
	awaitStatus(t, r, "envoy-1", "Cluster none REQUESTED NOT_SENT", "Cluster x ACKED SYNCED", "Cluster y ACKED SYNCED")

	cp.set(bad, plainCluster("y", "1"))
	receive(1, "it is bad")
	resp := awaitStatus(t, r, "envoy-1", "Cluster none REQUESTED NOT_SENT", "Cluster x NACKED ERROR: it is bad", "Cluster y ACKED SYNCED")
	if n := resp.GetConfig()[0].GetNode(); n.GetId() != "envoy-1" || n.GetCluster() != "edge" {
		t.Errorf("the ClientConfig has the node %v", n)
	}
	of := map[string]*statusv3.ClientConfig_GenericXdsConfig{}
	for _, g := range resp.GetConfig()[0].GetGenericXdsConfigs() {
		of[g.GetName()] = g
	}
	rejected, err := of["x"].GetErrorState().GetFailedConfiguration().UnmarshalNew()
	if err != nil || !proto.Equal(rejected, bad) || of["x"].GetErrorState().GetLastUpdateAttempt() == nil || of["x"].GetErrorState().GetVersionInfo() == "" || of["x"].GetXdsConfig() != nil {
		t.Errorf("CSDS shows the rejected resource as %v (%v)", of["x"], err)
	}
	if has, err := of["y"].GetXdsConfig().UnmarshalNew(); err != nil || !proto.Equal(has, plainCluster("y", "1")) || of["y"].GetVersionInfo() == "" || !of["y"].GetLastUpdated().AsTime().Before(of["x"].GetLastUpdated().AsTime()) {
		t.Errorf("CSDS shows the accepted resource as %v (%v)", of["y"], err)
	}
	awaitStatus(t, r, "envoy-2") // there is no such client

	// grpcdebug sends one request without matchers, and prints the response as JSON.
	resp = awaitStatus(t, r, "", "Cluster none REQUESTED NOT_SENT", "Cluster x ACKED SYNCED", "Cluster y ACKED SYNCED")
	if n := len(resp.GetConfig()); n != 1 {
		t.Errorf("the relay's own view has %d ClientConfigs", n)
	}
	if _, err := protojson.Marshal(resp); err != nil {
		t.Errorf("the response cannot be printed as JSON: %v", err)
	}

	// The listener for clients has no CSDS, unless `csds` is true.
	if _, err := clientStatus(t, r.address, ""); status.Code(err) != codes.Unimplemented {
		t.Errorf("CSDS on the clients' listener returns %v, want UNIMPLEMENTED", err)
	}
}

// With `csds: true`, CSDS on the clients' listener shows a client the streams of its own identity.
func TestCSDSForClientsIsAKeyOfTheListener(t *testing.T) {
	t.Parallel()
	cp := startControlPlane(t, delta)
	cp.set(plainCluster("x", "1"))
	r := startRelay(t, strings.Replace(relayTo(cp.address, "delta"), "- address: 127.0.0.1:0", "- {address: 127.0.0.1:0, csds: true}", 1))
	c := newClient(t, r, sotw, node("envoy-1", ""))
	c.subscribe(clusterType, wildcard)
	c.awaitHas(t, "the cluster", plainCluster("x", "1"))
	eventually(t, "a client sees itself", func() error {
		resp, err := clientStatus(t, r.address, "envoy-1")
		if err != nil {
			return err
		}
		if got := statusTable(resp); got != "Cluster x ACKED SYNCED" {
			return fmt.Errorf("the client sees %s", got)
		}
		return nil
	})
}

// CSDS marks resources that come from the store, and resources of which a rollout withholds a newer version.
func TestCSDSShowsWhatIsStaleAndWhatIsKeptBack(t *testing.T) {
	t.Parallel()
	const stale = ": stale: it is from the store, and no control plane has confirmed it since the relay started"
	const keptBack = ": kept back: a rollout has something newer, which this client does not get yet"
	cp := startControlPlane(t, delta)
	cp.set(plainListener("l", "content-l1"))
	config := storing(t, rolledOut(cp.address, "delta", "soak: 1h"), "")
	r := startRelay(t, config)
	fl := newFleet(t, delta, func() *grpc.ClientConn { return connect(t, r.address) })
	for _, id := range []string{"envoy-0", "envoy-1"} {
		fl.join(id, "envoy", temper{}, listenerType)
	}
	have := func(content string, n int) (who []string) {
		t.Helper()
		fl.await(t, fmt.Sprintf("%d clients have %s", n, content), func(s *fleetState) bool {
			who = s.who(content)
			return len(who) == n
		})
		return who
	}
	have("l1", 2)
	for _, id := range []string{"envoy-0", "envoy-1"} {
		awaitStatus(t, r, id, "Listener l ACKED SYNCED")
	}
	cp.set(plainListener("l", "content-l2"))
	first := have("l2", 1)[0]
	for _, id := range []string{"envoy-0", "envoy-1"} {
		want := "Listener l ACKED SYNCED"
		if id != first {
			want = "Listener l ACKED NOT_SENT" + keptBack
		}
		awaitStatus(t, r, id, want)
	}
	awaitStatus(t, r, "", "Listener l ACKED NOT_SENT"+keptBack)

	r.awaitStored(t, 1)
	cp.stop()
	r.kill(t)
	r = startRelay(t, config)
	c := newClient(t, r, sotw, node("after", ""))
	c.subscribe(listenerType, wildcard)
	c.awaitHas(t, "the stored listener", plainListener("l", "content-l1"))
	awaitStatus(t, r, "after", "Listener l ACKED SYNCED"+stale)
	awaitStatus(t, r, "", "Listener l ACKED SYNCED"+stale)
}

// Every kind of admin listener serves CSDS: in plaintext, on a unix socket, and over TLS to clients with a
// certificate. Against DNS rebinding, it also refuses gRPC requests with an unknown host name.
func TestCSDSOnEachKindOfAdminListener(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA(t, "ops")
	server, person := issued(t, ca, "relay"), issued(t, ca, "person")
	files := mount(t, map[string][]byte{"cert.pem": server.Cert, "key.pem": server.Key, "ca.pem": certtest.PEM(ca)})
	socket := filepath.Join(t.TempDir(), "admin.sock")
	secure := credentials.NewTLS(&tls.Config{RootCAs: pool(ca), Certificates: []tls.Certificate{person.TLS}, MinVersion: tls.VersionTLS12})
	for _, test := range []struct {
		name, admin string
		options     []grpc.DialOption
		want        codes.Code
	}{
		{"plaintext", "address: 127.0.0.1:0", []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, codes.OK},
		{"another site", "address: 127.0.0.1:0", []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("evil.example")}, codes.PermissionDenied},
		{"unix", "address: 'unix:" + socket + "'", []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, codes.OK},
		{
			"tls", fmt.Sprintf("address: 127.0.0.1:0\n  tls: {cert_file: %s, key_file: %s, client_ca_file: %s}", files.path("cert.pem"), files.path("key.pem"), files.path("ca.pem")),
			[]grpc.DialOption{grpc.WithTransportCredentials(secure)}, codes.OK,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := relayTo("127.0.0.1:1", "delta")
			at := strings.Index(config, "admin:")
			config = config[:at] + strings.Replace(config[at:], "address: 127.0.0.1:0", test.admin, 1)
			r := startRelay(t, config)
			conn, err := grpc.NewClient(r.admin, test.options...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			service := statusv3.NewClientStatusDiscoveryServiceClient(conn)
			resp, err := service.FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{})
			if status.Code(err) != test.want {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if err != nil {
				return
			}
			if len(resp.GetConfig()) != 1 {
				t.Errorf("got %v", resp)
			}
			stream, err := service.StreamClientStatus(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // a stream may have several requests
				if err := stream.Send(&statusv3.ClientStatusRequest{}); err != nil {
					t.Fatal(err)
				}
				if _, err := stream.Recv(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
