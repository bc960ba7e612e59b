package configs

// What holds for the pages as pages: a reader finds first what to do.

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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
		if found := test.FindString(readPage(t, name)); found != "" {
			t.Errorf("docs/%s.md names %s", name, found)
		}
	}
}
