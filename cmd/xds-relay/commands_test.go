package main

// The commands in README.md, in docs/ and in deploy/. Those in console blocks are run by a shell, with
// this test's binary as xds-relay; those in sentences and tables have to be ones that the command takes.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/internal/descriptors/descriptorstest"
)

// asCommand is a variable in whose environment the test's binary is xds-relay.
const asCommand = "XDS_TEST_AS_COMMAND"

// pages returns the pages that have commands, by their names.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = string(text)
	}
	return all
}

// console is a command of a block, and the output that the page shows.
type console struct{ command, output string }

var prompt = regexp.MustCompile(`(?m)^\$ `)

// consoles returns the commands of the console blocks of a page.
func consoles(page string) (all []console) {
	for _, block := range strings.Split(page, "```console\n")[1:] {
		block, _, _ = strings.Cut(block, "\n```")
		for _, text := range prompt.Split(block, -1)[1:] {
			command, output, _ := strings.Cut(text, "\n")
			all = append(all, console{command, output})
		}
	}
	return all
}

// ofRelay matches command lines of xds-relay, with variables before it.
var ofRelay = regexp.MustCompile(`^(?:[A-Z_]+=\S+ )*(?:bin/)?xds-relay `)

func TestConsoleBlocksOfThePagesRun(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	ran := 0
	for name, page := range pages(t) {
		commands := consoles(page)
		commands = slices.DeleteFunc(commands, func(c console) bool { return !ofRelay.MatchString(c.command) })
		if len(commands) == 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			box := newSandbox(t)
			for _, c := range commands {
				ran++
				box.run(t, shell, c)
			}
		})
	}
	const least = 15
	if ran < least {
		t.Errorf("the pages have %d commands, want at least %d", ran, least)
	}
}

// sandbox is a folder with what the commands of a page need.
type sandbox struct {
	folder   string
	env      []string
	replaced *strings.Replacer // in command lines
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	server, operator, stop := startDemo(t)
	t.Cleanup(func() { stop() })
	box := &sandbox{folder: t.TempDir(), replaced: strings.NewReplacer()}
	path := func(parts ...string) string { return filepath.Join(append([]string{box.folder}, parts...)...) }
	write := func(text string, parts ...string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path(parts...)), 0o700), os.WriteFile(path(parts...), []byte(text), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	relay := fmt.Sprintf("#!/bin/sh\nexport %s=1\nexec %q \"$@\"\n", asCommand, self)
	write(relay, "path", "xds-relay")
	write(relay, "bin", "xds-relay")
	write(yamlOf(t, "../../README.md"), "relay.yaml")
	write(yamlOf(t, "../../docs/lint.md"), "shop.yaml")
	write(`{"id": "n1", "cluster": "edge"}`, "node.json")
	write(string(descriptorstest.Encode(t, descriptorstest.Widget)), "acme.binpb")
	write(listenerWith(widgetFilter), "resources", "shop.yaml")
	examples, err := filepath.Glob("../../configs/examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, example := range examples {
		text, err := os.ReadFile(example)
		if err != nil {
			t.Fatal(err)
		}
		write(string(text), "configs", "examples", filepath.Base(example))
	}
	write("", "lib", "kept")
	writeStore(t, path("lib", "accepted.db"), "")
	writeStore(t, path("accepted.db"), "")
	// With the race detector, a process waits for a second before it exits.
	box.env = append(os.Environ(), "GORACE=atexit_sleep_ms=50", "PATH="+path("path")+":"+os.Getenv("PATH"))
	box.replaced = strings.NewReplacer(
		"127.0.0.1:18000", server, "127.0.0.1:19000", operator,
		"/var/lib/xds-relay/", path("lib")+"/",
		"rollout status", "rollout status --admin "+operator, "rollout approve", "rollout approve --admin "+operator)
	return box
}

// yamlOf returns the first configuration that a page shows.
func yamlOf(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	config, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatalf("%s shows no configuration", page)
	}
	return config
}

// run runs a command, and compares what it prints with what the page shows, up to an ellipsis.
func (s *sandbox) run(t *testing.T, shell string, c console) {
	t.Helper()
	line := s.replaced.Replace(c.command)
	serves := strings.Contains(line, "xds-relay serve")
	if serves {
		line += " --listen 127.0.0.1:0 --admin 127.0.0.1:0"
	}
	cmd := exec.Command(shell, "-c", line)
	cmd.Dir, cmd.Env = s.folder, s.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if serves {
		s.serve(t, cmd, line)
		return
	}
	err := cmd.Run()
	rollouts := strings.Contains(line, "xds-relay rollout") // the demo has none: status 1
	finds := strings.Contains(line, "xds-relay lint") && c.output != ""
	if status := cmd.ProcessState.ExitCode(); err != nil && (!rollouts && !finds || status != statusNotAll) {
		t.Errorf("%s: %v\n%s", c.command, err, stderr.String())
	}
	want, _, cut := strings.Cut(c.output, "…")
	if rollouts || want == "" {
		return
	}
	got := stdout.String()
	if !cut && strings.TrimSpace(got) != strings.TrimSpace(want) || !strings.HasPrefix(got, strings.TrimRight(want, " \n")) {
		t.Errorf("%s prints\n%s\nand the page shows\n%s", c.command, got, c.output)
	}
}

// serve runs the relay until it serves clients.
func (s *sandbox) serve(t *testing.T, cmd *exec.Cmd, line string) {
	t.Helper()
	// The shell is another process than the relay: they are one group, which gets the signal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cmd.Stdout, cmd.Stderr = nil, writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	late := time.AfterFunc(time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	var log bytes.Buffer
	buffer := make([]byte, 4096)
	served := false
	for {
		n, err := reader.Read(buffer)
		log.Write(buffer[:n])
		if !served && strings.Contains(log.String(), `msg="serving the operator"`) {
			served = true
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); !served || err != nil {
		t.Errorf("%s: %v\n%s", line, err, log.String())
	}
}

// inSentences matches commands in sentences and tables.
var inSentences = regexp.MustCompile("`(?:bin/)?xds-relay ([^`\n]+)`")

func TestCommandsOfThePagesAreOnesThatTheRelayTakes(t *testing.T) {
	found := 0
	for name, page := range pages(t) {
		for _, match := range inSentences.FindAllStringSubmatch(page, -1) {
			found++
			// What may be left out has to be one, too: both with and without it.
			for _, line := range []string{
				strings.NewReplacer("[", "", "]", "").Replace(match[1]),
				regexp.MustCompile(` ?\[[^]]*\]`).ReplaceAllString(match[1], ""),
			} {
				line = strings.NewReplacer("'", "", "envoy|grpc", "envoy").Replace(line)
				if err := takes(strings.Fields(line)); err != nil {
					t.Errorf("%s: `xds-relay %s`: %v", name, match[1], err)
				}
			}
		}
	}
	const least = 30
	if found < least {
		t.Errorf("the pages have %d commands, want at least %d", found, least)
	}
}

// takes reports why the relay does not take a command line, without running it. A command alone, as
// sentences have it, needs neither flags nor arguments.
func takes(args []string) error {
	cmd, rest, err := newRootCommand().Find(args)
	if err != nil {
		return err
	}
	if !cmd.HasParent() {
		return fmt.Errorf("there is no command %q", args[0])
	}
	if len(rest) == 0 {
		return nil
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// What runs the relay in deploy/ gives it arguments that it takes, and configurations without errors.
func TestPackagesRunTheRelayAsItCanBeRun(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("../../deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var workload struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []struct{ Args []string } }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read("kustomize/base/workload.yaml")), &workload); err != nil {
		t.Fatal(err)
	}
	lines := [][]string{workload.Spec.Template.Spec.Containers[0].Args}
	for _, match := range regexp.MustCompile(`(?m)^Exec\w+=/usr/bin/xds-relay (.*)$`).FindAllStringSubmatch(read("systemd/xds-relay.service"), -1) {
		lines = append(lines, strings.Fields(match[1]))
	}
	command := regexp.MustCompile(`(?m)^CMD \[(.*)\]$`).FindStringSubmatch(read("Dockerfile"))
	if command == nil || len(lines) != 3 {
		t.Fatalf("the image has no command, or the unit not two: %q", lines)
	}
	lines = append(lines, strings.Fields(strings.NewReplacer(`"`, "", ",", "").Replace(command[1])))
	for _, line := range lines {
		if err := takes(line); err != nil || len(line) < 2 {
			t.Errorf("xds-relay %q: %v", line, err)
		}
	}
	configs := map[string]string{"base": read("kustomize/base/relay.yaml"), "example": read("kustomize/example/relay.yaml")}
	for _, document := range strings.Split(read("checks/testdata/everything.yaml"), "\n---\n") {
		var m struct {
			Kind string
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(document), &m); err != nil {
			t.Fatal(err)
		}
		if m.Kind == "ConfigMap" {
			configs["everything"] = m.Data["relay.yaml"]
		}
	}
	for name, config := range configs {
		inFolder(t, map[string]string{"relay.yaml": config})
		// The files of the chart's Secrets are not here.
		stdout, stderr, status := runCommand(t, "bootstrap", "--for", "grpc", "--config", "relay.yaml")
		if status != 0 || config == "" {
			t.Errorf("%s: status %d\n%s%s\n%s", name, status, stdout, stderr, config)
		}
	}
}
