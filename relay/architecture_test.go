package relay

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quotedFile = regexp.MustCompile("`([a-z][a-zA-Z0-9_./-]*/[a-zA-Z0-9_*-]+\\.go)`")
	quotedName = regexp.MustCompile("`([a-zA-Z]+)`")
	// placed is functions with their file.
	placed = regexp.MustCompile("((?:`[a-zA-Z]+`(?: and )?)+) in " + quotedFile.String())
)

// ARCHITECTURE.md names files, and the table of decisions functions in them. They are there.
func TestArchitectureNamesWhatThereIs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, m := range quotedFile.FindAllStringSubmatch(page, -1) {
		if found, err := filepath.Glob(filepath.Join("..", m[1])); err != nil || len(found) == 0 {
			t.Errorf("there is no %s", m[1])
		}
	}
	_, section, _ := strings.Cut(page, "\n## Where it is decided\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !strings.HasSuffix(strings.TrimSpace(cells[1]), "?") {
			continue
		}
		rows++
		if len(quotedName.FindAllString(cells[2], -1)) != len(quotedName.FindAllString(strings.Join(placed.FindAllString(cells[2], -1), " "), -1)) {
			t.Errorf("%s: a function has no file: want `function` in `file.go`", cells[1])
		}
		for _, m := range placed.FindAllStringSubmatch(cells[2], -1) {
			code, err := os.ReadFile(filepath.Join("..", m[2]))
			if err != nil {
				t.Error(err)
			}
			for _, name := range quotedName.FindAllStringSubmatch(m[1], -1) {
				if !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|var )` + name[1] + `\b`).Match(code) {
					t.Errorf("%s: %s is not in %s", cells[1], name[1], m[2])
				}
			}
		}
	}
	if rows < 20 {
		t.Errorf("the table has %d rows", rows)
	}
}
