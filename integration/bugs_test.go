package integration

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestBugsApplyToTheCode checks that the patches with bugs, which the chaos test has to find (make
// chaos-bugs), apply to the current code.
func TestBugsApplyToTheCode(t *testing.T) {
	bugs, err := filepath.Glob("testdata/bugs/*.patch")
	if err != nil || len(bugs) < 8 {
		t.Fatalf("found %d patches (%v), want at least 8", len(bugs), err)
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
