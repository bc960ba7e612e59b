package interop

// The relay as a subprocess.

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// relay is a running relay.
type relay struct {
	*process
	address string // for clients
	admin   string // for the operator
}

// startRelay starts the relay in front of a control plane, and waits until it serves. The relay finds out
// which form the control plane speaks, and sends it the Node of each client. So the configuration is the same
// for all control planes and clients.
func startRelay(t testing.TB, controlPlane string) *relay {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	config := fmt.Sprintf(`
listeners:
  - address: 127.0.0.1:0
admin:
  address: 127.0.0.1:0
node:
  id: the-relay
authorities:
  - name: control-plane
    servers:
      - address: %s
        protocol: auto
        backoff: {base: 20ms, max: 200ms}
old_style_names:
  - authority: control-plane
    partition: node.id
`, controlPlane)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &relay{}
	t.Cleanup(func() { r.check(t) }) // runs after start's cleanup, which ends the relay
	cmd := exec.Command(binary, "serve", "--config", file)
	// By default, the race detector delays the exit of a process by a second, to find races at its end. A
	// shorter delay is enough.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=50")
	r.process = start(t, "the relay", cmd, syscall.SIGTERM)
	r.address = r.logged(t, `msg="serving clients" address=(\S+)`)
	r.admin = r.logged(t, `msg="serving the operator" address=(\S+)`)
	return r
}

// logged waits for a line in the logs, and returns what the pattern's group
// matches in it.
func (r *relay) logged(t testing.TB, pattern string) (group string) {
	t.Helper()
	line := regexp.MustCompile(pattern)
	eventually(t, "the relay logs "+pattern, func() error {
		if match := line.FindStringSubmatch(r.logs.String()); match != nil {
			group = match[1]
			return nil
		}
		if err := r.failed(); err != nil {
			t.Fatalf("%v; its logs: %s", err, r.logs.tail())
		}
		return fmt.Errorf("it has not logged that")
	})
	return group
}

// check fails the test if the relay, which has exited, had errors.
func (r *relay) check(t testing.TB) {
	t.Helper()
	if r.process == nil {
		return
	}
	if status := r.cmd.ProcessState.ExitCode(); status != 0 {
		t.Errorf("the relay ended with %v, want status 0", r.cmd.ProcessState)
	}
	if strings.Contains(r.logs.String(), "DATA RACE") {
		t.Errorf("the relay has a data race:\n%s", r.logs.tail())
	}
}

// checkRejections checks that no client has rejected a response.
func (r *relay) checkRejections(t testing.TB) {
	t.Helper()
	reply, err := http.Get("http://" + r.admin + "/clients")
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = reply.Body.Close() }()
	var clients []struct {
		Node  string `json:"node"`
		Types []struct {
			Type          string `json:"type"`
			LastRejection string `json:"last_rejection"`
		} `json:"types"`
	}
	if err := json.NewDecoder(reply.Body).Decode(&clients); err != nil {
		t.Errorf("cannot read /clients: %v", err)
	}
	if len(clients) == 0 {
		t.Error("the relay has no clients")
	}
	for _, c := range clients {
		for _, typ := range c.Types {
			if typ.LastRejection != "" {
				t.Errorf("the client %s has rejected a %s: %s", c.Node, typ.Type, typ.LastRejection)
			}
		}
	}
}
