package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"
)

// The embedded set is that of the version of contrib in go.mod.
func TestTheEmbeddedSetIsUpToDate(t *testing.T) {
	want, err := importsFile()
	if err != nil {
		t.Fatal(err)
	}
	imports, err := os.ReadFile("imports.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(imports, want) {
		t.Fatal("imports.go lacks packages of contrib, or has others: go run . -imports && go run . in tools/descriptors")
	}
	if want, err = encodedSet(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(output)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unzip)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Fatalf("%s is out of date: make generate", output)
	}
}
