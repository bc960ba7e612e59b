package peers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a program that runs until the test ends. Its methods may be called concurrently.
type Process struct {
	Name  string
	cmd   *exec.Cmd
	logs  *Output
	ended chan struct{} // closed when the process has exited
}

// Start starts a command. Its standard error goes to logs, as does its standard output unless the command
// has one. At the end of the test, Start sends the process a signal and waits for its exit.
func Start(t testing.TB, name string, cmd *exec.Cmd, logs *Output, signal os.Signal) *Process {
	t.Helper()
	p := &Process{Name: name, cmd: cmd, logs: logs, ended: make(chan struct{})}
	cmd.Stderr = logs
	if cmd.Stdout == nil {
		cmd.Stdout = logs
	}
	cmd.WaitDelay = Patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // the status is in ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.Pause(false) // a stopped process handles no signal
		p.End(t, signal)
	})
	return p
}

// End sends a signal, and waits until the process has exited.
func (p *Process) End(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("ending %s: %v", p.Name, err)
	}
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	select {
	case <-p.ended:
	case <-deadline.C:
		t.Errorf("%s did not end within %v of %v", p.Name, Patience, signal)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// Signal sends a signal without waiting for its effect.
func (p *Process) Signal(signal os.Signal) error { return p.cmd.Process.Signal(signal) }

// Pause stops the process, or lets it go on.
func (p *Process) Pause(stop bool) {
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	_ = p.cmd.Process.Signal(signal)
}

// Ended returns a channel that is closed when the process has exited.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode returns the status of the process, which has exited; -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Failed returns an error if the process has exited.
func (p *Process) Failed() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended: %v", p.Name, p.cmd.ProcessState)
	default:
		return nil
	}
}

// Logged waits for a line in the logs, and returns what the pattern's group matches in its last match.
func (p *Process) Logged(t testing.TB, pattern string) (group string) {
	t.Helper()
	line := regexp.MustCompile(pattern)
	Eventually(t, p.Name+" logs "+pattern, func() error {
		if all := line.FindAllStringSubmatch(p.logs.String(), -1); len(all) > 0 {
			group = all[len(all)-1][1]
			return nil
		}
		if err := p.Failed(); err != nil {
			t.Fatalf("%v; its logs: %s", err, p.logs.Tail())
		}
		return errors.New("it has not logged that")
	})
	return group
}

// Output collects the output of processes. Its methods may be called concurrently.
type Output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(b)
}

// String returns the output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// Count returns how often the output has a text.
func (o *Output) Count(text string) int { return strings.Count(o.String(), text) }

// Tail returns the end of the output, short enough for a test's log.
func (o *Output) Tail() string {
	const most = 32 << 10
	s := o.String()
	if len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return s
}

// Show logs the end of the output when the test has failed. Processes that write to it start after the call, so that
// they have ended by then.
func (o *Output) Show(t testing.TB, name string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs of %s:\n%s", name, o.Tail())
		}
	})
}

// RunIn runs a command in a folder. Its error contains the command's output.
func RunIn(folder, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
