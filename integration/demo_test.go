package integration

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// run runs the binary with these arguments until it ends.
func run(t testing.TB, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// TestDemoServesWithoutConfiguration checks the first steps of the README: serve without a configuration, get
// from it, Ctrl-C.
func TestDemoServesWithoutConfiguration(t *testing.T) {
	t.Parallel()
	// The default ports of the demo may be in use, so the test chooses others.
	demo := runRelay(t, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	demo.stdout.await(t, "the demo prints commands to try", func(all *bytes.Buffer) bool {
		return strings.Contains(all.String(), "get --server "+demo.address) && strings.Contains(all.String(), "curl http://"+demo.admin)
	})

	const payments = "xdstp://demo.example.com/envoy.config.cluster.v3.Cluster/payments"
	for _, get := range []struct {
		name   string
		args   []string
		status int
		stdout []string // parts of the output, in this order
		stderr string
	}{
		{"all listeners", []string{"--type", "listener"}, 0, []string{"name: ingress", "version:", "HttpConnectionManager", "route_config_name: shop"}, ""},
		{"clusters by name", []string{"--type", "cluster", "cart", "catalogue"}, 0, []string{"name: cart", "---\n", "name: catalogue"}, ""},
		{"all clusters in SotW", []string{"--type", "cds", "--protocol", "sotw", "-o", "name"}, 0, []string{"cart\ncatalogue\n"}, ""},
		{"endpoints as JSON", []string{"--type", "eds", "-o", "json", "cart"}, 0, []string{`"name": "cart"`, `"port_value": 8081`}, ""},
		{"an xdstp name", []string{payments}, 0, []string{"payments.example.com"}, ""},
		{"a cluster that does not exist", []string{"--type", "cluster", "nothing"}, 1, nil, `cluster "nothing" does not exist`},
		{"a cluster that exists and one that does not", []string{"--type", "cluster", "cart", "nothing"}, 1, []string{"name: cart"}, `cluster "nothing" does not exist`},
		{"an unknown authority", []string{"xdstp://other.example.com/envoy.config.cluster.v3.Cluster/x"}, 1, nil, "other.example.com"},
		{"no type", []string{"cart"}, 2, nil, "--type is missing"},
	} {
		t.Run("get "+get.name, func(t *testing.T) {
			stdout, stderr, status := run(t, append([]string{"get", "--server", demo.address}, get.args...)...)
			if status != get.status {
				t.Errorf("exit status %d, want %d", status, get.status)
			}
			rest := stdout
			for _, want := range get.stdout {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Errorf("%q is missing in the output, or not in its place:\n%s", want, stdout)
				}
				rest = after
			}
			if len(get.stdout) == 0 && stdout != "" {
				t.Errorf("want no output, got:\n%s", stdout)
			}
			if !strings.Contains(stderr, get.stderr) || get.stderr == "" && stderr != "" {
				t.Errorf("standard error is %q, want %q in it", stderr, get.stderr)
			}
		})
	}
	t.Run("get without a server", func(t *testing.T) {
		away := openPort(t) // no server listens there
		if _, stderr, status := run(t, "get", "--server", away.address, "--timeout", "300ms", "--type", "cluster"); status != 3 || stderr == "" {
			t.Errorf("exit status %d with %q, want 3 and a reason", status, stderr)
		}
	})
	t.Run("the operator's pages", func(t *testing.T) {
		for path, want := range map[string]string{
			"/readyz": "ready", "/clients": "[", "/metrics": "xds_relay_cache_entries", "/authorities": "demo.example.com",
		} {
			if body := fetch(t, "http://"+demo.admin+path); !strings.Contains(body, want) {
				t.Errorf("%s has %q, want %q in it", path, body, want)
			}
		}
	})

	demo.end(t, os.Interrupt)
	if state := demo.cmd.ProcessState; state.ExitCode() != 0 {
		t.Errorf("after Ctrl-C the demo ended with %v, want status 0", state)
	}
	if log := demo.stderr.String(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "panic") {
		t.Errorf("the demo logged an error or a panic:\n%s", log)
	}
}

// fetch returns the page at url.
func fetch(t testing.TB, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %s, %v", url, resp.Status, err)
	}
	return string(body)
}
