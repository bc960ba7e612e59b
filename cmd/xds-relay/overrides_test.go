package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// Settings come from flags, the environment and the file, in this order, in each command
// that reads a configuration.

const relayConfig = `listeners: [{address: "127.0.0.1:1"}]
authorities: [{name: a, directory: resources}]
`

func TestCheckReadsTheEnvironmentAndFlagsAsServeDoes(t *testing.T) {
	inFolder(t, map[string]string{"relay.yaml": relayConfig, "resources/.keep": ""})
	t.Setenv("XDS_RELAY_CONFIG", "relay.yaml")
	t.Setenv("XDS_RELAY_LOG_LEVEL", "debug")
	t.Setenv("XDS_RELAY_LISTENERS_0_ADDRESS", "127.0.0.1:2")
	t.Setenv("XDS_RELAY_LISTENERS_0_LONG_POLL", "2s")
	for args, want := range map[string]string{
		"":                                       "serves clients on 127.0.0.1:2 over grpc (v3, plaintext); polls wait up to 2s",
		"--set listeners[0].address=127.0.0.1:3": "serves clients on 127.0.0.1:3 over grpc (v3, plaintext); polls wait up to 2s",
		"--set listeners[0].long_poll=3s --set listeners[0].v2=true": "serves clients on 127.0.0.1:2 over grpc (v3 and v2, plaintext); polls wait up to 3s",
	} {
		stdout, stderr, status := runCommand(t, append([]string{"check"}, strings.Fields(args)...)...)
		origin := "listeners[0].address: set by XDS_RELAY_LISTENERS_0_ADDRESS\n"
		if strings.Contains(args, ".address=") {
			origin = "listeners[0].address: set by --set\n"
		}
		if status != 0 || stderr != "" || !strings.Contains(stdout, want) || !strings.Contains(stdout, origin) {
			t.Errorf("%q: status %d, stderr %q, stdout\n%s\nwant in it\n%s", args, status, stderr, stdout, want)
		}
	}
	t.Setenv("XDS_RELAY_LISTENER_0_ADDRESS", "127.0.0.1:2")
	for command, want := range map[string]int{"check": statusNotAll, "serve": statusFailed} {
		_, stderr, status := runCommand(t, command)
		if hint := "XDS_RELAY_LISTENER_0_ADDRESS: unknown variable (did you mean XDS_RELAY_LISTENERS_0_ADDRESS?)\n"; status != want || !strings.HasSuffix(stderr, hint) {
			t.Errorf("%s: status %d, stderr %q", command, status, stderr)
		}
	}
}

func TestServeTakesItsFlagsFromTheEnvironment(t *testing.T) {
	inFolder(t, map[string]string{"relay.yaml": "x: y\n"})
	t.Setenv("XDS_RELAY_CONFIG", "relay.yaml")
	t.Setenv("XDS_RELAY_ADMIN_ADDRESS", "nowhere")
	t.Setenv("XDS_RELAY_LOG_LEVEL", "loud")
	_, stderr, status := runCommand(t, "serve")
	if want := `XDS_RELAY_LOG_LEVEL: "loud" is none of debug, info, warn, error`; status != statusUsage || !strings.Contains(stderr, want) {
		t.Errorf("status %d, stderr %q (want in it %q)", status, stderr, want)
	}
	_, stderr, status = runCommand(t, "serve", "--log-level", "info")
	for _, want := range []string{"relay.yaml:1:1: x: unknown key", `XDS_RELAY_ADMIN_ADDRESS: admin.address: "nowhere" has no port`} {
		if status != statusFailed || !strings.Contains(stderr, want) {
			t.Errorf("status %d, stderr %q (want in it %q)", status, stderr, want)
		}
	}
	_, stderr, status = runCommand(t, "serve", "--log-level", "info", "--admin", "somewhere", "--listen", "elsewhere", "--config", "none.yaml")
	if want := "open none.yaml"; status != statusFailed || !strings.Contains(stderr, want) {
		t.Errorf("status %d, stderr %q (want in it %q)", status, stderr, want)
	}
	_, stderr, _ = runCommand(t, "serve", "--log-level", "info", "--admin", "somewhere", "--listen", "elsewhere")
	for _, want := range []string{`--admin: admin.address: "somewhere" has no port`, `--listen: listeners[0].address: "elsewhere" has no port`} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr %q (want in it %q)", stderr, want)
		}
	}
}

func TestSchemaPrintsAJSONSchema(t *testing.T) {
	stdout, stderr, status := runCommand(t, "schema")
	var schema struct {
		Properties map[string]struct{ Description string }
	}
	if err := json.Unmarshal([]byte(stdout), &schema); err != nil || status != 0 || stderr != "" {
		t.Fatalf("status %d, stderr %q, %v", status, stderr, err)
	}
	if schema.Properties["listeners"].Description == "" {
		t.Errorf("got %+v", schema)
	}
}
