package peers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVersionsComeFromPins(t *testing.T) {
	for _, tt := range []struct{ text, name, want string }{
		{"require (\n\tgoogle.golang.org/grpc/cmd v1.5.0\n\tgoogle.golang.org/grpc v1.85.0\n)", "google.golang.org/grpc", "1.85.0"},
		{"\tistio.io/istio v0.0.0-20260827124520-eed52ebb66ad", "istio.io/istio", "commit eed52ebb66ad"},
		{"\texample.com/limits v1.4.1-0.20260122083618-3fb702589d36 // indirect", "example.com/limits", "commit 3fb702589d36"},
		{`{"@grpc/grpc-js": "1.14.7", "@grpc/grpc-js-xds": "1.14.1"}`, "@grpc/grpc-js-xds", "1.14.1"},
		{"<grpc.version>1.85.1</grpc.version>", "grpc.version", "1.85.1"},
		{"grpcio==1.85.1 \\\n    --hash=sha256:1f", "grpcio", "1.85.1"},
		{"grpcio-status==1.85.1", "grpcio", ""},
	} {
		pin := Pin{File: filepath.Join(t.TempDir(), "pins"), Name: tt.name}
		if err := os.WriteFile(pin.File, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := pin.Version(); got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("the version of %s in %q is %q (%v), want %q", tt.name, tt.text, got, err, tt.want)
		}
	}
}

func TestPageHasTheMatrix(t *testing.T) {
	m := Matrix{Corner: "scenario", Columns: []string{"a", "b"}, Rows: []string{"update", "removal"}}
	m.Set("removal", "b", "differs", "Late")
	m.Set("removal", "b", "equal", "")
	m.Set("update", "a", "equal", "")
	m.Set("update", "b", "n/a", "Not supported")
	m.Set("another", "a", "equal", "")
	if err := m.Complete(); err == nil || !strings.Contains(err.Error(), "removal with a") {
		t.Errorf("Complete returns %v, want the missing cell", err)
	}
	m.Set("removal", "a", "n/a", "Not supported")
	if err := m.Complete(); err != nil {
		t.Error(err)
	}
	section := Section{Name: "all", Text: m.Markdown(strings.ToUpper)}
	const want = `before
<!-- all -->
| scenario | A | B |
|---|---|---|
| UPDATE | equal | n/a (1) |
| REMOVAL | n/a (1) | differs (2) |

(1) Not supported.

(2) Late.
<!-- end of all -->
after
`
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte("before\n<!-- all -->\nold\n<!-- end of all -->\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := section.check(file); err == nil {
		t.Error("check accepts an old section")
	}
	if err := section.write(file); err != nil {
		t.Fatal(err)
	}
	if err := section.check(file); err != nil {
		t.Error(err)
	}
	if page, err := os.ReadFile(file); string(page) != want {
		t.Errorf("the page is (%v)\n%s\nwant\n%s", err, page, want)
	}
	if err := (Section{Name: "none"}).write(file); err == nil {
		t.Error("write accepts a page without the section")
	}
}
