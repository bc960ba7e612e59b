package main

// `xds-relay check --against` and a relay that runs.

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

const againstConfig = `listeners:
  - address: 127.0.0.1:0
authorities:
  - {name: a, directory: FOLDER}
  - {name: b, directory: FOLDER}
old_style_names: [{authority: a}]
admin: {address: '127.0.0.1:0'}
node: {id: one}
`

// against is a relay with a client of three names and the wildcard, which was answered, and a file to check.
type against struct {
	*testing.T
	relay  *reloading
	folder string
	path   string
}

func startAgainst(t *testing.T) *against {
	t.Helper()
	a := &against{T: t, folder: t.TempDir()}
	a.path = filepath.Join(a.folder, "relay.yaml")
	resources := filepath.Join(a.folder, "resources")
	if err := os.Mkdir(resources, 0o700); err != nil {
		t.Fatal(err)
	}
	writeConfig(t, filepath.Join(resources, "cart.yaml"), cartYAML)
	a.write(againstConfig)
	a.relay = startReloading(t, a.path)
	conn, err := grpc.NewClient(a.relay.server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "n1", Cluster: "edge"}, TypeUrl: xdstype.ClusterV3,
		ResourceNamesSubscribe: []string{"*", "cart", "xdstp://b/envoy.config.cluster.v3.Cluster/x"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	return a
}

// write writes the file to check.
func (a *against) write(config string) {
	a.Helper()
	writeConfig(a.T, a.path, strings.ReplaceAll(config, "FOLDER", filepath.Join(a.folder, "resources")))
}

func (a *against) check(flags ...string) (stdout, stderr string, status int) {
	a.Helper()
	stdout, stderr, status = runCommand(a.T, append([]string{"check", "--against", "http://" + a.relay.operator, a.path}, flags...)...)
	return regexp.MustCompile(`[0-9a-f]{12}|127.0.0.1:\d+`).ReplaceAllString(stdout, "X"), stderr, status
}

func (a *against) expect(what, config, want string) {
	a.Helper()
	a.write(config)
	stdout, stderr, status := a.check()
	if stdout != want || stderr != "" || status != 0 {
		a.Errorf("%s: status %d, stderr %q, got\n%swant\n%s", what, status, stderr, stdout, want)
	}
}

func TestCheckAgainstSaysWhatWouldChangeInTheRelay(t *testing.T) {
	a := startAgainst(t)
	before := a.relay.status()
	a.expect("the same", againstConfig, `configuration: the relay already runs it (X)
streams: 1 open; 0 end with their listeners, 0 because the listener does not admit their clients any more
names: 3 subscriptions; of them 0 move, 0 are denied, 0 are not served any more, 0 are allowed that are refused now
`)
	a.expect("another authority for old-style names, another node, another listener",
		strings.NewReplacer("id: one", "id: two", "[{authority: a}]", "[{authority: b, partition: node.cluster}]", "listeners:", "listeners:\n  - {address: 'localhost:0'}").Replace(againstConfig),
		`configuration: the relay runs X, the file is X
listener localhost:0: new
authority a: its own keys stay; the relay opens its streams to control planes again, or its directory
authority b: its own keys stay; the relay opens its streams to control planes again, or its directory
other keys that change: node, old_style_names
streams: 1 open; 0 end with their listeners, 0 because the listener does not admit their clients any more
names: 3 subscriptions; of them 2 move, 0 are denied, 0 are not served any more, 0 are allowed that are refused now
  2 move from authority a to authority b, partition "edge"
`)
	a.expect("an authority gone, another listener's limits, rights",
		strings.NewReplacer("  - {name: b, directory: FOLDER}\n", "  - {name: c, directory: FOLDER}\n", "127.0.0.1:0\nauth", "127.0.0.1:0\n    limits: {streams: 7}\nauth", "node:", "rights: [{allow: name != 'cart'}]\nnode:").Replace(againstConfig),
		`configuration: the relay runs X, the file is X
listener X: limits changed; its 1 streams stay
authority c: new
authority b: removed
other keys that change: rights
streams: 1 open; 0 end with their listeners, 0 because the listener does not admit their clients any more
names: 3 subscriptions; of them 0 move, 1 are denied, 1 are not served any more, 0 are allowed that are refused now
`)
	a.expect("a listener gone", strings.Replace(againstConfig, "127.0.0.1:0\nauth", "localhost:0\nauth", 1), `configuration: the relay runs X, the file is X
listener localhost:0: new
listener X: removed; its 1 streams end
streams: 1 open; 1 end with their listeners, 0 because the listener does not admit their clients any more
names: 0 subscriptions; of them 0 move, 0 are denied, 0 are not served any more, 0 are allowed that are refused now
`)
	a.expect("a client that is not admitted any more", strings.Replace(againstConfig, "127.0.0.1:0\nauth", "127.0.0.1:0\n    admit: identity.source == 'mtls'\nauth", 1), `configuration: the relay runs X, the file is X
listener X: admit changed; its 1 streams stay
streams: 1 open; 0 end with their listeners, 1 because the listener does not admit their clients any more
names: 0 subscriptions; of them 0 move, 0 are denied, 0 are not served any more, 0 are allowed that are refused now
`)
	a.expect("a rollout", strings.Replace(againstConfig, "name: a,", "name: a, rollout: {},", 1), `configuration: the relay runs X, the file is X
authority a: rollout changed; the relay opens its streams to control planes again, or its directory
streams: 1 open; 0 end with their listeners, 0 because the listener does not admit their clients any more
names: 3 subscriptions; of them 0 move, 0 are denied, 0 are not served any more, 0 are allowed that are refused now
`)
	if now := a.relay.status(); now != before {
		t.Errorf("the relay had %+v, and has %+v", before, now)
	}
}

func TestCheckAgainstPrintsJSON(t *testing.T) {
	a := startAgainst(t)
	a.write(strings.Replace(againstConfig, "authority: a}", "authority: b}", 1))
	stdout, _, status := a.check("-o", "json")
	var c operator.Changes
	if err := json.Unmarshal([]byte(stdout), &c); err != nil || status != 0 || c.Names == nil || c.Names.Move != 2 || !c.Names.Complete || c.Streams.Open != 1 {
		t.Errorf("status %d, %v in %s", status, err, stdout)
	}
}

func TestCheckAgainstSaysAllThatTheRelayWouldRefuse(t *testing.T) {
	a := startAgainst(t)
	before := a.relay.status()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, of := range []struct{ config, want string }{
		{againstConfig + "unknown: key\nlisteners: 3\n", "relay.yaml:9:1: unknown"},
		{againstConfig + "unknown: key\nlisteners: 3\n", "relay.yaml:10:"},
		// What only the running relay knows: another process has the address.
		{strings.Replace(againstConfig, "127.0.0.1:0\nauth", other.Addr().String()+"\nauth", 1), "relay.yaml:2:5: listeners[0].address: "},
		{againstConfig + "store: {path: FOLDER/no/such}\n", "relay.yaml:9:9: store.path: "},
	} {
		a.write(of.config)
		stdout, stderr, status := a.check()
		if status != statusNotAll || stdout != "" || !strings.Contains(stderr, of.want) || !strings.Contains(stderr, "the relay would not load it") {
			t.Errorf("status %d, stdout %q, stderr\n%swithout %q", status, stdout, stderr, of.want)
		}
		stdout, stderr, status = a.check("--output", "json")
		var c operator.Changes
		if err := json.Unmarshal([]byte(stdout), &c); err != nil || status != statusNotAll || len(c.Errors) == 0 || stderr != "" {
			t.Errorf("in JSON: status %d, stderr %q, %v in %s", status, stderr, err, stdout)
		}
	}
	if now := a.relay.status(); now != before {
		t.Errorf("the relay had %+v, and has %+v", before, now)
	}
}

// A store of a configuration that is only checked is not made.
func TestCheckAgainstMakesNoStore(t *testing.T) {
	a := startAgainst(t)
	path := filepath.Join(t.TempDir(), "store")
	a.write(againstConfig + "store: {path: '" + path + "'}\n")
	if stdout, stderr, status := a.check(); status != 0 || !strings.Contains(stdout, "other keys that change: store\n") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the store is there: %v", err)
	}
}

func TestCheckAgainstWithoutAnAnswer(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "relay.yaml")
	writeConfig(t, path, againstConfig)
	_, operator, stop := startDemo(t)
	for _, of := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--against", "unix:" + filepath.Join(folder, "no.sock"), path}, statusFailed, "no.sock"},
		{[]string{"--against", "http://" + operator, path}, statusFailed, "started without a configuration file"},
		{[]string{"--against", "http://" + operator, path + ".missing"}, statusFailed, "relay.yaml.missing"},
		{[]string{"--against", "http://", path}, statusUsage, "want HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH"},
		{[]string{"--against", "http://" + operator, path, "--set", "node.id=x"}, statusUsage, "--set does not go with --against"},
		{[]string{"--against", "http://" + operator, path, "--name", "x"}, statusUsage, "--name does not go with --against"},
		{[]string{"--against", "http://" + operator, path, "-o", "xml"}, statusUsage, "want text or json"},
		{[]string{"--against", "http://" + operator}, statusUsage, "--config is missing"},
		{[]string{"--against", "http://" + operator, path, "--config", path}, statusUsage, "given twice"},
	} {
		stdout, stderr, status := runCommand(t, append([]string{"check"}, of.args...)...)
		if status != of.status || stdout != "" || !strings.Contains(stderr, of.want) {
			t.Errorf("%q: status %d, stdout %q, stderr %q", of.args, status, stdout, stderr)
		}
	}
	stop()
}

// A page of another site must not have the relay look at files, and a document has an end.
func TestCheckRefusesOtherSitesAndLongDocuments(t *testing.T) {
	a := startAgainst(t)
	post := func(site, body string) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.relay.operator+"/check", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Sec-Fetch-Site", site)
		answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	const tooLong = 9 << 20
	for site, want := range map[string]int{"cross-site": http.StatusForbidden, "none": http.StatusUnprocessableEntity} {
		if status := post(site, "listeners: 3"); status != want {
			t.Errorf("a request from %s: status %d, want %d", site, status, want)
		}
	}
	if status := post("none", strings.Repeat("#", tooLong)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long document: status %d", status)
	}
}
