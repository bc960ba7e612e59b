package main

import (
	"strings"
	"testing"
)

const withRights = `listeners:
  - address: 0.0.0.0:18000
    secrets: anyone
  - address: 127.0.0.1:18001
  - address: unix:/run/xds.sock
authorities:
  - name: cp.example.com
    servers: [{address: "cp.example.com:443", tls: {}}]
old_style_names:
  - authority: cp.example.com
    partition: node.cluster
rights:
  - when: type_url.endsWith(".Secret")
    allow: name.startsWith(identity.spiffe_path)
  - when: type_url == "type.googleapis.com/envoy.api.v2.Cluster"
    allow: false
  - when: name == "*"
    allow: identity.source != "none"
  - allow: name != "hidden"
  - when: authority == "a"
    allow: true
`

func TestCheckWarnsOfWhatIsDangerous(t *testing.T) {
	inFolder(t, map[string]string{"relay.yaml": withRights})
	stdout, stderr, status := runCommand(t, "check", "--config", "relay.yaml")
	const want = `warning: relay.yaml:2:5: listeners[0].address: 0.0.0.0:18000 is in plaintext, and other machines can reach it: anyone on the path can read and change everything, and no client is authenticated (want tls, 127.0.0.1 or a unix socket)
warning: relay.yaml:3:5: listeners[0].secrets: is anyone: every client that connects gets private keys (want authenticated)
warning: relay.yaml:11:5: old_style_names[0].partition: reads only the Node, in which a client can claim anything: it can get what the partition of any other Node has, as far as rights allow the names (want identity in partition or when)
warning: relay.yaml:14:5: rights[0].allow: compares with identity.spiffe_path alone: /ns/pay is the beginning of /ns/payroll too, and the same in every trust domain (want identity.trust_domain == "..." && name.startsWith(identity.spiffe_path + "/"))
warning: relay.yaml:15:5: rights[1].when: has the type URL type.googleapis.com/envoy.api.v2.Cluster, which type_url never is in rights (want type.googleapis.com/envoy.config.cluster.v3.Cluster)
warning: relay.yaml:20:5: rights[4]: can never match, because rights[3] always does (want that rule last)
`
	if stderr != want || status != 0 {
		t.Errorf("status %d, got\n%swant\n%s", status, stderr, want)
	}
	const says = `rights[0]: what has type_url.endsWith(".Secret") is for clients with name.startsWith(identity.spiffe_path)
rights[1]: what has type_url == "type.googleapis.com/envoy.api.v2.Cluster" is for nobody
rights[2]: what has name == "*" is for clients with identity.source != "none"
rights[3]: everything else is for clients with name != "hidden"
`
	if !strings.Contains(stdout, says) {
		t.Errorf("got\n%swant in it\n%s", stdout, says)
	}
}

func TestCheckSaysWhatAClientMayHaveAndWhichRuleSaysSo(t *testing.T) {
	inFolder(t, map[string]string{
		"relay.yaml":  withRights,
		"closed.yaml": strings.Replace(withRights, "    secrets: anyone\n", "", 1),
		"none.yaml":   withRights[:strings.Index(withRights, "rights:")],
		"gw.yaml":     "spiffe_id: spiffe://example.org/ns/pay/sa/gw\n",
		"pod.json":    `{"claims": {"sub": "pod"}}`,
		"bad.yaml":    "spifeid: x\n",
		"worse.yaml":  "source: ldap\n",
	})
	for _, tt := range []struct {
		rule           string
		args           []string
		stdout, stderr string // a part of it
		status         int
	}{
		{"by a rule that allows it", []string{"--name", "/ns/pay/sa/gw/cert", "--type", "secret", "--identity", "gw.yaml"},
			`rights decide on authority "cp.example.com", type_url "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", name "/ns/pay/sa/gw/cert"` + "\n" +
				`rights[0] (relay.yaml:13) matches: type_url.endsWith(".Secret") is true; it allows it: name.startsWith(identity.spiffe_path) is true` + "\n", "", 0},
		{"by a rule that denies it", []string{"--name", "/ns/other", "--type", "secret", "--identity", "gw.yaml"},
			"it denies it: name.startsWith(identity.spiffe_path) is false\n", "not served: the client may not have it: rights[0] (relay.yaml:13) does not allow it\n", statusNotAll},
		{"by one that cannot be evaluated", []string{"--name", "/ns/other", "--type", "secret", "--identity", "pod.json"},
			"cannot be evaluated for this client\n", "rights[0] (relay.yaml:13) cannot be evaluated for this client, and so does not allow it", statusNotAll},
		{"by a later rule", []string{"--name", "x", "--type", "cluster"},
			`rights[2] does not match: name == "*" is false` + "\n" + `rights[3] (relay.yaml:19) matches: it has no when; it allows it: name != "hidden" is true` + "\n", "", 0},
		{"without an identity", []string{"--name", "*", "--type", "cluster"}, "", "rights[2] (relay.yaml:17) does not allow it", statusNotAll},
		{"behind an alternative", []string{"--name", "xdstp://cp.example.com/envoy.config.cluster.v3.Cluster/x#alt=xdstp://b/envoy.config.cluster.v3.Cluster/%79"},
			`rights decide on authority "b", type_url "type.googleapis.com/envoy.config.cluster.v3.Cluster", name "xdstp://b/envoy.config.cluster.v3.Cluster/y"`, "", 0},
		{"by the listeners", []string{"--config", "closed.yaml", "--name", "x", "--type", "secret"},
			"listeners[0].secrets is authenticated: the listener gives it only to clients that have proven who they are", "gives Secrets only to clients that have proven who they are", statusNotAll},
		{"without rights", []string{"--config", "none.yaml", "--name", "x", "--type", "cluster"}, "", "", 0},
		{"an identity that is none", []string{"--name", "x", "--type", "cluster", "--identity", "bad.yaml"}, "", `--identity bad.yaml: not an identity: json: unknown field "spifeid"`, statusUsage},
		{"an unknown source", []string{"--name", "x", "--type", "cluster", "--identity", "worse.yaml"}, "", `--identity worse.yaml: source: "ldap" is not a source (want mtls, jwt, unix or none)`, statusUsage},
		{"an identity without a name", []string{"--identity", "gw.yaml"}, "", "--type and --identity go with --name", statusUsage},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			stdout, stderr, status := runCommand(t, append([]string{"check", "--config", "relay.yaml"}, tt.args...)...)
			if status != tt.status || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("status %d (want %d), stdout\n%swant in it\n%s\nstderr\n%swant in it\n%s", status, tt.status, stdout, tt.stdout, stderr, tt.stderr)
			}
		})
	}
}
