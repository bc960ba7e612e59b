package checks

// The container image, the systemd unit and the releases.

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"sigs.k8s.io/yaml"
)

func TestTheImageIsStaticAndHasAUserWithoutRights(t *testing.T) {
	file, err := os.Open("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range parsed.Warnings {
		t.Errorf("%v", w)
	}
	stages, _, err := instructions.Parse(parsed.AST, linter.New(&linter.Config{
		Warn: func(rule, description, _, message string, _ []parser.Range) {
			t.Errorf("%s: %s (%s)", rule, message, description)
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	last := stages[len(stages)-1]
	if last.BaseName != "scratch" {
		t.Errorf("the image is made of %s, want scratch", last.BaseName)
	}
	user, entry := "", []string{}
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.EntrypointCommand:
			entry = c.CmdLine
		case *instructions.CopyCommand:
			if c.From != "build" {
				t.Errorf("%s is from %q, want from the stage that builds", c.SourcePaths, c.From)
			}
		}
	}
	// A number, so that Kubernetes can check runAsNonRoot; the same as the chart's.
	if want := "65532:65532"; user != want || !slices.Equal(entry, []string{"/usr/bin/xds-relay"}) {
		t.Errorf("user %s (want %s), entry point %q", user, want, entry)
	}
	manifests, err := render(t, "")
	if err != nil || !strings.Contains(manifests["workload.yaml"], "runAsUser: 65532\n") {
		t.Errorf("the chart runs another user: %v", err)
	}
	build := stages[0]
	text := ""
	for _, c := range build.Commands {
		if run, ok := c.(*instructions.RunCommand); ok {
			text += strings.Join(run.CmdLine, " ") + "\n"
		}
	}
	if !strings.Contains(text, `go build -trimpath -ldflags="-s -w -buildid="`) {
		t.Errorf("the image is not built as releases are:\n%s", text)
	}
}

func TestTheUnitIsOneThatSystemdTakes(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not there")
	}
	text, err := os.ReadFile("../systemd/xds-relay.service")
	if err != nil {
		t.Fatal(err)
	}
	// verify wants the programs to be there.
	unit := filepath.Join(t.TempDir(), "xds-relay.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/bin/xds-relay", "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput(); err != nil || len(strings.TrimSpace(string(out))) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	// The exposure level, times ten: from 0, which is none, to 100.
	if out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20", unit).CombinedOutput(); err != nil {
		t.Errorf("the unit is more exposed than it has to be: %v\n%s", err, out)
	}
}

func TestReleasesHaveFilesThatExist(t *testing.T) {
	text, err := os.ReadFile("../goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var release struct {
		Version int
		Project string `json:"project_name"`
		Before  struct{ Hooks []string }
		Builds  []struct {
			ID, Main, Binary string
			Env, Flags       []string
			LDFlags          []string
			ModTimestamp     string `json:"mod_timestamp"`
			GoOS, GoArch     []string
		}
		Archives []struct {
			Formats      []string
			NameTemplate string `json:"name_template"`
			BuildsInfo   any    `json:"builds_info"`
			Files        []struct {
				Src, Dst string
				Info     any
			}
		}
		NFPMs []struct {
			Formats                                             []string
			Maintainer, Description, Homepage, License, Section string
			Bindir, MTime                                       string
			Contents                                            []struct{ Src, Dst, Type string }
		}
		SBOMs []struct {
			ID, Artifacts string
			Documents     []string
		}
		Checksum struct {
			NameTemplate string `json:"name_template"`
			Algorithm    string
		}
		Changelog any
	}
	if err := yaml.UnmarshalStrict(text, &release); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, b := range release.Builds {
		files = append(files, b.Main)
		if !slices.Contains(b.Env, "CGO_ENABLED=0") || !slices.Contains(b.Flags, "-trimpath") || !slices.Equal(b.LDFlags, []string{"-s -w -buildid="}) || b.ModTimestamp == "" {
			t.Errorf("the binary is not static, or not reproducible: %+v", b)
		}
	}
	for _, a := range release.Archives {
		for _, f := range a.Files {
			files = append(files, f.Src)
		}
	}
	for _, n := range release.NFPMs {
		for _, c := range n.Contents {
			files = append(files, c.Src)
		}
	}
	generated := generate(t, release.Before.Hooks)
	for _, f := range files {
		if rest, ok := strings.CutPrefix(f, "deploy/generated/"); ok {
			if found, err := filepath.Glob(filepath.Join(generated, rest)); err != nil || len(found) == 0 {
				t.Errorf("no hook writes %s", f)
			}
			continue
		}
		if found, err := filepath.Glob(filepath.Join("../..", f)); err != nil || len(found) == 0 {
			t.Errorf("there is no %s", f)
		}
	}
	covered := map[string]bool{}
	for _, s := range release.SBOMs {
		covered[s.Artifacts] = len(s.Documents) > 0
	}
	if !covered["archive"] || !covered["package"] {
		t.Errorf("not everything has an SBOM: %v", covered)
	}
}

// generate runs the hook that writes man pages and completions, and returns the folder in which they are.
func generate(t *testing.T, hooks []string) string {
	t.Helper()
	folder := t.TempDir()
	ran := false
	for _, hook := range hooks {
		_, args, ok := strings.Cut(hook, " go run -tags man ")
		if !ok {
			continue
		}
		ran = true
		cmd := exec.Command("go", append([]string{"run", "-tags", "man"}, strings.Fields(strings.ReplaceAll(args, "deploy/generated", folder))...)...)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", hook, err, out)
		}
	}
	for file, want := range map[string]string{
		"man1/xds-relay.1": "xds-relay", "man1/xds-relay-status.1": "every", "man1/xds-relay-store-export.1": "running relay",
		"completions/xds-relay.bash": "__complete", "completions/_xds-relay": "#compdef", "completions/xds-relay.fish": "complete -c xds-relay",
	} {
		if text, err := os.ReadFile(filepath.Join(folder, file)); !ran || err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q: %v", file, want, err)
		}
	}
	return folder
}
