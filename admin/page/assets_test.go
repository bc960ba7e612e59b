package page

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"strings"
	"testing"
)

// What comes from elsewhere is unchanged: its README has its version and its hashes.
func TestTheChartLibraryIsWhatItsReadmeSays(t *testing.T) {
	readme, err := static.ReadFile("static/uplot/README.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := static.ReadFile("static/uplot/uPlot.iife.min.js")
	if err != nil {
		t.Fatal(err)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(string(readme), "# uPlot "), "\n")
	if !strings.Contains(string(script[:100]), "(v"+version+")") {
		t.Errorf("the script is not of version %q: %s", version, script[:100])
	}
	files, err := fs.Glob(static, "static/uplot/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimPrefix(file, "static/uplot/")
		if name == "README.md" {
			continue
		}
		text, err := static.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		if want := "| `" + name + "` | `" + hex.EncodeToString(sum[:]) + "` |"; !strings.Contains(string(readme), want) {
			t.Errorf("the README lacks the row %s", want)
		}
	}
}

// A time has two digits, and a unit that people read.
func TestATimeHasTwoDigits(t *testing.T) {
	for s, want := range map[float64]string{
		0: "–", 1e-9: "0.001 µs", 0.00042: "420 µs", 0.0012345: "1.2 ms", 0.0999: "100 ms", 0.25: "250 ms", 1: "1 s", 3.14: "3.1 s", 99.6: "100 s", 119: "119 s", 150: "2.5 min", 7200: "120 min",
	} {
		if got := seconds(s); got != want {
			t.Errorf("%v is %q, want %q", s, got, want)
		}
	}
}
