package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const checkable = `listeners:
  - address: 127.0.0.1:0
  - address: 127.0.0.1:18001
    protocol: rest
    v2: true
    long_poll: 5s
authorities:
  - name: cloud.example.com
    servers:
      - address: cp.example.com:443
        tls: {}
  - name: "*.tenants.example.com"
    servers:
      - address: tenants.example.com:443
        protocol: sotw
  - name: onprem
    directory: resources
old_style_names:
  - when: node.cluster.startsWith("edge-")
    authority: cloud.example.com
    partition: node.cluster + "/" + node.locality.zone
  - authority: onprem
`

// inFolder makes a folder of those files the working directory.
func inFolder(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const cartYAML = `"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
name: cart
`

func TestCheckSaysWhatEachAuthorityAndRuleDoes(t *testing.T) {
	inFolder(t, map[string]string{"relay.yaml": checkable, "resources/cart.yaml": cartYAML})
	stdout, stderr, status := runCommand(t, "check", "--config", "relay.yaml")
	want := `authorities[2].directory: resources has 1 resources
listeners[0]: serves clients on 127.0.0.1:0 over grpc (v3, plaintext); polls wait up to 30s
listeners[1]: serves clients on 127.0.0.1:18001 over rest (v3 and v2, plaintext); polls wait up to 5s
authorities[0]: xdstp://cloud.example.com/... is fed by server cp.example.com:443 (auto, TLS)
authorities[1]: xdstp://*.tenants.example.com/... is fed by server tenants.example.com:443 (sotw, plaintext), separately for each authority
authorities[2]: xdstp://onprem/... is fed by directory resources
old_style_names[0]: a client with node.cluster.startsWith("edge-") is served from authority "cloud.example.com", sharing with those that have the same node.cluster + "/" + node.locality.zone
old_style_names[0]: different Nodes can have the same partition, because it joins texts that clients choose: see docs/partitions.md
old_style_names[0]: the relay sends the control plane a Node with only id, cluster, locality.zone of the first client of a partition; all clients of the partition get the same resources, also where their Nodes differ
old_style_names[1]: every other client is served from authority "onprem", sharing with all clients of this rule
`
	if stdout != want || stderr != "" || status != 0 {
		t.Errorf("status %d, stderr %q, got\n%swant\n%s", status, stderr, stdout, want)
	}
}

func TestCheckSaysWhichRelaysAreAFleet(t *testing.T) {
	inFolder(t, map[string]string{"resources/cart.yaml": cartYAML})
	writeCertificate(t)
	for members, want := range map[string]string{
		`listen: "127.0.0.1:1", members: {static: ["127.0.0.1:1", "127.0.0.1:2"]}`:                                                             `fleet: shares streams to the control planes with the members of "edge": 127.0.0.1:1, 127.0.0.1:2; serves them on 127.0.0.1:1 (plaintext, for this host only)`,
		`listen: "127.0.0.1:1", members: {etcd: {endpoints: ["http://127.0.0.1:2379"]}}`:                                                       `fleet: shares streams to the control planes with the members of "edge": those in etcd under /xds-relay/edge; serves them on 127.0.0.1:1 (plaintext, for this host only)`,
		`listen: ":1", members: {dns: "peers:1"}, tls: {cert_file: cert.pem, key_file: key.pem, ca_file: cert.pem, server_id: "spiffe://a/b"}`: `fleet: shares streams to the control planes with the members of "edge": the addresses of peers:1; serves them on :1 (TLS, for members with the id spiffe://a/b)`,
	} {
		if err := os.WriteFile("relay.yaml", []byte(checkable+"fleet: {name: edge, "+members+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, status := runCommand(t, "check", "--config", "relay.yaml")
		if !strings.Contains(stdout, "\n"+want+"\n") || stderr != "" || status != 0 {
			t.Errorf("status %d, stderr %q, got\n%swant\n%s", status, stderr, stdout, want)
		}
	}
}

func TestCheckSaysAllThatIsWrongAtOnce(t *testing.T) {
	const bad = `listeners:
  - adress: 127.0.0.1:0
authorities:
  - name: a
    servers:
      - address: cp.example.com
  - name: a
    directory: resources
old_style_names:
  - authority: b
    partition: node.nmae
`
	inFolder(t, map[string]string{"relay.yaml": bad})
	want := `relay.yaml:2:5: listeners[0].adress: unknown key (did you mean "address"?)
relay.yaml:6:9: authorities[0].servers[0].address: "cp.example.com" has no port (want host:port)
relay.yaml:7:5: authorities[1].name: "a" is already authorities[0] (want each name once)
relay.yaml:10:5: old_style_names[0].authority: "b" is not in authorities (want one of ["a"])
relay.yaml:11:5: old_style_names[0].partition: does not compile: column 5: undefined field 'nmae' (want CEL over node, identity and type_url)
`
	stdout, stderr, status := runCommand(t, "check", "--config", "relay.yaml")
	if stdout != "" || stderr != want || status != statusNotAll {
		t.Errorf("check: status %d, stdout %q, got\n%swant\n%s", status, stdout, stderr, want)
	}
	_, stderr, status = runCommand(t, "serve", "--config", "relay.yaml")
	if want := "xds-relay serve: the configuration is not valid:\n" + want; stderr != want || status != statusFailed {
		t.Errorf("serve: status %d, got\n%swant\n%s", status, stderr, want)
	}
}

func TestCheckReadsTheFilesThatTheConfigurationNames(t *testing.T) {
	const config = `listeners:
  - address: 127.0.0.1:0
    tls: {cert_file: none.pem, key_file: none.pem}
authorities:
  - name: a
    directory: resources
  - name: b
    directory: nowhere
`
	inFolder(t, map[string]string{"relay.yaml": config, "resources/bad.yaml": cartYAML + "connect_timeout: soon\n"})
	stdout, stderr, status := runCommand(t, "check", "--config", "relay.yaml")
	if stdout != "" || status != statusNotAll {
		t.Errorf("status %d, stdout %q", status, stdout)
	}
	for _, want := range []string{
		"relay.yaml:3:11: listeners[0].tls.cert_file: open none.pem: no such file or directory\n",
		"authorities[0].directory:\nresources/bad.yaml:3:",
		"Duration",
		"authorities[1].directory:\nnowhere: no such directory\n",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in\n%s", want, stderr)
		}
	}
}

func TestCheckExplainsWhatBecomesOfAName(t *testing.T) {
	inFolder(t, map[string]string{
		"relay.yaml": checkable,
		"node.json":  `{"id": "n1", "cluster": "edge-7", "locality": {"zone": "b"}}`,
	})
	for _, test := range []struct {
		rule           string
		args           []string
		stdout, stderr string // a part of it
		status         int
	}{
		{"by the first rule that matches the node", []string{"--name", "cart", "--type", "cluster", "--node", "node.json"},
			"partition \"edge-7/b\": node.cluster + \"/\" + node.locality.zone\nauthority \"cloud.example.com\": authorities[0]\nfed by server cp.example.com:443", "", 0},
		{"by the next if it does not", []string{"--name", "cart", "--type", "cluster", "--node", "node.json", "--node-cluster", "mesh"},
			"old_style_names[0] does not match: node.cluster.startsWith(\"edge-\") is false\nold_style_names[1] matches: it has no when\n", "", 0},
		{"an xdstp name by its authority", []string{"--name", "xdstp://a.tenants.example.com/envoy.config.cluster.v3.Cluster/x%3Ay"},
			"its key is xdstp://a.tenants.example.com/envoy.config.cluster.v3.Cluster/x:y\nauthority \"a.tenants.example.com\": authorities[1], which is *.tenants.example.com\n", "", 0},
		{"one of an authority that is not configured", []string{"--name", "xdstp://b/envoy.config.cluster.v3.Cluster/x"},
			"is an xdstp name", `not served: xdstp name "xdstp://b/envoy.config.cluster.v3.Cluster/x": authority "b" is not configured at this relay`, statusNotAll},
		{"a bad name", []string{"--name", "xdstp://b/", "--type", "cluster"},
			"", `no resource type`, statusNotAll},
		{"without a type", []string{"--name", "cart"}, "", "--type is missing", statusUsage},
		{"a node without a name", []string{"--node", "node.json"}, "", "--node goes with --name or --connect", statusUsage},
	} {
		t.Run(test.rule, func(t *testing.T) {
			stdout, stderr, status := runCommand(t, append([]string{"check", "--config", "relay.yaml"}, test.args...)...)
			if status != test.status || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) {
				t.Errorf("status %d (want %d), stdout\n%swant in it\n%s\nstderr\n%swant in it\n%s", status, test.status, stdout, test.stdout, stderr, test.stderr)
			}
		})
	}
}

func TestCheckNeedsAConfiguration(t *testing.T) {
	_, stderr, status := runCommand(t, "check")
	if want := "--config is missing"; status != statusUsage || !strings.Contains(stderr, want) {
		t.Errorf("status %d, stderr %q (want in it %q)", status, stderr, want)
	}
	_, stderr, status = runCommand(t, "check", "--config", filepath.Join(t.TempDir(), "none.yaml"))
	if want := "no such file"; status != statusFailed || !strings.Contains(stderr, want) {
		t.Errorf("status %d, stderr %q (want in it %q)", status, stderr, want)
	}
}
