package main

// docs/federation.md shows what `check` says of names in configs/examples/hybrid.yaml.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFederationPageShowsWhatCheckSays(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	page, err := os.ReadFile("docs/federation.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```console\n$ xds-relay ")[1:]
	if len(blocks) == 0 {
		t.Fatal("docs/federation.md shows no command")
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		args, want, _ := strings.Cut(block, "\n")
		got, stderr, status := runCommand(t, strings.Fields(strings.ReplaceAll(args, "'", ""))...)
		if got != want || stderr != "" || status != 0 {
			t.Errorf("%s: status %d, stderr %q, got\n%swant\n%s", args, status, stderr, got, want)
		}
	}
}
