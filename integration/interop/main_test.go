package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// binary is the path of the relay's binary.
var binary string

// programs is a folder for built programs. It is removed after the tests.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "xds-relay-interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	programs = dir
	binary = filepath.Join(dir, "xds-relay")
	if err := build("../..", binary, "-race", "./cmd/xds-relay"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status := m.Run()
	fmt.Fprint(os.Stdout, &results)
	fmt.Fprint(os.Stdout, &comparisons)
	return status
}

// build builds a program of the module in the folder module.
func build(module, program string, args ...string) error {
	return runIn(module, "go", append([]string{"build", "-o", program}, args...)...)
}

// runIn runs a command in a folder. Its error contains the command's output.
func runIn(folder, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
