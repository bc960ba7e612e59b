package peers

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

var (
	update      = flag.Bool("update", false, "write the results of all tests to docs/clients.md")
	comparisons = flag.String("comparisons", "", "add the comparisons to this `file`, and print all that it has")
)

// programs is a folder for built programs. Main removes it after the tests.
var programs string

// Main builds the relay of the project at root with the race detector, runs the tests of a package, and prints their
// comparisons. If all tests have run, docs/clients.md has to have the sections.
func Main(m *testing.M, root string, sections func() ([]Section, error)) (status int) {
	flag.Parse()
	failed := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// The tests mostly wait.
	if err := flag.Set("test.parallel", "12"); err != nil {
		return failed(err)
	}
	var err error
	if programs, err = os.MkdirTemp("", "xds-relay-interop-"); err != nil {
		return failed(err)
	}
	defer func() { _ = os.RemoveAll(programs) }()
	if err := Build(root, relayProgram, "-race", "./cmd/xds-relay"); err != nil {
		return failed(err)
	}
	status = m.Run()
	if err := compared.print(*comparisons); err != nil {
		return failed(err)
	}
	if status != 0 {
		return status
	}
	if flag.Lookup("test.run").Value.String() != "" || leftOut.Load() {
		if *update {
			return failed(errors.New("the page is not written, as not all tests have run"))
		}
		return 0
	}
	all, err := sections()
	page := filepath.Join(root, "docs", "clients.md")
	for _, s := range all {
		if *update {
			err = errors.Join(err, s.write(page))
		} else {
			err = errors.Join(err, s.check(page))
		}
	}
	if err != nil {
		return failed(err)
	}
	return 0
}

const relayProgram = "xds-relay"

// Binary returns the path of the relay's binary.
func Binary() string { return Program(relayProgram) }

// Program returns the path of a program that Build builds.
func Program(name string) string { return filepath.Join(programs, name) }

// Build builds a program of the module in a folder.
func Build(module, name string, args ...string) error {
	return RunIn(module, "go", append([]string{"build", "-o", Program(name)}, args...)...)
}

// Once calls install, unless the stamp says that an earlier run has done so with the same pins.
func Once(stamp string, pins []byte, install func() error) error {
	if installed, err := os.ReadFile(stamp); err == nil && bytes.Equal(installed, pins) {
		return nil
	}
	if err := install(); err != nil {
		return err
	}
	return os.WriteFile(stamp, pins, 0o600)
}

// leftOut says that a test was skipped because its program cannot run here.
var leftOut atomic.Bool

// Require skips the test if a program cannot run here. In CI, it fails the test.
func Require(t testing.TB, name string, prepare func() error) {
	t.Helper()
	err := prepare()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s cannot run: %v", name, err)
	default:
		leftOut.Store(true)
		t.Skipf("%s is skipped: %v", name, err)
	}
}
