package integration

// The relay as a subprocess.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// relay is a running relay.
type relay struct {
	address string // for clients
	admin   string // for the operator
	stdout  output
	stderr  output
	config  string // its file, if startRelay has started it
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has ended
	killed  bool          // by kill; the exit status does not matter then
}

// output collects the output of a process.
type output struct{ watched[bytes.Buffer] }

// Write implements io.Writer.
func (o *output) Write(b []byte) (n int, err error) {
	o.update(func(all *bytes.Buffer) { n, err = all.Write(b) })
	return n, err
}

// String returns the output so far.
func (o *output) String() (s string) {
	o.read(func(all *bytes.Buffer) { s = all.String() })
	return s
}

// startRelay starts the relay with a configuration that has an admin listener, and waits until it serves. At
// its end, the test stops the relay, which has to exit with status 0.
func startRelay(t testing.TB, config string) *relay {
	t.Helper()
	return startRelayWith(t, config)
}

// runRelay is startRelay with a command line.
func runRelay(t testing.TB, args ...string) *relay {
	t.Helper()
	return runCommand(t, command(args...))
}

// startRelayWith is startRelay with variables of the environment.
func startRelayWith(t testing.TB, config string, env ...string) *relay {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command("serve", "--config", file)
	cmd.Env = append(cmd.Env, env...)
	r := runCommand(t, cmd)
	r.config = file
	return r
}

// reload replaces the relay's configuration, and waits until the relay has taken it.
func (r *relay) reload(t testing.TB, config string) {
	t.Helper()
	if err := os.WriteFile(r.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	const line = `msg="the configuration was reloaded"`
	before := strings.Count(r.stderr.String(), line)
	if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	r.stderr.await(t, "the relay has reloaded its configuration", func(all *bytes.Buffer) bool {
		return strings.Count(all.String(), line) > before
	})
}

func runCommand(t testing.TB, cmd *exec.Cmd) *relay {
	t.Helper()
	r := &relay{ended: make(chan struct{}), cmd: cmd}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	r.cmd.WaitDelay = patience
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait() // the status is in ProcessState
		close(r.ended)
		r.stderr.update(func(*bytes.Buffer) {}) // wakes awaitLog
	}()
	t.Cleanup(func() { r.check(t) })
	r.address = r.awaitLog(t, `msg="serving clients" address=(\S+)`)
	r.admin = r.awaitLog(t, `msg="serving the operator" address=(\S+)`)
	return r
}

// command returns the relay's binary with these arguments.
func command(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	// By default, the race detector delays the exit of a process by a second, to find races at its end. A
	// shorter delay is enough.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=50")
	return cmd
}

// awaitLog waits for a line on standard error, and returns what the pattern's
// group matches in it.
func (r *relay) awaitLog(t testing.TB, pattern string) (group string) {
	t.Helper()
	line := regexp.MustCompile(pattern)
	r.stderr.await(t, fmt.Sprintf("the relay logs %s", pattern), func(all *bytes.Buffer) bool {
		if match := line.FindSubmatch(all.Bytes()); match != nil {
			group = string(match[len(match)-1])
			return true
		}
		return r.hasEnded()
	})
	if group == "" && r.hasEnded() {
		t.Fatalf("the relay exited (%v) before it logged %s", r.cmd.ProcessState, pattern)
	}
	return group
}

func (r *relay) hasEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// end sends a signal, and waits until the process has exited.
func (r *relay) end(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signalling the relay: %v", err)
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-r.ended:
	case <-deadline.C:
		t.Errorf("the relay did not end within %v of %v", patience, signal)
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
}

// kill kills the relay without giving it time to clean up, like a crash of the machine.
func (r *relay) kill(t testing.TB) {
	t.Helper()
	r.killed = true
	r.end(t, os.Kill)
}

// check stops the relay, and fails the test if the relay had errors.
func (r *relay) check(t testing.TB) {
	t.Helper()
	r.end(t, syscall.SIGTERM)
	if status := r.cmd.ProcessState.ExitCode(); status != 0 && !r.killed {
		t.Errorf("the relay ended with %v, want status 0", r.cmd.ProcessState)
	}
	logs := r.stderr.String()
	if strings.Contains(logs, "DATA RACE") {
		t.Error("the relay has a data race")
	}
	if t.Failed() {
		const most = 32 << 10
		if len(logs) > most {
			logs = "..." + logs[len(logs)-most:]
		}
		t.Logf("the relay's logs:\n%s", logs)
	}
}
