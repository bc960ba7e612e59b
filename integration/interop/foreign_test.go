package interop

// Clients in other languages. Each is a program that reads a method from each line of its input, sends an RPC
// with that method, and prints the outcome as a line of JSON.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// foreigner is a client in another language.
type foreigner struct {
	*process
	questions io.Writer
	answers   chan answer // closed when the program's output ends
}

// answer is the outcome of an RPC.
type answer struct {
	Backend string `json:"backend"`
	Error   string `json:"error"`
}

// dialForeigner starts a client. The target is the last argument of its command.
func dialForeigner(t testing.TB, name, bootstrap, target string, command ...string) shopper {
	t.Helper()
	cmd := exec.Command(command[0], append(command[1:], target)...)
	cmd.Env = append(os.Environ(),
		"GRPC_XDS_BOOTSTRAP_CONFIG="+bootstrap,
		// While no RPC waits, the C++ core polls its connections at this interval. The default is 5 s.
		"GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS=20",
	)
	questions, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	f := &foreigner{process: start(t, name, cmd, os.Kill), questions: questions, answers: make(chan answer, 1)}
	go f.listen(lines)
	return f
}

// listen reads the client's answers.
func (f *foreigner) listen(lines io.Reader) {
	defer close(f.answers)
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		var a answer
		if err := json.Unmarshal(scanner.Bytes(), &a); err != nil {
			a.Error = fmt.Sprintf("%q is no answer: %v", scanner.Text(), err)
		}
		f.answers <- a
	}
}

func (f *foreigner) visit() (string, error) {
	if _, err := fmt.Fprintln(f.questions, method); err != nil {
		return "", fmt.Errorf("sending a method to %s: %w", f.name, err)
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case a, ok := <-f.answers:
		switch {
		case !ok:
			return "", fmt.Errorf("the output of %s has ended", f.name)
		case a.Error != "":
			return "", errors.New(a.Error)
		}
		return a.Backend, nil
	case <-deadline.C:
		return "", fmt.Errorf("%s did not answer within %v", f.name, patience)
	}
}

// prepareNode installs gRPC for Node.js, unless the versions of grpcjs/package-lock.json are already
// installed.
var prepareNode = sync.OnceValue(func() error {
	const folder = "grpcjs"
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return err
		}
	}
	lock, err := os.ReadFile(filepath.Join(folder, "package-lock.json"))
	if err != nil {
		return err
	}
	stamp := filepath.Join(folder, "node_modules", ".installed")
	if installed, err := os.ReadFile(stamp); err == nil && bytes.Equal(installed, lock) {
		return nil
	}
	if err := runIn(folder, "npm", "ci", "--no-audit", "--no-fund"); err != nil {
		return err
	}
	return os.WriteFile(stamp, lock, 0o600)
})

func dialNode(t testing.TB, bootstrap, target string) shopper {
	t.Helper()
	return dialForeigner(t, "grpc-js", bootstrap, target, "node", "grpcjs/client.js")
}

// python is Debian's interpreter: others do not have Debian's package python3-grpcio.
const python = "/usr/bin/python3"

// preparePython checks that gRPC for Python is installed, which wraps the C++ core.
var preparePython = sync.OnceValue(func() error {
	return runIn(".", python, "-c", "import grpc")
})

func dialPython(t testing.TB, bootstrap, target string) shopper {
	t.Helper()
	return dialForeigner(t, "the C++ core", bootstrap, target, python, "python/client.py")
}
