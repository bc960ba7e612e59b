package main

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestVerdictIsBeyondTheNoiseOrNone(t *testing.T) {
	for _, tt := range []struct {
		ratios []float64
		want   string
	}{
		{nil, "no ratio"},
		{[]float64{1, 1}, "equal"},
		{[]float64{1.5, 1.5, 1.5}, "too few rounds"},
		{[]float64{1.20, 1.22, 1.25, 1.21, 1.23, 1.22}, "**more**"},
		{[]float64{0.80, 0.82, 0.85, 0.81, 0.83, 0.82}, "**less**"},
		{[]float64{1.20, 1.22, 0.99, 1.21, 1.23, 1.22}, "~"}, // a round says otherwise
		{[]float64{1.01, 1.02, 1.30, 1.01, 1.02, 1.03}, "~"}, // they differ more from each other
	} {
		if got := judge(tt.ratios); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.ratios, got, tt.want)
		}
	}
}

// Two equal binaries, and one that costs a tenth more, with figures that vary by 4 %.
func TestVerdictsAreSeldomWrong(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const tries = 20_000
	share := func(cost float64) (found float64) {
		for range tries {
			ratios := make([]float64, compareRounds)
			for i := range ratios {
				ratios[i] = cost * (1 + 0.04*random.NormFloat64()) / (1 + 0.04*random.NormFloat64())
			}
			if judge(ratios) != "~" {
				found++
			}
		}
		return found / tries
	}
	if got := share(1); got > 0.02 {
		t.Errorf("of equal binaries %.3f of the figures are said to differ, want at most 0.02", got)
	}
	if got := share(1.1); got < 0.6 {
		t.Errorf("a tenth more is found in %.3f, want at least 0.6", got)
	}
	if got := share(1.2); got < 0.97 {
		t.Errorf("a fifth more is found in %.3f, want at least 0.97", got)
	}
}

func TestComparisonHasRatiosOfTheSameRounds(t *testing.T) {
	r := result{ID: "b1", Title: "one changes"}
	for round, cost := range []float64{10, 20, 40, 80} {
		r.add(systemBase, round, []metric{{"cost", "µs", cost}, {"only here", "", 1}})
		r.add(systemRelay, round, []metric{{"cost", "µs", 1.5 * cost}})
	}
	got := string(comparison("this against that", []result{r}))
	if want := "| cost | 30.0 µs | 45.0 µs | 1.500 | 1.500 | 1.500 | **more** |\n"; !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwithout\n%s", got, want)
	}
	if strings.Contains(got, "only here") {
		t.Errorf("got a line for what one of the two has not:\n%s", got)
	}
}

// clone makes a repository with one commit, and files that are not committed.
func clone(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		write(name, text)
	}
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "."},
		{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "commit", "-q", "--no-verify", "-m", "first"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	write("cmd/xds-relay/main.go", "this does not compile")
	write("new.go", "nor does this")
	t.Chdir(dir)
	return dir
}

func TestBaseIsBuiltFromItsCommitWhateverTheCheckoutHas(t *testing.T) {
	dir := clone(t, map[string]string{"go.mod": "module m\n\ngo 1.26\n", "cmd/xds-relay/main.go": "package main\n\nfunc main() { println(\"base\") }\n"})
	to := t.TempDir()
	b, err := buildBase(to, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(b.binary).CombinedOutput()
	if err != nil || string(out) != "base\n" || !strings.HasSuffix(b.name, "(first)") {
		t.Errorf("%s says %q, %v", b.name, out, err)
	}
	if left, err := os.ReadDir(to); err != nil || len(left) != 1 {
		t.Errorf("left are %v (%v), want the binary only", left, err)
	}
	if list, err := git(dir, "worktree", "list"); err != nil || strings.Contains(list, "\n") {
		t.Errorf("git has worktrees:\n%s (%v)", list, err)
	}
	if err := starts(b.binary); err == nil || !strings.Contains(err.Error(), "the relay ends as it starts (serve --config ") || !strings.HasSuffix(err.Error(), "base") {
		t.Errorf("got %v, want that it ends, and what it says", err)
	}
}

func TestBaseThatCannotBeHadIsAnErrorThatSaysWhy(t *testing.T) {
	dir := clone(t, map[string]string{"go.mod": "module m\n\ngo 1.26\n", "cmd/xds-relay/main.go": "package main\n\nfunc main() { undefined() }\n"})
	for _, tt := range []struct{ commit, want string }{
		{"nowhere", `there is no commit "nowhere" in ` + dir},
		{"--all", `there is no commit "--all"`},
		{"HEAD:go.mod", `there is no commit "HEAD:go.mod"`},
		{"HEAD", "undefined: undefined"},
	} {
		if _, err := buildBase(t.TempDir(), tt.commit); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.commit, err, tt.want)
		}
	}
}

func TestOnlyNamesScenariosThatThereAre(t *testing.T) {
	if _, err := chosen("b,nothing"); err == nil || !strings.Contains(err.Error(), `"nothing"`) || !strings.Contains(err.Error(), " b1 ") {
		t.Errorf("got %v, want an error that says which there are", err)
	}
	if got, err := chosen("b1"); err != nil || len(got) != 1 {
		t.Errorf("got %d scenarios, %v", len(got), err)
	}
}
