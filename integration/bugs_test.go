package integration

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// The bugs that chaos has to find (make chaos-bugs) can be put into the code as it is.
func TestBugsApplyToTheCode(t *testing.T) {
	bugs, err := filepath.Glob("testdata/bugs/*.patch")
	if err != nil || len(bugs) < 8 {
		t.Fatalf("%d bugs, %v", len(bugs), err)
	}
	for _, bug := range bugs {
		path, err := filepath.Abs(bug)
		if err != nil {
			t.Fatal(err)
		}
		apply := exec.CommandContext(t.Context(), "git", "apply", "--check", path)
		apply.Dir = ".."
		if out, err := apply.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", bug, err, out)
		}
	}
}
