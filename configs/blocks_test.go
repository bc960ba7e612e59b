package configs

// The configurations in README.md and docs/: parts of configurations are completed to whole ones.

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestConfigurationsOfThePagesAreValid(t *testing.T) {
	paths, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, key := range keysOf(configType) {
		keys[key] = true
	}
	found := 0
	for _, path := range append(paths, "../README.md") {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range yamlBlock.FindAllStringSubmatch(string(page), -1) {
			for j, document := range regexp.MustCompile(`(?m)^---\n`).Split(block[1], -1) {
				var top map[string]yaml.Node
				if err := yaml.Unmarshal([]byte(document), &top); err != nil {
					t.Errorf("%s, block %d: %v\n%s", path, i, err, document)
					continue
				}
				whole, is := completed(document, top, keys)
				if !is {
					continue // of Kubernetes, or a resource
				}
				found++
				if _, err := Parse(fmt.Sprintf("%s#%d.%d", filepath.Base(path), i, j), []byte(whole)); err != nil {
					t.Errorf("%v\n%s", err, whole)
				}
			}
		}
	}
	const least = 30
	if found < least {
		t.Errorf("the pages have %d configurations, want at least %d", found, least)
	}
}

// completed adds to a part of a configuration what it lacks to be a whole one. It returns false for
// what is no configuration.
func completed(document string, top map[string]yaml.Node, keys map[string]bool) (string, bool) {
	if len(top) == 0 {
		return "", false
	}
	for key := range top {
		if !keys[key] {
			return "", false
		}
	}
	if !strings.Contains(document, "servers:") && !strings.Contains(document, "directory:") {
		document = regexp.MustCompile(`(?m)^  - name: .*$`).ReplaceAllString(document, "$0\n    servers: [{address: \"cp.example.com:443\"}]")
	}
	if _, ok := top["listeners"]; !ok {
		document += "listeners: [{address: \"127.0.0.1:18000\"}]\n"
	}
	if _, ok := top["authorities"]; !ok {
		document += "authorities:\n"
		for _, name := range authoritiesIn(document) {
			document += fmt.Sprintf("  - {name: %q, servers: [{address: \"cp.example.com:443\", tls: {}}]}\n", name)
		}
	}
	return document, true
}

// authoritiesIn returns the authorities that a part of a configuration names.
func authoritiesIn(document string) []string {
	names := []string{"some.example.com"}
	seen := map[string]bool{}
	for _, match := range regexp.MustCompile(`authority: ([\w.-]+)|xdstp://([\w.-]+)/`).FindAllStringSubmatch(document, -1) {
		if name := strings.TrimSpace(match[1] + match[2]); !seen[name] && name != names[0] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}
