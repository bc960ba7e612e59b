package configs

// What holds for the pages as pages: links lead somewhere, and a reader finds first what to do.

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each link of a page to a part of a page leads to a heading or an anchor.
func TestLinksToPartsOfPagesLeadThere(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../relay/testdata/README.md", "../relay/testdata/loss.md")
	link := regexp.MustCompile(`\]\(([^)\s:]*\.md)?#([^)\s]+)\)`)
	found := 0
	anchors := map[string]map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			found++
			target := page
			if m[1] != "" {
				target = path.Join(path.Dir(page), m[1])
			}
			if anchors[target] == nil {
				anchors[target] = anchorsOf(t, target)
			}
			if !anchors[target][m[2]] {
				t.Errorf("%s links to %s#%s, which does not exist", page, target, m[2])
			}
		}
	}
	if found < 100 {
		t.Errorf("found only %d links", found)
	}
}

// anchorsOf returns the places of a page to which a link can lead, as GitHub names them.
func anchorsOf(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`<a id="([^"]+)">`).FindAllStringSubmatch(string(text), -1) {
		anchors[m[1]] = true
	}
	prose := regexp.MustCompile("(?ms)^```.*?^```").ReplaceAllString(string(text), "")
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose, -1) {
		words := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchors[strings.ReplaceAll(strings.TrimSpace(words), " ", "-")] = true
	}
	return anchors
}

// Pages of reference begin with what to set or expect, in cells that a reader takes in at a glance.
func TestPagesOfReferenceBeginWithAShortTable(t *testing.T) {
	const mostWords, beforeTable = 25, 150
	for _, name := range []string{"limits", "protocol", "safety"} {
		before, table, ok := strings.Cut(readPage(t, name), "\n|")
		if n := len(strings.Fields(before)); !ok || n > beforeTable {
			t.Errorf("docs/%s.md has %d words before its first table, want at most %d", name, n, beforeTable)
		}
		table, _, _ = strings.Cut(table, "\n\n")
		for cell := range strings.SplitSeq(table, "|") {
			if n := len(strings.Fields(cell)); n > mostWords {
				t.Errorf("docs/%s.md has a cell of %d words in its first table, want at most %d: %s", name, n, mostWords, cell)
			}
		}
	}
}

// Who runs the relay reads what it does, not how that is tested: relay/testdata/README.md has the tests of the rules.
func TestPagesForUsersNameNoTests(t *testing.T) {
	test := regexp.MustCompile("`?Test[A-Z]\\w+|testdata/[^)\\s]*\\.txt|\\w+_test\\.go")
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		if name == "performance" {
			continue // its figures can be repeated by those who have the source
		}
		if found := test.FindString(readPage(t, name)); found != "" {
			t.Errorf("docs/%s.md names %s", name, found)
		}
	}
}
