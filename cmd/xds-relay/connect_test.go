package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	"google.golang.org/grpc"

	"github.com/xds-relay/xds-relay/internal/testplane"
)

// listenWithoutADS serves clusters and listeners on their own services.
func listenWithoutADS(t *testing.T) string {
	t.Helper()
	plane := newControlPlane(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	clusterservice.RegisterClusterDiscoveryServiceServer(server, plane)
	listenerservice.RegisterListenerDiscoveryServiceServer(server, plane)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

func TestCheckConnectSaysWhatEachControlPlaneAnswers(t *testing.T) {
	plane := testplane.Listen(t, newControlPlane(t))
	services := listenWithoutADS(t)
	gone := testplane.RefusingAddress(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, operator, stop := startDemo(t)
	defer stop()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	for _, tt := range []struct {
		name, server, flags string
		status              int
		want                string
	}{
		{"a control plane", fmt.Sprintf("{address: %q}", plane), "--node-id test", 0, "connected (plaintext, delta, aggregated): 2 clusters"},
		{"in SotW", fmt.Sprintf("{address: %q, protocol: sotw}", plane), "--node-id test", 0, "connected (plaintext, sotw, aggregated): 2 clusters"},
		{"of another Node", fmt.Sprintf("{address: %q}", plane), "--node-id stranger --timeout 300ms", 0, `no answer for clusters within 300ms (it may know no Node "stranger"`},
		{"without ADS", fmt.Sprintf("{address: %q}", services), "--node-id test", 1, "does not serve the form that the configuration has: aggregated: false"},
		{"by service", fmt.Sprintf("{address: %q, aggregated: false}", services), "--node-id test", 0, "connected (plaintext, delta, a stream for each type): 2 clusters"},
		{"nobody", fmt.Sprintf("{address: %q}", gone), "", 1, "cannot connect: Unavailable: dial tcp " + gone},
		{"TLS to a server without", fmt.Sprintf("{address: %q, tls: {}}", plane), "", 1, "the server speaks plaintext: it has no `tls`"},
		{"somebody silent", fmt.Sprintf("{address: %q}", silent.Addr()), "--timeout 300ms", 1, "no connection within 300ms"},
		{"the wrong port", fmt.Sprintf("{address: %q}", operator), "", 1, "it serves no form of xDS: it is another gRPC server, such as the admin listener of a relay"},
		{"REST to a gRPC server", fmt.Sprintf("{address: %q, protocol: rest}", plane), "", 1, "it is a gRPC server, and the configuration has protocol: rest"},
	} {
		text := "listeners: [{address: '127.0.0.1:0'}]\nauthorities: [{name: a, servers: [" + tt.server + "]}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, status := runCommand(t, append([]string{"check", file, "--connect"}, strings.Fields(tt.flags)...)...)
		if status != tt.status || !strings.Contains(stdout+stderr, tt.want) {
			t.Errorf("%s: status %d, want %d with %q\n%s%s", tt.name, status, tt.status, tt.want, stdout, stderr)
		}
		if _, _, status := runCommand(t, "check", file); status != 0 {
			t.Errorf("%s: without --connect, check has status %d", tt.name, status)
		}
	}
}

func TestDiffComparesTwoServers(t *testing.T) {
	server, _, stop := startDemo(t)
	defer stop()
	other, _, stopOther := startDemo(t)
	defer stopOther()
	if stdout, stderr, status := runCommand(t, "diff", "--server", server, "--server", other); status != 0 || !strings.HasPrefix(stdout, "0 differences, ") {
		t.Errorf("two of the same: status %d\n%s%s", status, stdout, stderr)
	}
	plane := testplane.Listen(t, newControlPlane(t))
	stdout, stderr, status := runCommand(t, "diff", "--server", server, "--server", plane, "--node-id", "test", "-o", "json")
	var d serversDifference
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || status != statusNotAll || len(d.Differences) < 4 {
		t.Errorf("two others: status %d, %v\n%s%s", status, err, stdout, stderr)
	}
	folders := [2]string{t.TempDir(), t.TempDir()}
	var relays []string
	for i, timeout := range []string{"1s", "2s"} {
		text := fmt.Sprintf("resources:\n- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: cart\n  connect_timeout: %s\n", timeout)
		if err := os.WriteFile(filepath.Join(folders[i], "c.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(t.TempDir(), "relay.yaml")
		text = "listeners: [{address: '127.0.0.1:0'}]\nadmin: {address: '127.0.0.1:0'}\nauthorities: [{name: a, directory: " + folders[i] + "}]\nold_style_names: [{authority: a}]\n"
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		relays = append(relays, startReloading(t, config).server)
	}
	stdout, _, status = runCommand(t, "diff", "-s", relays[0], "-s", relays[1])
	if status != statusNotAll {
		t.Errorf("one timeout differs: status %d", status)
	}
	mustContain(t, stdout, `cluster "cart": the content differs`, "-  connect_timeout: 1s", "+  connect_timeout: 2s", "1 difference, ")
	for _, args := range [][]string{{"-s", server}, {"-s", server, "-s", other, "a", "b"}, {"a"}} {
		if _, _, status := runCommand(t, append([]string{"diff"}, args...)...); status != statusUsage {
			t.Errorf("%q: status %d", args, status)
		}
	}
}

func TestStoresAreExportedWhileTheirRelayRuns(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "accepted.db")
	writeStore(t, path, "")
	config := filepath.Join(folder, "relay.yaml")
	text := "listeners: [{address: '127.0.0.1:0'}]\nadmin: {address: '127.0.0.1:0'}\nstore: {path: " + path + "}\nauthorities: [{name: a, servers: [{address: '127.0.0.1:1'}]}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	offline := filepath.Join(folder, "offline.jsonl")
	if _, stderr, status := runCommand(t, "store", "export", "--path", path, offline); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	if _, stderr, status := runCommand(t, "store", "info", "--path", config); status != statusFailed || !strings.Contains(stderr, "it is another file than a store of the relay") {
		t.Errorf("another file: status %d: %s", status, stderr)
	}
	r := startReloading(t, config)
	if _, stderr, status := runCommand(t, "store", "info", "--path", path); status != statusFailed || !strings.Contains(stderr, "xds-relay store export --admin") {
		t.Errorf("a store in use: status %d: %s", status, stderr)
	}
	online := filepath.Join(folder, "online.jsonl")
	_, stderr, status := runCommand(t, "store", "export", "--admin", r.operator, online)
	if status != 0 || strings.HasPrefix(stderr, "0 records") {
		t.Errorf("status %d: %s", status, stderr)
	}
	of := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if of(online) != of(offline) {
		t.Errorf("the running relay exports\n%s\nand its file has\n%s", of(online), of(offline))
	}
	again := filepath.Join(folder, "again.db")
	if _, stderr, status := runCommand(t, "store", "import", "--path", again, online); status != 0 {
		t.Errorf("import: status %d: %s", status, stderr)
	}
	if left, err := filepath.Glob(filepath.Join(folder, ".export-*")); err != nil || len(left) > 0 {
		t.Errorf("the copy is left: %q, %v", left, err)
	}
	_, demo, stop := startDemo(t)
	defer stop()
	without := filepath.Join(folder, "without.jsonl")
	if _, stderr, status := runCommand(t, "store", "export", "--admin", demo, without); status != statusFailed || !strings.Contains(stderr, "no store (store.path)") {
		t.Errorf("a relay without a store: status %d: %s", status, stderr)
	}
	if _, err := os.Stat(without); err == nil {
		t.Error("a failed export leaves a file")
	}
}
