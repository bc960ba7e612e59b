package integration

// The operator's commands for rollouts.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
)

// operator runs `xds-relay rollout` against a relay.
type operator struct {
	t     *testing.T
	admin string
}

// rollout runs a subcommand, and returns its output on both standard streams and its exit status.
func (o operator) rollout(args ...string) (printed string, status int) {
	o.t.Helper()
	cmd := command(append([]string{"rollout", args[0], "--admin", o.admin}, args[1:]...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		o.t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// does runs a subcommand, and checks its exit status and the beginning of its output.
func (o operator) does(status int, begins string, args ...string) {
	o.t.Helper()
	if printed, is := o.rollout(args...); is != status || !strings.HasPrefix(printed, begins) {
		o.t.Errorf("rollout %s: exit status %d and output %q, want %d and %q", strings.Join(args, " "), is, printed, status, begins)
	}
}

// awaits waits until the output of `rollout status` contains line.
func (o operator) awaits(line string) {
	o.t.Helper()
	eventually(o.t, "the status has "+line, func() error {
		if printed, status := o.rollout("status"); status != 0 || !strings.Contains(printed, line) {
			return fmt.Errorf("exit status %d and output %q", status, printed)
		}
		return nil
	})
}

// An operator reads the status of rollouts, approves one, rejects one, freezes and thaws. The relay logs an
// audit line for each action, with the operator's identity.
func TestAnOperatorActsOnRollouts(t *testing.T) {
	t.Parallel()
	const clients = 4
	cp := startControlPlane(t, delta)
	cp.set(plainListener("l", "content-l1"))
	socket := filepath.Join(t.TempDir(), "admin.sock")
	config := strings.Replace(rolledOut(cp.address, "delta", "soak: 1h"), "address: 127.0.0.1:0", "address: 'unix:"+socket+"'", 2)
	// The first address is the clients' listener.
	config = strings.Replace(config, "address: 'unix:"+socket+"'", "address: 127.0.0.1:0", 1)
	r := startRelay(t, config)
	o := operator{t, "unix:" + socket}
	o.does(1, "there is no rollout", "status")

	fl := newFleet(t, delta, func() *grpc.ClientConn { return connect(t, r.address) })
	for i := range clients {
		fl.join(fmt.Sprintf("envoy-%d", i), "envoy", temper{}, listenerType)
	}
	have := func(content string, n int) {
		t.Helper()
		fl.await(t, fmt.Sprintf("%d clients have %s", n, content), func(s *fleetState) bool { return len(s.who(content)) == n })
	}
	have("l1", clients)
	o.awaits("cp.example.com: idle\n")
	o.does(1, "there was nothing to approve", "approve")
	o.does(1, "there was nothing to reject", "reject")
	o.does(1, "no client is passed over", "trust")

	// Only one client has the change until the operator approves it.
	cp.set(plainListener("l", "content-l2"))
	have("l2", 1)
	o.awaits(`cohort "envoy/1.0": 1 of 4 clients were sent the change, 1 acknowledged it`)
	o.does(1, "", "status", "--partition", "another")
	o.does(0, "approve: 1 rollouts\n", "approve", "--authority", "cp.example.com", "--partition", "")
	have("l2", clients)

	// Only one client has the change until the operator rejects it. The control plane receives the reason.
	cp.set(plainListener("l", "content-l3"))
	have("l3", 1)
	o.does(0, "reject: 1 rollouts\n", "reject", "--reason", "too risky on a Friday")
	cp.await(t, "the control plane receives the operator's reason", func(s *seen) bool {
		return slices.ContainsFunc(s.nacks, func(words string) bool { return strings.Contains(words, "too risky on a Friday") })
	})
	have("l2", clients)
	o.awaits("cp.example.com: stopped: too risky on a Friday\n")
	o.does(1, "there was nothing to reject", "reject")

	// While the rollout is frozen, no client receives the change.
	o.does(0, "freeze: 1 rollouts\n", "freeze")
	cp.set(plainListener("l", "content-l4"))
	o.awaits("cp.example.com: held, frozen\n")
	fl.read(func(s *fleetState) {
		if len(s.had["l4"]) > 0 {
			t.Errorf("a client received a change of a frozen rollout: %s", s)
		}
	})
	o.does(0, "thaw: 1 rollouts\n", "thaw")
	have("l4", 1)
	fl.read(func(s *fleetState) {
		if len(s.had["l3"]) != 1 {
			t.Errorf("%d clients received the rejected change, want 1", len(s.had["l3"]))
		}
	})

	o.does(2, "", "pause")
	o.does(2, "", "approve", "--reason", "none")
	operator{t, o.admin + "-nowhere"}.does(3, "", "status")
	for action, times := range map[string]int{"approve": 2, "reject": 3, "freeze": 1, "thaw": 1, "trust": 1, "status": 0} {
		line := fmt.Sprintf(`audit: an operator acted on rollouts" action=%s operator="unix uid %d"`, action, os.Getuid())
		if n := strings.Count(r.stderr.String(), line); n != times {
			t.Errorf("the log has %d lines with %s, want %d", n, line, times)
		}
	}
}
