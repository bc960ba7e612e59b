package relay

// docs/protocol.md names the transcript of each rule. That is useful only if it is complete.

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const protocolPage = "docs/protocol.md"

// transcripts are the folders that the page must list completely.
var transcripts = []string{
	"downstream/testdata/*/*.txt",
	"upstream/session/testdata/*.txt",
	"upstream/testdata/*.txt",
	"failover/testdata/*/*.txt",
	"collections/testdata/*.txt",
	"collections/testdata/sets/*.txt",
	"relay/testdata/crossing/*/*.txt",
	"relay/testdata/views/*/*.txt",
	"loadreport/testdata/*.txt",
	"prefetch/testdata/*.txt",
}

func TestProtocolPageListsEachTranscript(t *testing.T) {
	root := ".."
	page, err := os.ReadFile(filepath.Join(root, protocolPage))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, link := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(string(page), -1) {
		file := path.Join(path.Dir(protocolPage), link[1])
		listed[file] = true
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Errorf("%s has a link to %s, which does not exist", protocolPage, file)
		}
	}
	for _, pattern := range transcripts {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Errorf("no transcripts are at %s (%v)", pattern, err)
		}
		for _, file := range files {
			if file = filepath.ToSlash(strings.TrimPrefix(file, root+string(filepath.Separator))); !listed[file] {
				t.Errorf("%s does not list %s: add it to the rule that it holds", protocolPage, file)
			}
		}
	}
}

// If a Go test checks a rule, the page names the test.
func TestProtocolPageNamesTestsThatExist(t *testing.T) {
	root := ".."
	page, err := os.ReadFile(filepath.Join(root, protocolPage))
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, folder := range []string{"upstream/session", "upstream", "loadreport", "prefetch", "downstream", "cache", "integration", "urn", "xdstype", "relay", "cmd/xds-relay"} {
		files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(b)
		}
	}
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(code.String(), "\nfunc "+name[1]+"(") {
			t.Errorf("%s names %s, which no test is called", protocolPage, name[1])
		}
	}
}
