package main

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/xds-relay/xds-relay/internal/testplane"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/anypb"
)

// deltaOnly is a server of one resource, of a type that nobody knows.
type deltaOnly struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

// DeltaAggregatedResources serves one stream.
func (deltaOnly) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	request, err := stream.Recv()
	if err != nil {
		return err
	}
	err = stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: request.GetTypeUrl(), Nonce: "1", Resources: []*discoveryv3.Resource{{
		Name: "a", Version: "1", Resource: &anypb.Any{TypeUrl: request.GetTypeUrl(), Value: []byte("\xff\x00")},
	}}})
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

func TestGetPrintsWhatIsThereAndSaysWhatIsNot(t *testing.T) {
	address := testplane.Listen(t, newControlPlane(t))
	unheard := testplane.Listen(t, deltaOnly{})
	nodeFile := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(nodeFile, []byte("id: test\ncluster: edge\nlocality: {zone: a}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		rule   string
		args   string
		status int
		stdout string // all of it, but for versions, which are hashes in delta
		stderr string // a part of it, or nothing
	}{
		{"by name, as YAML", "--server $ADDRESS --node-id test --protocol sotw --type cluster green blue", 0, `name: green
version: "1"
resource:
  '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: green
---
name: blue
version: "1"
resource:
  '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: blue
`, ""},
		{"as JSON", "--server $ADDRESS --node-id test --protocol sotw --type cds blue -o json", 0, `{
  "name": "blue",
  "version": "1",
  "resource": {
    "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    "name": "blue"
  }
}
`, ""},
		{"the wildcard", "--server $ADDRESS --node-id test --type cluster -o name", 0, "blue\ngreen\n", ""},
		{"the wildcard in SotW", "--server $ADDRESS --node-id test --type cluster -o name --protocol sotw", 0, "blue\ngreen\n", ""},
		{"as the node of a file", "--server $ADDRESS --node $NODE --type cluster -o name", 0, "blue\ngreen\n", ""},
		{"a full type URL", "--server $ADDRESS --node-id test --type type.googleapis.com/envoy.config.cluster.v3.Cluster -o name", 0, "blue\ngreen\n", ""},
		{"a name that does not exist, among others", "--server $ADDRESS --node-id test --protocol sotw --type cluster blue red -o name", 1,
			"blue\n", `cluster "red" does not exist`},
		{"a name that nobody answers", "--server $ADDRESS --node-id test --protocol sotw --type endpoint red --timeout $TIMEOUT", 1,
			"", `endpoint "red": no answer within $TIMEOUT`},
		{"a wildcard that nobody answers", "--server $ADDRESS --node-id stranger --type cluster --timeout $TIMEOUT", 1,
			"", "no answer within $TIMEOUT"},
		{"secrets are redacted", "--server $ADDRESS --node-id test --protocol sotw --type secret server", 0, `name: server
version: "1"
resource:
  '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: server
  tls_certificate:
    private_key:
      inline_string: '[redacted]'
`, ""},
		{"secrets are shown when requested", "--server $ADDRESS --node-id test --protocol sotw --type secret server --show-secrets", 0, `name: server
version: "1"
resource:
  '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: server
  tls_certificate:
    private_key:
      inline_string: hush
`, ""},
		{"a type that is not known", "--server $UNHEARD --type example.Unheard a", 0, `name: a
version: "1"
resource:
  '@type': type.googleapis.com/example.Unheard
  hidden: 2 bytes that may have secrets in them
`, ""},
		{"a type that is not known, with its secrets", "--server $UNHEARD --type example.Unheard a --show-secrets", 0, `name: a
version: "1"
resource:
  '@type': type.googleapis.com/example.Unheard
  value: /wA=
`, ""},
		{"content that does not decode", "--server $UNHEARD --type cluster a", 1,
			"", `cluster "a": it cannot be decoded as type.googleapis.com/envoy.config.cluster.v3.Cluster`},
		{"a type in the name", "--server $UNHEARD xdstp://x/example.Unheard/a --timeout $TIMEOUT", 1,
			"", `example.Unheard "xdstp://x/example.Unheard/a": no answer within $TIMEOUT`},
		{"a form that is not served", "--server $UNHEARD --type cluster --protocol sotw", 3,
			"", "does not serve sotw xDS on the aggregated discovery service (it answers UNIMPLEMENTED); try --protocol delta"},
		{"a server that is not there", "--server 127.0.0.1:1 --type cluster", 3,
			"", "cannot talk to 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"a server that wants no TLS", "--server $ADDRESS --tls --type cluster", 3,
			"", "speak plaintext"},
	} {
		t.Run(test.rule, func(t *testing.T) {
			var stdout, stderr string
			var status int
			for timeout := 200 * time.Millisecond; ; timeout *= 4 { // as long as this machine needs to connect
				values := strings.NewReplacer("$ADDRESS", address, "$UNHEARD", unheard, "$NODE", nodeFile, "$TIMEOUT", timeout.String())
				stdout, stderr, status = runCommand(t, append([]string{"get"}, strings.Fields(values.Replace(test.args))...)...)
				if !strings.Contains(test.args, "$TIMEOUT") || !strings.Contains(stderr, "no connection to") || timeout > time.Minute {
					test.stderr = values.Replace(test.stderr)
					break
				}
			}
			if status != test.status {
				t.Errorf("exit status %d, want %d", status, test.status)
			}
			if stdout != test.stdout {
				t.Errorf("standard output:\n%s\nwant:\n%s", stdout, test.stdout)
			}
			if !strings.Contains(stderr, test.stderr) || (test.stderr == "" && stderr != "") {
				t.Errorf("standard error:\n%s\nwant:\n%s", stderr, test.stderr)
			}
		})
	}
}

func TestUsageErrorsSayWhatWouldBeRight(t *testing.T) {
	badNode := filepath.Join(t.TempDir(), "node.json")
	if err := os.WriteFile(badNode, []byte(`{"identity": "x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args, want string
	}{
		{"gte", `unknown command "gte", did you mean "get"?`},
		{"get", "--type is missing (one of listener|lds, route|rds,"},
		{"get --type clutser", `--type: unknown type "clutser" (want one of listener|lds,`},
		{"get --type cluster --serve x", "unknown flag: --serve"},
		{"get --type cluster --server localhost", `--server "localhost": want host:port`},
		{"get --type cluster --protocol grpc", `--protocol: unknown protocol "grpc" (want delta or sotw)`},
		{"get --type cluster --output xml", `--output: unknown form "xml" (want yaml, json or name)`},
		{"get --type cluster --timeout 0s", "--timeout 0s: want more than 0"},
		{"get --type cluster --cert-file x", "--cert-file and --key-file go together"},
		{"get --type cluster --ca-file /nowhere.pem", "--ca-file: open /nowhere.pem: no such file or directory"},
		{"get --type cluster --ca-file " + badNode, "the file has no certificate (want PEM)"},
		{"get --type cluster --node /nowhere.json", "--node: open /nowhere.json: no such file or directory"},
		{"get --type cluster --node " + badNode, "not an envoy.config.core.v3.Node"},
		{"watch --type listener xdstp://a/envoy.config.cluster.v3.Cluster/b", "is of type cluster, not listener; request one type at a time"},
	} {
		_, stderr, status := runCommand(t, strings.Fields(test.args)...)
		if status != 2 || !strings.Contains(stderr, test.want) {
			t.Errorf("xds-relay %s: exit status %d, standard error:\n%s\nwant 2 and %q", test.args, status, stderr, test.want)
		}
	}
}

func TestGetOverTLS(t *testing.T) {
	// net/http's test server has a certificate for 127.0.0.1 and example.com.
	web := httptest.NewTLSServer(http.NotFoundHandler())
	defer web.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	creds := credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])
	address := testplane.Listen(t, newControlPlane(t), grpc.Creds(creds))

	ask := []string{"get", "--server", address, "--node-id", "test", "--type", "cluster", "-o", "name", "blue"}
	for _, test := range []struct {
		flags  []string
		status int
		stderr string
	}{
		{[]string{"--ca-file", ca}, 0, ""},
		{[]string{"--ca-file", ca, "--server-name", "example.com"}, 0, ""},
		{[]string{"--ca-file", ca, "--server-name", "other.org"}, 3, "other.org"},
		{[]string{"--tls"}, 3, "unknown authority"},
		{nil, 3, "TLS? the server may want it: --tls"},
	} {
		stdout, stderr, status := runCommand(t, append(ask, test.flags...)...)
		if status != test.status || !strings.Contains(stderr, test.stderr) {
			t.Errorf("%q: exit status %d, want %d, standard error:\n%s\nwant %q", test.flags, status, test.status, stderr, test.stderr)
		}
		if (stdout == "blue\n") != (test.status == 0) {
			t.Errorf("%q: standard output:\n%s", test.flags, stdout)
		}
	}
}
