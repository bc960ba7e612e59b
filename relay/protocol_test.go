package relay

// relay/testdata/README.md names the transcripts of each rule of the protocol. That is useful only if it is complete.

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const rulesPage = "relay/testdata/README.md"

// transcripts are the folders that the page must list completely.
var transcripts = []string{
	"downstream/testdata/*/*.txt",
	"upstream/session/testdata/*.txt",
	"upstream/testdata/*.txt",
	"failover/testdata/*/*.txt",
	"feed/testdata/*/*.txt",
	"guard/testdata/*.txt",
	"guard/testdata/*/*.txt",
	"rollout/testdata/*.txt",
	"collections/testdata/*.txt",
	"collections/testdata/sets/*.txt",
	crossings + "*.txt",
	"relay/testdata/silence/*.txt",
	"relay/testdata/views/*/*.txt",
	"loadreport/testdata/*.txt",
	"internal/prefetch/testdata/*.txt",
}

// crossings has a folder for each form of the control plane and of the client. A link to a transcript stands for those
// of the other forms, too.
const crossings = "relay/testdata/crossing/*/"

func TestRulesListEachTranscript(t *testing.T) {
	root := ".."
	page, err := os.ReadFile(filepath.Join(root, rulesPage))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, link := range regexp.MustCompile(`\]\(([^)#:]+)`).FindAllStringSubmatch(string(page), -1) {
		file := path.Join(path.Dir(rulesPage), link[1])
		listed[file] = true
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Errorf("%s has a link to %s, which does not exist", rulesPage, file)
		}
		if ok, err := path.Match(crossings+"*", file); err != nil {
			t.Fatal(err)
		} else if ok {
			listed[crossings+path.Base(file)] = true
		}
	}
	for _, pattern := range transcripts {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Errorf("no transcripts are at %s (%v)", pattern, err)
		}
		for _, file := range files {
			file = filepath.ToSlash(strings.TrimPrefix(file, root+string(filepath.Separator)))
			if !listed[file] && (pattern != crossings+"*.txt" || !listed[crossings+path.Base(file)]) {
				t.Errorf("%s does not list %s: add it to the rule that it holds", rulesPage, file)
			}
		}
	}
}

// If a Go test checks a rule, the page names the test.
func TestRulesNameTestsThatExist(t *testing.T) {
	root := ".."
	page, err := os.ReadFile(filepath.Join(root, rulesPage))
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, folder := range []string{"upstream/session", "upstream", "loadreport", "internal/prefetch", "downstream", "cache", "integration", "urn", "internal/xdstype", "internal/naming", "internal/partition", "relay", "cmd/xds-relay"} {
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
			t.Errorf("%s names %s, which no test is called", rulesPage, name[1])
		}
	}
	for _, name := range regexp.MustCompile("`(\\w+(?:/\\w+)*_test\\.go)`").FindAllStringSubmatch(string(page), -1) {
		if _, err := os.Stat(filepath.Join(root, name[1])); err != nil {
			t.Errorf("%s names %s, which does not exist", rulesPage, name[1])
		}
	}
}
