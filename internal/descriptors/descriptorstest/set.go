// Package descriptorstest writes descriptor sets for tests.
package descriptorstest

import (
	"os"
	"path/filepath"
	"testing"

	_ "github.com/cncf/xds/go/udpa/annotations" // the option of Widget.token
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// Widget is a file with a message that no Go package defines: acme.v1.Widget.
const Widget = `
file {
  name: "acme/v1/widget.proto" package: "acme.v1" syntax: "proto3"
  dependency: "google/protobuf/any.proto" dependency: "google/protobuf/struct.proto" dependency: "udpa/annotations/sensitive.proto"
  message_type {
    name: "Widget"
    field { name: "name" json_name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "api_token" json_name: "apiToken" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL options { [udpa.annotations.sensitive]: true } }
    field { name: "inner" json_name: "inner" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Any" label: LABEL_OPTIONAL }
    field { name: "data" json_name: "data" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.Struct" label: LABEL_OPTIONAL }
    field { name: "parts" json_name: "parts" number: 5 type: TYPE_MESSAGE type_name: ".acme.v1.Widget" label: LABEL_REPEATED }
  }
}`

// WidgetURL is the type URL of Widget's message.
const WidgetURL = "type.googleapis.com/acme.v1.Widget"

// Write writes a FileDescriptorSet, given in the text format, and returns the file's path.
func Write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "set.binpb")
	if err := os.WriteFile(path, Encode(t, text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Encode encodes a FileDescriptorSet, given in the text format.
func Encode(t testing.TB, text string) []byte {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	if err := prototext.Unmarshal([]byte(text), set); err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Use makes the types of a set known until the test ends.
func Use(t testing.TB, text string) {
	t.Helper()
	set, err := descriptors.Load(Write(t, text))
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors.Use(set)
	t.Cleanup(func() { descriptors.Use(before) })
}
