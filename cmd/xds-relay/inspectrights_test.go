package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/operator"
	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// What a client may not have, the commands do not show as its own, and they say which rule denies it. No command
// prints a private key: neither of a Secret, nor of a cluster.
func TestCommandsShowWhatRightsDeny(t *testing.T) {
	w := brokenworld.StartWithRights(t)
	awaitAnswered(t, w, brokenworld.Trusted, brokenworld.Confidential, "-t", "cluster")

	stdout, _ := inspected(t, w, 0, "explain", brokenworld.Trusted, brokenworld.Confidential, "-t", "cluster")
	mustContain(t, stdout, `rights[0] (relay.yaml:12) matches`, "the client has version")
	stdout, _ = inspected(t, w, statusNotAll, "explain", brokenworld.Denied, brokenworld.Confidential, "-t", "cluster")
	mustContain(t, stdout, "rights:   stops here: the client may not have it: rights[0] (relay.yaml:12) does not allow it", "the client does not have it")
	mustNotContain(t, stdout, brokenworld.ConfidentialAlt)
	stdout, _ = inspected(t, w, statusNotAll, "explain", brokenworld.Denied, brokenworld.Confidential, "-t", "cluster", "-o", "json")
	var e operator.Explanation
	if err := json.Unmarshal([]byte(stdout), &e); err != nil || e.Has || e.Held == nil || e.Held.Has || e.Held.Bytes > 0 || e.Held.State != "failed" {
		t.Errorf("explain: %v\n%s", err, stdout)
	}

	stdout, _ = inspected(t, w, statusNotAll, "diff", brokenworld.Trusted, brokenworld.Denied)
	mustContain(t, stdout, `cluster "payments": only the first has it`, `secret "web-certificate": the content differs`)
	mustNotContain(t, stdout, brokenworld.ConfidentialAlt)
	stdout, _ = inspected(t, w, statusNotAll, "diff", brokenworld.Trusted, brokenworld.Denied, "-o", "json")
	var d operator.ClientDifference
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || d.Total == 0 {
		t.Errorf("diff: %v\n%s", err, stdout)
	}
	for _, of := range d.Differences {
		if of.Name == brokenworld.Confidential && (of.B == nil || of.B.Has || !of.A.Has || of.Lines != "") {
			t.Errorf("diff shows what the second client may not have: %+v", of)
		}
	}

	stdout, _ = inspected(t, w, 0, "clients", "--state", "refused")
	mustContain(t, stdout, brokenworld.Denied)
	mustNotContain(t, stdout, brokenworld.Trusted, brokenworld.ConfidentialAlt)
	stdout, _, _ = runCommand(t, "status", "--admin", w.Operator, "-o", "json")
	mustContain(t, stdout, `"clients": 2`)
	mustNotContain(t, stdout, brokenworld.Marker, brokenworld.ConfidentialAlt)

	// lint asks as a client, and so gets what a client with its identity may have.
	stdout, stderr, status := runCommand(t, "lint", "--server", w.Clients, "--listener", "web", "--node-cluster", "eu")
	if status != statusNotAll {
		t.Errorf("lint: status %d\n%s%s", status, stdout, stderr)
	}
	mustContain(t, stdout, brokenworld.Confidential, "PERMISSION_DENIED")
	mustNotContain(t, stdout+stderr, brokenworld.Marker, brokenworld.ConfidentialAlt)
}

// awaitAnswered waits until the relay has read the answer of a client that has received a resource.
func awaitAnswered(t *testing.T, w *brokenworld.World, of ...string) {
	t.Helper()
	for began := time.Now(); ; {
		stdout, _, _ := runCommand(t, append(append([]string{"explain"}, of...), "--admin", w.Operator)...)
		if !strings.Contains(stdout, "has not answered") {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("the relay does not read the answer of %q:\n%s", of, stdout)
		}
	}
}

func mustNotContain(t *testing.T, text string, unwanted ...string) {
	t.Helper()
	for _, u := range unwanted {
		if strings.Contains(text, u) {
			t.Errorf("%q is in:\n%s", u, text)
		}
	}
}
