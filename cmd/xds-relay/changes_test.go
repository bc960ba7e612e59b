package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// The command shows what has changed, with the difference, and what was done, and follows what comes.
func TestChangesShowsWhatHasChanged(t *testing.T) {
	w := brokenworld.Start(t)
	s := &rolledOut{t: t}
	follow := startChanges(t, "--admin", w.Operator, "--type", "listener", "--follow")
	w.Change(t)
	var stdout string
	s.until("the change is shown", func() (bool, string) {
		stdout, _, _ = runCommand(t, "changes", "--admin", w.Operator, "--type", "listener")
		return strings.Contains(stdout, "1 changed") && strings.Contains(stdout, "clients have accepted it"), stdout
	})
	mustContain(t, stdout, "listener: 1 changed of "+brokenworld.Shop, `~ "`, "        -", "        +", "first answered")
	follow.await("1 changed")
	inspected(t, w, 0, "rollout", "freeze", "--authority", brokenworld.EU)

	stdout, _ = inspected(t, w, 0, "changes")
	mustContain(t, stdout, "[control_plane] warning: control plane lost", "authority="+brokenworld.Down, "rollout keeps back", `[relay] the configuration runs`, "[approval] audit: an operator acted on rollouts", "action=freeze")
	if strings.Contains(stdout, brokenworld.Marker) {
		t.Errorf("a secret is printed:\n%s", stdout)
	}
	stdout, _ = inspected(t, w, 0, "changes", "--client", brokenworld.Healthy, "--name", "web", "--type", "listener", "--since", "1h", "-o", "json")
	var l operator.ChangeList
	if err := json.Unmarshal([]byte(stdout), &l); err != nil || len(l.Changes) != 1 || len(l.Changes[0].Resources) != 1 {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	if e, r := l.Changes[0], l.Changes[0].Resources[0]; r.Name != "web" || r.Change != operator.ChangeChanged || !strings.Contains(r.Difference, "\n+") || e.Clients == nil || e.Clients.ACKed == 0 {
		t.Errorf("the change is\n%s", stdout)
	}
	inspected(t, w, statusNotAll, "changes", "no such text")
	w.ChangeSecret(t)
	s.until("the change of the secret is shown", func() (bool, string) {
		stdout, _, _ = runCommand(t, "changes", "--admin", w.Operator, "--type", "secret", "-o", "json")
		return strings.Contains(stdout, `"change": "changed"`), stdout
	})
	mustContain(t, stdout, "it has a secret, so the relay keeps only that it changed")
	if strings.Contains(stdout, brokenworld.Marker) || strings.Contains(stdout, "difference") || strings.Contains(stdout, "new_version") {
		t.Errorf("more than the change of a secret is printed:\n%s", stdout)
	}
	inspected(t, w, statusNotAll, "changes", "--client", "envoy-eu-1", "--type", "listener", "--name", "web")
	inspected(t, w, statusNotAll, "changes", "--client", "nobody")
	for _, args := range [][]string{{"--since", "yesterday"}, {"--type", "claster"}, {"-o", "xml"}, {"-o", "xml", "--follow"}, {"a", "b"}} {
		inspected(t, w, statusUsage, append([]string{"changes"}, args...)...)
	}
}

// startedChanges is a command that follows changes.
type startedChanges struct {
	t     *testing.T
	lines *bufio.Scanner
}

func startChanges(t *testing.T, args ...string) startedChanges {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx, append([]string{"changes"}, args...), writer, io.Discard)
		writer.Close()
	}()
	t.Cleanup(func() { cancel(); reader.Close(); <-done })
	return startedChanges{t, bufio.NewScanner(reader)}
}

func (c startedChanges) await(text string) {
	c.t.Helper()
	for c.lines.Scan() {
		if strings.Contains(c.lines.Text(), text) {
			return
		}
	}
	c.t.Fatalf("the output ended without %q", text)
}

// With -o diff, a change is the difference from the state before. A secret that changes is not shown.
func TestWatchPrintsDifferences(t *testing.T) {
	plane := newControlPlane(t)
	plane.set(t, "1", "blue")
	w := startWatch(t, "--server", testplane.Listen(t, plane), "--node-id", "test", "--type", "cluster", "-o", "diff")
	expect := func(want ...string) {
		t.Helper()
		for _, line := range want {
			if got := stamp.ReplaceAllString(w.line(), "TIME"); !strings.HasPrefix(got, line) {
				t.Fatalf("got %q, want %q", got, line)
			}
		}
	}
	expect(`TIME + added cluster "blue"`, "  @@ -0,0 +1,4 @@", "  +name: blue", "  +resource:", "  +  '@type'", "  +  name: blue")
	plane.set(t, "2")
	expect(`TIME - removed cluster "blue"`, "  @@ -1,4 +0,0 @@", "  -name: blue")
	if _, status := w.stop(); status != 0 {
		t.Errorf("status %d", status)
	}
	if _, stderr, status := runCommand(t, "get", "--type", "cluster", "-o", "diff"); status != statusUsage || !strings.Contains(stderr, "want yaml, json or name") {
		t.Errorf("get -o diff: status %d, %s", status, stderr)
	}
}
