package main

// What the commands have in common: where relays are, terminals, files as arguments, versions.

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/operator"
)

func TestAdminTakesURLsEverywhere(t *testing.T) {
	server, operator, stop := startDemo(t)
	defer stop()
	_ = server
	t.Setenv("XDS_RELAY_ADMIN", "http://"+operator+"/")
	for _, args := range [][]string{
		{"status", "--admin", "http://" + operator}, {"status", "--admin", "http://" + operator + "/"}, {"status", "--admin", operator}, {"status"},
		{"version", "--admin", "http://" + operator},
	} {
		if stdout, stderr, status := runCommand(t, args...); status != 0 {
			t.Errorf("%q: status %d\n%s%s", args, status, stdout, stderr)
		}
	}
	for _, args := range [][]string{{"clients"}, {"rollout", "status"}} {
		if stdout, stderr, status := runCommand(t, args...); status != statusNotAll { // there are none
			t.Errorf("%q: status %d\n%s%s", args, status, stdout, stderr)
		}
	}
	// serve and check have variables of the same prefix.
	if _, stderr, status := runCommand(t, "check", "../../configs/examples/minimal.yaml"); status != 0 {
		t.Errorf("check with the variable: status %d: %s", status, stderr)
	}
}

func TestStatusIsATableOfSeveralRelays(t *testing.T) {
	_, first, stop := startDemo(t)
	defer stop()
	_, second, stopOther := startDemo(t)
	defer stopOther()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, status := runCommand(t, "status", "--admin", first, "--admin", "http://"+second)
	if status != 0 || strings.Count(stdout, host) != 2 {
		t.Errorf("status %d\n%s", status, stdout)
	}
	mustContain(t, stdout, "RELAY", first, "http://"+second, "ready")
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	t.Setenv("XDS_RELAY_ADMIN", first+","+gone.Addr().String())
	stdout, stderr, status := runCommand(t, "status")
	if status != statusFailed {
		t.Errorf("with a relay that is gone: status %d", status)
	}
	mustContain(t, stdout, first, "no answer")
	mustContain(t, stderr, "no relay at "+gone.Addr().String())
	stdout, _, _ = runCommand(t, "status", "-o", "json")
	var answers []relayAnswer
	if err := json.Unmarshal([]byte(stdout), &answers); err != nil || len(answers) != 2 || answers[0].Status == nil || answers[0].Host != host || answers[1].Error == "" {
		t.Errorf("%v: %s", err, stdout)
	}
	if _, stderr, status := runCommand(t, "clients"); status != statusUsage || !strings.Contains(stderr, "for one relay, and there are 2") {
		t.Errorf("clients of two relays: status %d: %s", status, stderr)
	}
}

// followed runs a command until the test ends, and returns its output.
func followed(t *testing.T, args ...string) *bufio.Scanner {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx, args, writer, io.Discard)
		writer.Close()
	}()
	t.Cleanup(func() { cancel(); go func() { _, _ = io.Copy(io.Discard, reader) }(); <-ended })
	return bufio.NewScanner(reader)
}

func TestStatusCanBeWatched(t *testing.T) {
	server, operator, stop := startDemo(t)
	lines := followed(t, "status", "--watch", "--every", "5ms", "--admin", operator)
	await := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("no %q", text)
	}
	await("0 streams of clients")
	watch := startWatch(t, "--server", server, "--type", "cluster", "-o", "name")
	for range 2 { // cart and catalogue
		watch.line()
	}
	await("1 streams of clients")
	stop()
	await("no relay at " + operator)
}

func TestReloadLoadsTheFileOfARunningRelay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "relay.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const config = "listeners: [{address: '127.0.0.1:0'}]\nadmin: {address: '127.0.0.1:0'}\nauthorities: [{name: a, directory: .}]\n"
	write(config)
	r := startReloading(t, file)
	stdout, stderr, status := runCommand(t, "reload", "--admin", r.operator)
	if status != 0 || !strings.Contains(stdout, "the same as before") {
		t.Errorf("the same file: status %d: %s%s", status, stdout, stderr)
	}
	write(config + "cache: {linger: 3m}\n")
	stdout, _, status = runCommand(t, "reload", "--admin", r.operator, "-o", "json")
	var done []reloaded
	if err := json.Unmarshal([]byte(stdout), &done); err != nil || status != 0 || len(done) != 1 || done[0].Before.Hash == done[0].Now.Hash {
		t.Errorf("another file: status %d, %v: %s", status, err, stdout)
	}
	write(config + "cach: {}\n")
	_, stderr, status = runCommand(t, "reload", "--admin", r.operator)
	if status != statusNotAll || !strings.Contains(stderr, "cach") {
		t.Errorf("a file with an error: status %d: %s", status, stderr)
	}
	_, demo, stop := startDemo(t)
	defer stop()
	_, stderr, status = runCommand(t, "reload", "--admin", demo)
	if status != statusNotAll || !strings.Contains(stderr, "without a configuration file") {
		t.Errorf("the demo: status %d: %s", status, stderr)
	}
}

func TestServeTakesItsFileAsCheckDoes(t *testing.T) {
	for _, args := range [][]string{{"serve"}, {"check"}} {
		_, stderr, status := runCommand(t, append(args, "nosuch.yaml")...)
		if status == 0 || !strings.Contains(stderr, "nosuch.yaml") {
			t.Errorf("%q: status %d: %s", args, status, stderr)
		}
		_, stderr, status = runCommand(t, append(args, "a.yaml", "--config", "b.yaml")...)
		if status != statusUsage || !strings.Contains(stderr, "given twice") {
			t.Errorf("%q: status %d: %s", args, status, stderr)
		}
	}
}

func TestVersionSaysWhichProgramThisIs(t *testing.T) {
	build := operator.Build()
	want := build.String()
	for _, args := range [][]string{{"--version"}, {"version"}} {
		if stdout, _, status := runCommand(t, args...); status != 0 || stdout != "xds-relay "+want+"\n" {
			t.Errorf("%q: status %d: %q", args, status, stdout)
		}
	}
	_, operator, stop := startDemo(t)
	defer stop()
	stdout, _, status := runCommand(t, "version", "--admin", operator)
	if host := build.Host; status != 0 || host == "" || stdout != fmt.Sprintf("xds-relay %s on %s\n", want, host) {
		t.Errorf("of a running relay: status %d: %q", status, stdout)
	}
	awaitMetric(t, operator, `xds_relay_build_info{`)
}

func TestColoursAreForTerminalsAndThoseWhoWantThem(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("there are no terminals")
	}
	defer terminal.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, tt := range []struct {
		name    string
		out     io.Writer
		noColor string
		term    string
		want    bool
	}{
		{"a terminal", terminal, "", "xterm", true},
		{"a terminal without colours", terminal, "1", "xterm", false},
		{"a dumb terminal", terminal, "", "dumb", false},
		{"a file", file, "", "xterm", false},
		{"a buffer", io.Discard, "", "xterm", false},
	} {
		t.Setenv("NO_COLOR", tt.noColor)
		t.Setenv("TERM", tt.term)
		if got := coloursOf(tt.out).red("x"); (got == "\x1b[31mx\x1b[0m") != tt.want || !tt.want && got != "x" {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// What is at the address of --admin is said, and what to do.
func TestAdminErrorsSayWhatIsThere(t *testing.T) {
	server, _, stop := startDemo(t)
	defer stop()
	t.Chdir(t.TempDir())
	operatorCertificates(t)
	secure := startOperator(t, "{address: '127.0.0.1:0', tls: {cert_file: admin.pem, key_file: admin-key.pem, client_ca_file: ca.pem}}")
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent.Close()
	for _, tt := range []struct{ name, args, want string }{
		{"an xDS port", "--admin " + server, "is a gRPC server: a port for xDS clients"},
		{"TLS", "--admin " + secure, "speaks TLS: use https://"},
		{"no certificate", "--admin https://" + secure + " --ca-file ca.pem", "with --cert-file and --key-file"},
		{"no roots", "--admin https://" + secure, "name its roots with --ca-file"},
		{"another name", "--admin https://" + secure + " --ca-file ca.pem --server-name other.example", "name it with --server-name"},
		{"another site", "--admin " + site.URL, "and not the admin listener of an xds-relay: the relay's admin listener is at admin.address"},
		{"nothing", "--admin " + silent.Addr().String(), "no relay at " + silent.Addr().String() + " (connection refused)"},
		{"no socket", "--admin unix:nosuch.sock", "there is no such socket"},
		{"no address", "--admin relay", "want HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH"},
	} {
		begun := time.Now()
		_, stderr, status := runCommand(t, append([]string{"clients"}, strings.Fields(tt.args)...)...)
		if (status != statusFailed && status != statusUsage) || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: status %d after %v: %s", tt.name, status, time.Since(begun), stderr)
		}
	}
	if _, stderr, status := runCommand(t, "version", "--admin", "https://"+secure, "--ca-file", "ca.pem", "--cert-file", "operator.pem", "--key-file", "operator-key.pem"); status != 0 {
		t.Errorf("with a certificate: status %d: %s", status, stderr)
	}
}
