package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// inspected runs a command for a relay, and returns what it prints. Its exit status has to be as wanted.
func inspected(t *testing.T, w *brokenworld.World, status int, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, got := runCommand(t, append(args, "--admin", w.Operator)...)
	if got != status {
		t.Errorf("%q: status %d, want %d\n%s%s", args, got, status, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, brokenworld.Marker) {
		t.Errorf("%q prints a private key", args)
	}
	return stdout, stderr
}

func mustContain(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}

// The commands say of a relay in which things are wrong what is wrong, by text, JSON and exit status.
func TestCommandsShowWhatARunningRelayDoes(t *testing.T) {
	w := brokenworld.Start(t)
	s := &rolledOut{t: t}
	s.until("the status has all that is wrong", func() (bool, string) {
		stdout, _, status := runCommand(t, "status", "--admin", w.Operator)
		return status == statusNotAll && strings.Contains(stdout, "no server can be reached") && strings.Contains(stdout, "waits") && strings.Contains(stdout, "rejects") && strings.Contains(stdout, "payments"), stdout
	})
	stdout, _ := inspected(t, w, statusNotAll, "status")
	mustContain(t, stdout, `error: authority "down.example.com": no server can be reached`, `error: client "envoy-web-2" rejects what it was sent of type cluster`,
		`error: route "web-routes" names cluster "payments", which does not exist`, `warning: the rollout of "eu.example.com" waits`)
	var status operator.RelayStatus
	stdout, _ = inspected(t, w, statusNotAll, "status", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &status); err != nil || len(status.Problems) < 4 || status.Clients != 3 {
		t.Errorf("status: %v\n%s", err, stdout)
	}

	stdout, _ = inspected(t, w, 0, "clients")
	mustContain(t, stdout, brokenworld.Healthy, brokenworld.Rejecting, brokenworld.Words)
	stdout, _ = inspected(t, w, 0, "clients", "WEB-2")
	if strings.Contains(stdout, brokenworld.Healthy) {
		t.Errorf("the search finds too much:\n%s", stdout)
	}
	stdout, _ = inspected(t, w, 0, "clients", "--state", "rejects", "-o", "json")
	var clients operator.ClientList
	if err := json.Unmarshal([]byte(stdout), &clients); err != nil || len(clients.Clients) != 1 || clients.Clients[0].Node != brokenworld.Rejecting {
		t.Errorf("clients: %v\n%s", err, stdout)
	}
	inspected(t, w, statusNotAll, "clients", "nobody")

	stdout, _ = inspected(t, w, 0, "explain", brokenworld.Healthy, "cart", "--type", "cluster")
	mustContain(t, stdout, `old_style_names[1] matches`, "directory", "the relay has version", "the client has version")
	stdout, _ = inspected(t, w, statusNotAll, "explain", brokenworld.Healthy, brokenworld.MissingCluster, "-t", "cds")
	mustContain(t, stdout, "stops here: it does not exist", "the client does not have it")
	stdout, _ = inspected(t, w, statusNotAll, "explain", brokenworld.Healthy, "xdstp://"+brokenworld.Down+"/envoy.config.cluster.v3.Cluster/stock")
	mustContain(t, stdout, "no server of authority", "connection refused", "the client does not have it")
	stdout, _ = inspected(t, w, 0, "explain", "#3", "checkout")
	mustContain(t, stdout, "rollout:", "keeps version", "from clients whose turn has not come")
	stdout, _ = inspected(t, w, statusNotAll, "explain", brokenworld.Rejecting, "cart", "-o", "json")
	var e operator.Explanation
	if err := json.Unmarshal([]byte(stdout), &e); err != nil || e.Has || e.Held == nil || e.Held.Reason != brokenworld.Words {
		t.Errorf("explain: %v\n%s", err, stdout)
	}
	inspected(t, w, statusNotAll, "explain", "nobody", "cart", "-t", "cluster")
	_, stderr := inspected(t, w, statusUsage, "explain", brokenworld.Healthy, "cart") // of which type?
	mustContain(t, stderr, "type is missing")
	_, stderr = inspected(t, w, statusUsage, "explain", "envoy", "cart", "-t", "cluster")
	mustContain(t, stderr, "more than one stream")

	stdout, _ = inspected(t, w, statusNotAll, "diff", brokenworld.Healthy, brokenworld.Rejecting)
	mustContain(t, stdout, `cluster "cart"`, `route "web-routes": only the first has it`, "alike")
	inspected(t, w, 0, "diff", brokenworld.Healthy, brokenworld.Healthy)
	stdout, _ = inspected(t, w, statusNotAll, "diff", brokenworld.Healthy, "envoy-eu-1", "-o", "json")
	var d operator.ClientDifference
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || d.Total != len(d.Differences) || d.Total < 5 {
		t.Errorf("diff: %v\n%s", err, stdout)
	}

	for _, args := range [][]string{{"status", "-o", "xml"}, {"clients", "a", "b"}, {"clients", "--state", "well"}, {"explain", "a"}, {"explain", "a", "b", "-t", "claster"}, {"diff", "a"}, {"status", "--timeout", "0s"}} {
		inspected(t, w, statusUsage, args...)
	}
	if _, _, status := runCommand(t, "status", "--admin", "127.0.0.1:1"); status != statusFailed {
		t.Errorf("without a relay: status %d", status)
	}
}

// A shell completes clients, authorities and types; the first two from the relay.
func TestShellsCompleteFromARunningRelay(t *testing.T) {
	w := brokenworld.Start(t)
	odd := w.Connect(t, &corev3.Node{Id: "envoy-\tweb"}, nil)
	odd.Subscribe(t, xdstype.ListenerV3, "*")
	odd.Await(t, "web")
	for _, tt := range []struct {
		args, want []string
	}{
		{[]string{"explain", "--admin", w.Operator, "envoy-w"}, []string{"envoy-web-1", "envoy-web-2"}},
		{[]string{"diff", "--admin", w.Operator, "envoy-web-1", "envoy-e"}, []string{"envoy-eu-1"}},
		{[]string{"clients", "--admin", w.Operator, "envoy-e"}, []string{"envoy-eu-1"}},
		{[]string{"explain", "--admin", w.Operator, "envoy-web-1", ""}, nil},
		{[]string{"rollout", "status", "--admin", w.Operator, "--authority", "e"}, []string{"eu.example.com"}},
		{[]string{"explain", "--type", "cl"}, []string{"cluster"}},
		{[]string{"explain", "--admin", "127.0.0.1:1", "env"}, nil},
	} {
		stdout, _, status := runCommand(t, append([]string{cobra.ShellCompNoDescRequestCmd}, tt.args...)...)
		got := strings.Split(strings.TrimSpace(stdout), "\n")
		got = got[:len(got)-1] // the last line is for the shell
		if status != 0 || fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%q: status %d, %q, want %q", tt.args, status, got, tt.want)
		}
	}
}

// What others have in their names does not reach a terminal as it is.
func TestNamesAreOneLine(t *testing.T) {
	var out strings.Builder
	printExplanation(&out, &operator.Explanation{Verdict: "a\x1b[31mb\nc", Steps: []operator.ExplanationStep{{Part: "name", Text: "x\ry"}}})
	if got := out.String(); strings.ContainsAny(got, "\x1b\r") || strings.Count(got, "\n") != 2 {
		t.Errorf("it prints %q", got)
	}
}

func TestStatusSaysWhoIsInTheFleet(t *testing.T) {
	for _, tt := range []struct {
		fleet operator.FleetStatus
		want  string
	}{
		{operator.FleetStatus{Name: "edge", Alone: true}, `fleet "edge": its members are not known yet
0 scopes come from the authorities' servers, 0 from other members of the fleet
`},
		{operator.FleetStatus{Name: "edge", OwnedScopes: 5, PeerScopes: 7, Members: []operator.FleetMember{
			{Address: "10.0.0.1:1", Self: true, Reachable: true}, {Address: "10.0.0.2:1", Reachable: true}, {Address: "10.0.0.3:1", Reason: "no answer within 1s"},
		}}, `fleet "edge": 10.0.0.1:1 is this relay
fleet "edge": 10.0.0.2:1 answers
fleet "edge": 10.0.0.3:1 does not answer
5 scopes come from the authorities' servers, 7 from other members of the fleet
`},
	} {
		var out strings.Builder
		printStatus(&out, &relayAnswer{Status: &operator.RelayStatus{Fleet: &tt.fleet}}, colours{})
		mustContain(t, out.String(), tt.want)
	}
}

// TestRowsOfAFleetNameTheirRelays, and who does not answer is said.
func TestRowsOfAFleetNameTheirRelays(t *testing.T) {
	row := func(node, at string) (c operator.ClientRow) {
		c.Node, c.State, c.Relay = node, "ok", at
		return c
	}
	silent := []operator.NoAnswer{{Relay: "10.0.0.3:1", Reason: "no answer\nwithin 1s"}}
	for _, tt := range []struct {
		print func(out io.Writer)
		want  []string
	}{
		{func(out io.Writer) {
			printClients(out, &operator.ClientList{Clients: []operator.ClientRow{row("one", "10.0.0.1:1"), row("two", "10.0.0.2:1")}, More: true, NoAnswer: silent})
		}, []string{"RELAY", "10.0.0.1:1", "10.0.0.2:1", "no answer from 10.0.0.3:1: no answer within 1s\n", "there are more"}},
		{func(out io.Writer) {
			printStatus(out, &relayAnswer{Status: &operator.RelayStatus{
				Relay: "10.0.0.1:1", Clients: 1, AllClients: 3, NoAnswer: silent,
				Problems: []operator.Problem{{Severity: "error", Text: "it burns", Relay: "10.0.0.2:1"}},
			}}, colours{})
		}, []string{"3 streams of clients at all relays that answer; this one is 10.0.0.1:1\n", "error at 10.0.0.2:1: it burns\n", "no answer from 10.0.0.3:1"}},
		{func(out io.Writer) { printExplanation(out, &operator.Explanation{Relay: "10.0.0.2:1"}) }, []string{"10.0.0.2:1"}},
		{func(out io.Writer) {
			printRollout(out, operator.RolloutStatus{Relay: "10.0.0.2:1", Authority: "cp", Phase: "rolling"})
			printRollout(out, operator.RolloutStatus{Relay: "10.0.0.3:1", Phase: "unknown", Reason: "no answer within 1s"})
		}, []string{"10.0.0.2:1: cp: rolling", "10.0.0.3:1: no answer: no answer within 1s\n"}},
	} {
		var out strings.Builder
		tt.print(&out)
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is not in\n%s", want, &out)
			}
		}
	}
}
