package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/operator"
)

// startDemo runs the built-in demo on ports of its own, until stop.
func startDemo(t *testing.T) (server, operator string, stop func() (stderr string, status int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	reader, writer := io.Pipe()
	var stderr bytes.Buffer
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, writer, &stderr)
		writer.Close()
	}()
	hint := bufio.NewScanner(reader)
	for operator == "" && hint.Scan() {
		if m := regexp.MustCompile(`--server (\S+)`).FindStringSubmatch(hint.Text()); m != nil {
			server = m[1]
		}
		if m := regexp.MustCompile(`curl http://(\S+)/clients`).FindStringSubmatch(hint.Text()); m != nil {
			operator = m[1]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	return server, operator, func() (string, int) {
		cancel()
		code := <-status
		return stderr.String(), code
	}
}

// page fetches a page of the admin listener.
func page(t *testing.T, operator, path string) (body string, status int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+operator+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), response.StatusCode
}

// awaitMetric waits until /metrics has a line: what is counted may arrive just after the response.
func awaitMetric(t *testing.T, operator, line string) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	timeout := time.After(time.Minute)
	for {
		body, _ := page(t, operator, "/metrics")
		if strings.Contains(body, line) {
			return
		}
		select {
		case <-again.C:
		case <-timeout:
			t.Fatalf("no %q in\n%s", line, body)
		}
	}
}

func TestTheDemoServesAndEndsCleanly(t *testing.T) {
	server, _, stop := startDemo(t)
	for _, test := range []struct {
		rule           string
		args           string
		status         int
		stdout, stderr string // a part of it
	}{
		{"a wildcard, delta", "--type listener -o name", 0, "ingress\n", ""},
		{"a wildcard, SotW", "--type listener -o name --protocol sotw", 0, "ingress\n", ""},
		{"names", "--type cluster cart catalogue -o name", 0, "cart\ncatalogue\n", ""},
		{"an xdstp name", "xdstp://demo.example.com/envoy.config.cluster.v3.Cluster/payments -o name", 0,
			"xdstp://demo.example.com/envoy.config.cluster.v3.Cluster/payments\n", ""},
		{"a name that does not exist", "--type cluster nosuch", statusNotAll, "", `cluster "nosuch" does not exist`},
		{"a name that does not exist, SotW", "--type endpoint nosuch --protocol sotw", statusNotAll, "", `endpoint "nosuch" does not exist`},
		{"an authority that is not configured, delta", "xdstp://nowhere/envoy.config.cluster.v3.Cluster/x", statusNotAll, "",
			`does not exist: NOT_FOUND: xdstp name "xdstp://nowhere/envoy.config.cluster.v3.Cluster/x": authority "nowhere" is not configured at this relay`},
		{"an authority that is not configured, SotW", "xdstp://nowhere/envoy.config.endpoint.v3.ClusterLoadAssignment/x --protocol sotw", statusNotAll, "",
			`authority "nowhere" is not configured at this relay`},
	} {
		t.Run(test.rule, func(t *testing.T) {
			args := append([]string{"get", "--server", server}, strings.Fields(test.args)...)
			stdout, stderr, status := runCommand(t, args...)
			if status != test.status || stdout != test.stdout || !strings.Contains(stderr, test.stderr) {
				t.Errorf("status %d (want %d), stdout %q (want %q), stderr %q (want in it %q)", status, test.status, stdout, test.stdout, stderr, test.stderr)
			}
		})
	}
	stderr, status := stop()
	if status != 0 || strings.Contains(stderr, "level=ERROR") || !strings.Contains(stderr, "msg=\"shutting down\"") {
		t.Errorf("status %d, log\n%s", status, stderr)
	}
}

func TestTheOperatorSeesClientsAndAuthorities(t *testing.T) {
	server, address, stop := startDemo(t)
	w := startWatch(t, "--server", server, "--node-id", "n1", "--node-cluster", "edge", "--type", "cluster", "-o", "name")
	for range 2 { // cart and catalogue
		w.line()
	}

	body, status := page(t, address, "/clients")
	var clients []operator.ClientStatus
	if err := json.Unmarshal([]byte(body), &clients); err != nil || status != http.StatusOK {
		t.Fatalf("status %d: %v in %s", status, err, body)
	}
	if len(clients) != 1 || clients[0].Node != "n1" || clients[0].Cluster != "edge" || clients[0].Form != "delta" ||
		len(clients[0].Types) != 1 || clients[0].Types[0] != (operator.TypeStatus{Type: "cluster", Subscriptions: 1}) {
		t.Errorf("clients: %s", body)
	}

	body, _ = page(t, address, "/authorities")
	var authorities []operator.AuthorityStatus
	if err := json.Unmarshal([]byte(body), &authorities); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if len(authorities) != 1 || authorities[0].Authority != "demo.example.com" || authorities[0].Directory.Resources != 7 {
		t.Errorf("authorities: %s", body)
	}

	for _, line := range []string{
		"xds_relay_downstream_streams 1\n",
		"xds_relay_downstream_responses_total 1\n",
		"xds_relay_cache_sets 1\n",
		"xds_relay_directory_errors{grpc_xds_authority=\"demo.example.com\"} 0\n",
		"\ngo_gc_heap_live_bytes ",
		"\nprocess_cpu_seconds_total ",
	} {
		awaitMetric(t, address, line)
	}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/": http.StatusOK, "/none": http.StatusNotFound} {
		if _, status := page(t, address, path); status != want {
			t.Errorf("%s: status %d, want %d", path, status, want)
		}
	}
	w.stop()
	if stderr, status := stop(); status != 0 {
		t.Errorf("status %d, log\n%s", status, stderr)
	}
}

// startServe runs a configuration whose first listener has port 0, until stop.
func startServe(t *testing.T, config string) (server string, stop func() (stderr string, status int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	reader, writer := io.Pipe()
	var log bytes.Buffer
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, []string{"serve", "--config", config}, io.Discard, writer)
		writer.Close()
	}()
	lines := bufio.NewScanner(io.TeeReader(reader, &log))
	for server == "" && lines.Scan() {
		if m := regexp.MustCompile(`msg="serving clients" address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			server = m[1]
		}
	}
	drained := make(chan struct{})
	go func() {
		for lines.Scan() { // into log
		}
		close(drained)
	}()
	return server, func() (string, int) {
		cancel()
		code := <-status
		<-drained
		return log.String(), code
	}
}

// A client that no rule matches receives that reason, and not an answer that the resource
// does not exist.
func TestClientsWithoutARuleAreSentWhyAndNotThatNothingExists(t *testing.T) {
	const config = `listeners:
  - address: 127.0.0.1:0
authorities:
  - name: onprem
    directory: resources
old_style_names:
  - when: node.cluster == "edge"
    authority: onprem
    partition: node.metadata["secret-key"]
`
	inFolder(t, map[string]string{"relay.yaml": config, "resources/cart.yaml": cartYAML})
	server, stop := startServe(t, "relay.yaml")
	const withNode = "Use the Node of one of its clients: --node FILE"
	for _, test := range []struct{ rule, args, stderr, help string }{
		{"no rule matches, delta", "--type cluster cart",
			`FAILED_PRECONDITION: old-style names: no rule of old_style_names matches node "xds-relay-cli" of cluster ""`, withNode},
		{"no rule matches, SotW", "--type cluster cart --protocol sotw",
			`FAILED_PRECONDITION: old-style names: no rule of old_style_names matches node "xds-relay-cli" of cluster ""`, withNode},
		{"no rule matches, all of them", "--type cluster", `no rule of old_style_names matches node "xds-relay-cli" of cluster ""`, withNode},
		{"the partition cannot be determined", "--type cluster cart --node-cluster edge",
			`FAILED_PRECONDITION: the partition of node "xds-relay-cli" cannot be determined: old_style_names[0].partition cannot be evaluated for this Node`, withNode},
		{"a name of another type", "--type listener xdstp://onprem/envoy.config.cluster.v3.Cluster/x", "is of type cluster, not listener", ""},
	} {
		t.Run(test.rule, func(t *testing.T) {
			args := append([]string{"get", "--server", server}, strings.Fields(test.args)...)
			_, stderr, status := runCommand(t, args...)
			if status == 0 || !strings.Contains(stderr, test.stderr) || !strings.Contains(stderr, test.help) || strings.Contains(stderr, "does not exist") || strings.Contains(stderr, "secret-key") {
				t.Errorf("status %d, stderr %q (want in it %q)", status, stderr, test.stderr)
			}
		})
	}
	log, status := stop()
	if status != 0 || !strings.Contains(log, "secret-key") {
		t.Errorf("status %d; the log does not say what is wrong with the partition:\n%s", status, log)
	}
}

// What cannot be had is an error, and says nothing of what there is.
func TestAControlPlaneThatCannotBeReachedIsReportedAsSuch(t *testing.T) {
	const config = `listeners:
  - address: 127.0.0.1:0
authorities:
  - name: cp
    servers:
      - address: 127.0.0.1:1 # where nobody listens
old_style_names:
  - authority: cp
`
	inFolder(t, map[string]string{"relay.yaml": config})
	server, stop := startServe(t, "relay.yaml")
	for _, args := range []string{"--type cluster cart", "--type cluster cart --protocol sotw", "--type endpoint cart --protocol sotw", "--type cluster"} {
		_, stderr, status := runCommand(t, append([]string{"get", "--server", server}, strings.Fields(args)...)...)
		if status != statusNotAll || !strings.Contains(stderr, "UNAVAILABLE: control plane of cp cannot be reached") ||
			strings.Contains(stderr, "there is no") || strings.Contains(stderr, "does not exist") {
			t.Errorf("%s: status %d, stderr %q", args, status, stderr)
		}
	}
	if log, status := stop(); status != 0 {
		t.Errorf("status %d, log\n%s", status, log)
	}
}

func TestServeSaysWhichPortIsTaken(t *testing.T) {
	server, _, stop := startDemo(t)
	_, stderr, status := runCommand(t, "serve", "--listen", server, "--admin", "127.0.0.1:0")
	if want := "listeners[0].address: listen tcp " + server + ": bind: address already in use"; status != statusFailed || !strings.Contains(stderr, want) {
		t.Errorf("status %d, stderr %q (want in it %q)", status, stderr, want)
	}
	stop()
}

func TestServeRefusesBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--log-level loud": `--log-level: "loud" is none of debug, info, warn, error`,
		"--log-format xml": `--log-format: "xml" is neither text nor json`,
		"--set lingr=1m":   `"lingr" is not the path of a key that has one value (want one such as listeners[0].address)`,
		"--set linger":     `"linger" has no = (want KEY=VALUE, such as cache.linger=1m)`,
		"a.yaml b.yaml":    "accepts at most 1 arg(s), received 2",
	} {
		_, stderr, status := runCommand(t, append([]string{"serve"}, strings.Fields(args)...)...)
		if status != statusUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, stderr %q (want in it %q)", args, status, stderr, want)
		}
	}
}
