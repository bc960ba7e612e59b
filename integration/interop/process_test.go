package interop

// Subprocesses.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// process is a program that runs until the test ends.
type process struct {
	name  string
	cmd   *exec.Cmd
	logs  output        // its standard error, and its standard output unless that is a pipe
	ended chan struct{} // closed when the process has exited
}

// start starts a command. At the end of the test, it sends the process a signal and waits for its exit.
func start(t testing.TB, name string, cmd *exec.Cmd, signal os.Signal) *process {
	t.Helper()
	p := &process{name: name, cmd: cmd, ended: make(chan struct{})}
	cmd.Stderr = &p.logs
	if cmd.Stdout == nil {
		cmd.Stdout = &p.logs
	}
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // the status is in ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.end(t, signal)
		if t.Failed() {
			t.Logf("the logs of %s:\n%s", name, p.logs.tail())
		}
	})
	return p
}

// end sends a signal, and waits until the process has exited.
func (p *process) end(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("ending %s: %v", p.name, err)
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-p.ended:
	case <-deadline.C:
		t.Errorf("%s did not end within %v of %v", p.name, patience, signal)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// failed returns an error if the process has exited.
func (p *process) failed() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended: %v", p.name, p.cmd.ProcessState)
	default:
		return nil
	}
}

// output collects the output of a process.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(b)
}

// String returns the output so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// tail returns the end of the output, short enough for a test's log.
func (o *output) tail() string {
	const most = 32 << 10
	s := o.String()
	if len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return s
}
