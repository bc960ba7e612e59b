package integration

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

// binary is the path of the relay's binary.
var binary string

func TestMain(m *testing.M) {
	if resources, ok := os.LookupEnv(planeResources); ok {
		fmt.Fprintln(os.Stderr, runPlane(resources)) // returns only if it fails
		os.Exit(1)
	}
	if speaks, ok := os.LookupEnv(mortalPlane); ok {
		fmt.Fprintln(os.Stderr, runMortal(form(speaks), os.Stdin)) // returns only if it fails
		os.Exit(1)
	}
	if bootstrap, ok := os.LookupEnv(visitorBootstrap); ok {
		if err := runVisitor(bootstrap); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "xds-relay-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "xds-relay")
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}
	// Most tests wait for relays and control planes, so that more of them can run at the same time than there are
	// processors. The command line, which is parsed later, may have another number.
	_ = flag.Set("test.parallel", fmt.Sprint(3*runtime.GOMAXPROCS(0)))
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(dir)
		os.Exit(status)
	}))
}

// TestSources calls Stat for every file of the module that may be part of the binary. go test reuses a cached
// result if the files that the tests opened or looked at are unchanged, and the tests themselves do not read
// the sources of the binary.
func TestSources(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "interop"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		_, err = os.Stat(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// build builds the binary, with the race detector if the tests have it.
func build() error {
	args := []string{"build", "-o", binary}
	if raceDetector() {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/xds-relay/xds-relay/cmd/xds-relay")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the relay: %w\n%s", err, out)
	}
	return nil
}

func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}
