package peers

import (
	"fmt"
	"os"
	"regexp"
)

// Pin is where the version of a program is pinned: by its name in a go.mod, package.json, pom.xml or requirements.txt.
type Pin struct{ File, Name string }

var pseudoVersion = regexp.MustCompile(`^\d+\.\d+\.\d+-.*\d{14}-([0-9a-f]{12})$`)

// Version returns the version, or the commit if that has none.
func (p Pin) Version() (string, error) {
	text, err := os.ReadFile(p.File)
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(regexp.QuoteMeta(p.Name) + `[ "':=>]+v?(\d[^\s"'<]*)`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s has no version of %s", p.File, p.Name)
	}
	version := string(found[1])
	if commit := pseudoVersion.FindStringSubmatch(version); commit != nil {
		version = "commit " + commit[1]
	}
	return version, nil
}
