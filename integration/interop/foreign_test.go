package interop

// Clients that are programs, most of them in other languages. Each reads a method from each line of its input,
// sends an RPC with that method, and prints the outcome as a line of JSON. The line may have more words:
// METHOD [TARGET [KEY [MILLISECONDS]]], for another target, the value of the RPC's header "key" and another
// deadline. "close TARGET" closes the channel to a target. For "csds", the program prints the address of its
// Client Status Discovery Service.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// foreigner is a client in another language.
type foreigner struct {
	*peers.Process
	questions io.Writer
	answers   chan answer // closed when the program's output ends
}

// answer is what a client prints for a line: the outcome of an RPC, or an address.
type answer struct {
	Backend string     `json:"backend"`
	Error   string     `json:"error"`
	Code    codes.Code `json:"code"` // that of the error
	CSDS    string     `json:"csds"`
}

// dialForeigner starts a client. The target is the last argument of its command.
func dialForeigner(t testing.TB, name, bootstrap, target string, command ...string) *foreigner {
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
	f := &foreigner{Process: start(t, name, cmd), questions: questions, answers: make(chan answer, 1)}
	go func() {
		defer close(f.answers)
		peers.EachLine(lines, func(a answer, err error) {
			if err != nil {
				a.Error = err.Error()
			}
			f.answers <- a
		})
	}()
	return f
}

func (f *foreigner) visit() (string, error) {
	a, err := f.ask(method)
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a.Backend, err
}

// ask sends the client a line, and returns its answer.
func (f *foreigner) ask(words ...string) (answer, error) {
	if _, err := fmt.Fprintln(f.questions, strings.Join(words, " ")); err != nil {
		return answer{}, fmt.Errorf("sending %q to %s: %w", words, f.Name, err)
	}
	a, err := peers.Receive(f.answers)
	if err != nil {
		err = fmt.Errorf("waiting for an answer of %s: %w", f.Name, err)
	}
	return a, err
}

// prepareNode installs gRPC for Node.js.
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
	return peers.Once(filepath.Join(folder, "node_modules", ".installed"), lock, func() error {
		return peers.RunIn(folder, "npm", "ci", "--no-audit", "--no-fund")
	})
})

func dialNode(t testing.TB, bootstrap, target string) shopper {
	t.Helper()
	return dialForeigner(t, "grpc-js", bootstrap, target, "node", "grpcjs/client.js")
}

// python is the interpreter that has gRPC, which wraps the C++ core.
const python = "python/.venv/bin/python"

// preparePython installs gRPC for Python.
var preparePython = sync.OnceValue(func() error {
	const folder = "python"
	if _, err := exec.LookPath("python3"); err != nil {
		return err
	}
	requirements, err := os.ReadFile(filepath.Join(folder, "requirements.txt"))
	if err != nil {
		return err
	}
	return peers.Once(filepath.Join(folder, ".venv", ".installed"), requirements, func() error {
		if err := peers.RunIn(folder, "python3", "-m", "venv", "--clear", ".venv"); err != nil {
			return err
		}
		return peers.RunIn(folder, ".venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--only-binary=:all:", "-r", "requirements.txt")
	})
})

func dialPython(t testing.TB, bootstrap, target string) shopper {
	t.Helper()
	return dialForeigner(t, "the C++ core", bootstrap, target, python, "python/client.py")
}
