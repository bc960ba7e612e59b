package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

// rolledOut is a relay with a directory whose changes are rolled out, and a client.
type rolledOut struct {
	t      *testing.T
	folder string
	admin  string
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient

	mu   sync.Mutex
	logs strings.Builder
}

// startRollouts runs a relay with a rollout that is frozen, and waits until a client has what the
// directory had first.
func startRollouts(t *testing.T, admin string) *rolledOut {
	t.Helper()
	s := &rolledOut{t: t, folder: t.TempDir()}
	s.write("first")
	config := filepath.Join(t.TempDir(), "relay.yaml")
	text := fmt.Sprintf(`
listeners: [{address: '127.0.0.1:0'}]
authorities: [{name: files, directory: %q, rollout: {frozen: true}}, {name: plain, directory: %q}]
old_style_names: [{authority: files}]
admin: %s
`, s.folder, t.TempDir(), admin)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx, []string{"serve", "--config", config}, io.Discard, writer)
		writer.Close()
	}()
	t.Cleanup(func() { cancel(); <-ended })
	addresses := make(chan string, 1)
	go func() {
		clients, operator := "", ""
		for log := bufio.NewScanner(reader); log.Scan(); {
			s.mu.Lock()
			fmt.Fprintln(&s.logs, log.Text())
			s.mu.Unlock()
			if m := regexp.MustCompile(`msg="serving clients" .*address=(\S+)`).FindStringSubmatch(log.Text()); m != nil {
				clients = m[1]
			}
			if m := regexp.MustCompile(`msg="serving the operator" address=(\S+)`).FindStringSubmatch(log.Text()); m != nil {
				operator = m[1]
			}
			if clients != "" && operator != "" {
				s.admin = operator
				addresses <- clients
				operator = ""
			}
		}
	}()
	var address string
	select {
	case address = <-addresses:
	case <-time.After(time.Minute):
		t.Fatal("the relay does not serve")
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if s.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx); err != nil {
		t.Fatal(err)
	}
	s.send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: xdstype.ClusterV3, ResourceNamesSubscribe: []string{"cart"}})
	s.receives("first")
	return s
}

// write writes the directory's one cluster.
func (s *rolledOut) write(text string) {
	s.t.Helper()
	cluster := `{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "cart", "altStatName": "` + text + `"}`
	if err := os.WriteFile(filepath.Join(s.folder, "new"), []byte(cluster), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(s.folder, "new"), filepath.Join(s.folder, "a.json")); err != nil {
		s.t.Fatal(err)
	}
}

func (s *rolledOut) send(m *discoveryv3.DeltaDiscoveryRequest) {
	s.t.Helper()
	if err := s.stream.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

// receives waits until the client is sent the cluster with that text, and acknowledges it.
func (s *rolledOut) receives(text string) {
	s.t.Helper()
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.t.Fatal(err)
		}
		s.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdstype.ClusterV3, ResponseNonce: m.GetNonce()})
		for _, r := range m.GetResources() {
			if strings.Contains(string(r.GetResource().GetValue()), text) {
				return
			}
		}
	}
}

// rollout runs a subcommand.
func (s *rolledOut) rollout(args ...string) (stdout, stderr string, status int) {
	s.t.Helper()
	args = append([]string{"rollout", args[0], "--admin", s.admin}, args[1:]...)
	return runCommand(s.t, args...)
}

// await waits until a command succeeds with an output.
func (s *rolledOut) await(want string, args ...string) (stdout string) {
	s.t.Helper()
	s.until(fmt.Sprintf("%v prints %q", args, want), func() (ok bool, got string) {
		var stderr string
		var status int
		stdout, stderr, status = s.rollout(args...)
		return status == 0 && strings.Contains(stdout, want), fmt.Sprintf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	})
	return stdout
}

// awaitHeld waits until the change has come, and the rollout holds it.
func (s *rolledOut) awaitHeld() {
	s.t.Helper()
	s.await("files: held", "status")
	s.await(`changed cluster "cart"`, "status", "--authority", "files")
}

// awaitLine waits until the log has so many lines about something.
func (s *rolledOut) awaitLine(want string, n int) {
	s.t.Helper()
	s.until(fmt.Sprintf("the log has %d times %s", n, want), func() (bool, string) {
		log := s.logged()
		return strings.Count(log, want) == n, log
	})
}

// until waits until something is so.
func (s *rolledOut) until(what string, is func() (ok bool, got string)) {
	s.t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	timeout := time.After(time.Minute)
	for {
		ok, got := is()
		if ok {
			return
		}
		select {
		case <-again.C:
		case <-timeout:
			s.t.Fatalf("it does not come about that %s: %s", what, got)
		}
	}
}

func (s *rolledOut) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logs.String()
}

func TestOperatorsActOnRollouts(t *testing.T) {
	s := startRollouts(t, fmt.Sprintf("{address: %q}", "unix:"+filepath.Join(t.TempDir(), "admin.sock")))
	if stdout, stderr, status := s.rollout("approve"); status != statusNotAll || stdout != "" || stderr != "there was nothing to approve\n" {
		t.Errorf("approve of nothing: status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	s.write("second")
	s.awaitHeld()
	var all []operator.RolloutStatus
	if err := json.Unmarshal([]byte(s.await("[", "status", "-o", "json")), &all); err != nil || len(all) != 1 || all[0].Phase != "held" || !all[0].Frozen || all[0].Total != 1 {
		t.Errorf("status: %+v (%v)", all, err)
	}
	// What is for another partition does nothing here.
	if _, _, status := s.rollout("approve", "--partition", "another"); status != statusNotAll {
		t.Errorf("approve for another partition: status %d", status)
	}
	if stdout, stderr, status := s.rollout("approve", "--authority", "files", "--partition", ""); status != 0 || stdout != "approve: 1 rollouts\n" {
		t.Errorf("approve: status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	s.receives("second")
	if stdout, _, status := s.rollout("thaw"); status != 0 || stdout != "thaw: 1 rollouts\n" {
		t.Errorf("thaw: status %d, stdout %q", status, stdout)
	}
	s.await("files: idle\n", "status")
	if stdout, _, status := s.rollout("freeze", "--authority", "files"); status != 0 || stdout != "freeze: 1 rollouts\n" {
		t.Errorf("freeze: status %d, stdout %q", status, stdout)
	}
	s.await(", frozen", "status")

	// Each action is a line of log, which says who did it.
	want := fmt.Sprintf(`msg="audit: an operator acted on rollouts" action=approve operator="unix uid %d"`, os.Getuid())
	s.awaitLine("audit:", 5)
	s.awaitLine(want, 3)
}

// With TLS, the operator is who the certificate names.
func TestOperatorsAreKnownByTheirCertificates(t *testing.T) {
	t.Chdir(t.TempDir())
	operatorCertificates(t)
	files := map[string]string{}
	for _, name := range []string{"ca.pem", "admin.pem", "admin-key.pem", "operator.pem", "operator-key.pem"} {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = path
	}
	s := startRollouts(t, fmt.Sprintf("{address: '127.0.0.1:0', tls: {cert_file: %q, key_file: %q, client_ca_file: %q}}", files["admin.pem"], files["admin-key.pem"], files["ca.pem"]))
	_, stderr, status := s.rollout("freeze", "--ca-file", files["ca.pem"], "--cert-file", files["operator.pem"], "--key-file", files["operator-key.pem"])
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	s.awaitLine(`action=freeze operator="mtls operator.example.com"`, 1)
	if _, _, status := s.rollout("freeze"); status != statusFailed {
		t.Errorf("without a certificate: status %d, want %d", status, statusFailed)
	}
}

func TestRolloutCommandsThatFail(t *testing.T) {
	s := startRollouts(t, "{address: '127.0.0.1:0'}")
	for _, tt := range []struct {
		args   []string
		status int
		stderr string
	}{
		{[]string{"status", "--authority", "plain"}, statusNotAll, `authority "plain" has no rollout`},
		{[]string{"freeze", "--authority", "fiels"}, statusNotAll, `authority "fiels" has no rollout`},
		{[]string{"reject", "--reason", "no"}, statusNotAll, "there was nothing to reject"},
		{[]string{"status", "more"}, statusUsage, ""},
		{[]string{"status", "-o", "xml"}, statusUsage, "want text or json"},
		{[]string{"status", "--timeout", "0s"}, statusUsage, "want more than 0"},
		{[]string{"status", "--cert-file", "a"}, statusUsage, "--cert-file and --key-file go together"},
		{[]string{"thaw", "--reason", "no"}, statusUsage, "unknown flag"},
		{[]string{"status", "--tls"}, statusFailed, ""},
	} {
		_, stderr, status := s.rollout(tt.args...)
		if status != tt.status || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%v: status %d, stderr %q, want %d and %q", tt.args, status, stderr, tt.status, tt.stderr)
		}
	}
	for args, want := range map[string]int{"rollout": statusUsage, "rollout pause": statusUsage, "rollout status --admin nowhere": statusUsage, "rollout status --admin unix:/nowhere/at/all": statusFailed} {
		if _, stderr, status := runCommand(t, strings.Fields(args)...); status != want {
			t.Errorf("%s: status %d, want %d (%s)", args, status, want, stderr)
		}
	}
}

// The page has a button for each action. A browser may press them on the page itself, and no other
// site can have it do so.
func TestRolloutPage(t *testing.T) {
	s := startRollouts(t, "{address: '127.0.0.1:0'}")
	s.write("second")
	s.awaitHeld()
	at := "http://" + s.admin
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	do := func(method, path string, header http.Header) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, at+path, strings.NewReader(url.Values{"authority": {"files"}, "partition": {""}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header
		if header == nil {
			r.Header = http.Header{}
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, string(text)
	}
	answer, page := do(http.MethodGet, "/rollout", nil)
	for _, want := range []string{
		"<h2>files</h2>", "held, frozen", "<td>changed</td><td>cluster</td><td>cart</td>",
		`<form method="post" action="/rollout/approve">`, `action="/rollout/reject"`, `action="/rollout/thaw"`, `<input type="hidden" name="authority" value="files">`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s:\n%s", want, page)
		}
	}
	if got := answer.Header.Get("Content-Security-Policy"); !strings.Contains(got, "frame-ancestors 'none'") || !strings.Contains(got, "form-action 'self'") {
		t.Errorf("the page may be framed: %q", got)
	}
	for what, header := range map[string]http.Header{
		"another site":             {"Sec-Fetch-Site": {"cross-site"}},
		"another port of the host": {"Sec-Fetch-Site": {"same-site"}},
		"another origin":           {"Origin": {"https://evil.example"}},
		"an opaque origin":         {"Origin": {"null"}},
	} {
		if answer, _ := do(http.MethodPost, "/rollout/approve", header); answer.StatusCode != http.StatusForbidden {
			t.Errorf("a POST of %s has status %d", what, answer.StatusCode)
		}
	}
	// To look changes nothing.
	if answer, _ := do(http.MethodGet, "/rollout/approve", nil); answer.StatusCode == http.StatusOK {
		t.Error("a GET approves")
	}
	if answer, _ := do(http.MethodPost, "/rollout/destroy", nil); answer.StatusCode != http.StatusNotFound {
		t.Errorf("an action that there is not has status %d", answer.StatusCode)
	}
	if strings.Contains(s.logged(), "audit:") {
		t.Errorf("something was done:\n%s", s.logged())
	}
	answer, _ = do(http.MethodPost, "/rollout/approve", http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {at}, "Accept": {"text/html"}})
	if answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != "/rollout" {
		t.Errorf("the button leads to %d %s", answer.StatusCode, answer.Header.Get("Location"))
	}
	s.receives("second")
	s.awaitLine("action=approve operator=loopback", 1)
}
