package integration

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

// binary is the path of the relay that is tested.
var binary string

func TestMain(m *testing.M) {
	if resources, ok := os.LookupEnv(planeResources); ok {
		fmt.Fprintln(os.Stderr, runPlane(resources)) // it serves until it is killed
		os.Exit(1)
	}
	if speaks, ok := os.LookupEnv(mortalPlane); ok {
		fmt.Fprintln(os.Stderr, runMortal(form(speaks), os.Stdin)) // it serves until it is killed
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
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(dir)
		os.Exit(status)
	}))
}

// TestSources reads every file of the module that may go into the binary. go test caches a result as
// long as the files that the tests have read are the same, and does not know the sources of the binary.
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
