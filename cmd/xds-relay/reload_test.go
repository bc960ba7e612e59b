package main

// Reloads of the binary: by a signal, by the operator, and as the file changes.

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/xds-relay/xds-relay/operator"
)

// reloading is a relay whose log a test follows.
type reloading struct {
	*testing.T
	lines    <-chan string // has room for all
	server   string        // the listener
	operator string
}

// startReloading runs a relay with a file and flags until the test ends.
func startReloading(t *testing.T, config string, flags ...string) *reloading {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx, append([]string{"serve", "--config", config}, flags...), io.Discard, writer)
		writer.Close()
	}()
	const most = 10_000
	lines := make(chan string, most)
	go func() {
		defer close(lines)
		for log := bufio.NewScanner(reader); log.Scan(); {
			lines <- log.Text()
		}
	}()
	r := &reloading{T: t, lines: lines}
	t.Cleanup(func() { cancel(); <-ended })
	r.server = r.await(`msg="serving clients" address=(\S+)`)[1]
	r.operator = r.await(`msg="serving the operator" address=(\S+)`)[1]
	r.await(`msg="the configuration runs"`)
	return r
}

// await reads the log until a line matches.
func (r *reloading) await(pattern string) []string {
	r.Helper()
	for line := range r.lines {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(line); m != nil {
			return m
		}
	}
	r.Fatalf("the log has ended without %s", pattern)
	return nil
}

// config returns a configuration with a name for the relay.
func reloadingConfig(id string) string {
	return fmt.Sprintf("listeners: [{address: '127.0.0.1:0'}]\nauthorities: [{name: a, directory: .}]\nadmin: {address: '127.0.0.1:0'}\nnode: {id: %s}\n", id)
}

func writeConfig(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *reloading) post(path string) (body string, status int) {
	r.Helper()
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "http://"+r.operator+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		r.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		r.Fatal(err)
	}
	return string(text), answer.StatusCode
}

func (r *reloading) status() (s operator.ConfigStatus) {
	r.Helper()
	body, _ := page(r.T, r.operator, "/config")
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		r.Fatalf("%v in %s", err, body)
	}
	return s
}

func TestSIGHUPLoadsTheFileAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeConfig(t, path, reloadingConfig("one"))
	r := startReloading(t, path)
	before := r.status().Hash
	writeConfig(t, path, reloadingConfig("two"))
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m := r.await(`msg="the configuration was reloaded" by=SIGHUP config=(\S+) before=(\S+)`)
	if now := r.status(); m[2] != before || m[1] != now.Hash || now.Hash == before {
		t.Errorf("the log says %v, the hash was %s and is %s", m, before, now.Hash)
	}
	// What was done is among the changes, with the difference.
	stdout, stderr, code := runCommand(t, "changes", "reload", "--admin", r.operator)
	if want := "[reload] the configuration was reloaded by=SIGHUP config=" + m[1] + " before=" + before + " changes="; code != 0 || !strings.Contains(stdout, want) || !strings.Contains(stdout, "node changed") {
		t.Errorf("status %d, changes:\n%s%s\nwant %s", code, stdout, stderr, want)
	}
	metrics, _ := page(t, r.operator, "/metrics")
	for _, line := range []string{`xds_relay_config_info{hash="` + m[1] + `"} 1`, "xds_relay_config_last_reload_successful 1", "xds_relay_config_reload_failures_total 0"} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("no %q in the metrics", line)
		}
	}
}

func TestTheOperatorReloads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeConfig(t, path, reloadingConfig("one"))
	r := startReloading(t, path)
	before := r.status().Hash
	writeConfig(t, path, reloadingConfig("two")+"\nlisteners: 3\nunknown: key\n")
	body, status := r.post("/reload")
	if status != http.StatusUnprocessableEntity || !strings.Contains(body, "relay.yaml:6:") || !strings.Contains(body, "relay.yaml:7:1: unknown") {
		t.Errorf("status %d, answer %q", status, body)
	}
	r.await(`level=ERROR msg="the configuration was not reloaded, the old one goes on" by="POST /reload" config=` + before)
	r.await(`msg="audit: an operator wanted a reload" operator=loopback peer=\S+ outcome=failed before=` + before)
	metrics, _ := page(t, r.operator, "/metrics")
	for _, line := range []string{`xds_relay_config_info{hash="` + before + `"} 1`, "xds_relay_config_last_reload_successful 0", "xds_relay_config_reload_failures_total 1"} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("no %q in the metrics", line)
		}
	}
	writeConfig(t, path, reloadingConfig("three"))
	body, status = r.post("/reload")
	if now := r.status(); status != http.StatusOK || !strings.Contains(body, now.Hash) || now.Hash == before || now.Problem != "" {
		t.Errorf("status %d, answer %q, now %+v", status, body, now)
	}
	if m := r.await(`msg="(the configuration was reloaded|audit: an operator wanted a reload" operator=loopback peer=\S+ outcome=reloaded before=` + before + `)`); m != nil && !strings.HasPrefix(m[1], "audit") {
		t.Error("a reload over the admin listener is more than one line")
	}
}

func TestTheDemoHasNothingToReload(t *testing.T) {
	_, operator, stop := startDemo(t)
	r := &reloading{T: t, operator: operator}
	if body, status := r.post("/reload"); status != http.StatusNotFound || !strings.Contains(body, "without a configuration file") {
		t.Errorf("status %d, answer %q", status, body)
	}
	stop()
}

// A volume of a ConfigMap: the file is a symlink to one below ..data, which is a symlink to a folder, and
// is replaced by a rename.
func TestTheFileIsFollowedThroughSymlinks(t *testing.T) {
	volume := t.TempDir()
	put := func(folder, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(volume, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		writeConfig(t, filepath.Join(volume, folder, "relay.yaml"), text)
		if err := os.Symlink(folder, filepath.Join(volume, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	put("..first", reloadingConfig("one"))
	path := filepath.Join(volume, "relay.yaml")
	if err := os.Symlink("..data/relay.yaml", path); err != nil {
		t.Fatal(err)
	}
	r := startReloading(t, path, "--watch-config")
	before := r.status().Hash
	put("..second", reloadingConfig("two")+"unknown: key\n")
	r.await(`level=ERROR msg="the configuration was not reloaded, the old one goes on" by=watch config=` + before + ` file=\S+relay.yaml line=5 `)
	put("..third", reloadingConfig("three"))
	m := r.await(`msg="the configuration was reloaded" by=watch config=(\S+) before=` + before)
	// The file that could not be loaded may have been tried again when the next folder came.
	if now := r.status(); now.Hash != m[1] || now.Failures < 1 || now.Problem != "" {
		t.Errorf("the log says %s, the status is %+v", m[1], now)
	}
}
