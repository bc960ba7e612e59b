package descriptors_test

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/descriptors/descriptorstest"
)

// FuzzSet loads any bytes as a descriptor set. If they are one, its types read messages, none takes the place of a type of
// a Go package, and the set of its own files has the same types.
func FuzzSet(f *testing.F) {
	for _, text := range []string{
		descriptorstest.Widget,
		`file { name: "x.proto" package: "x" message_type { name: "X" nested_type { name: "Y" } } }`,
		`file { name: "any.proto" package: "google.protobuf" message_type { name: "Any" } message_type { name: "Other" } }`,
		`file { name: "acme/uses.proto" package: "acme" dependency: "envoy/config/core/v3/base.proto"
			message_type { name: "Uses" field { name: "year" number: 1 type: TYPE_MESSAGE type_name: ".envoy.config.core.v3.NextYear" label: LABEL_OPTIONAL } } }
		file { name: "envoy/config/core/v3/base.proto" package: "envoy.config.core.v3" message_type { name: "Node" } message_type { name: "NextYear" } }`,
	} {
		f.Add(descriptorstest.Encode(f, text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		load := func(text []byte) (*descriptors.Set, error) {
			path := filepath.Join(t.TempDir(), "set")
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			return descriptors.Load(path)
		}
		set, err := load(text)
		if err != nil {
			return
		}
		types := set.Messages()
		own := new(descriptorpb.FileDescriptorSet)
		for name, is := range types {
			if _, err := protoregistry.GlobalTypes.FindMessageByName(name); err == nil {
				t.Fatalf("%s takes the place of the type of a Go package", name)
			}
			_ = proto.Unmarshal([]byte{0x0a, 1, 'x', 0x10, 1}, is.New().Interface()) // its fields may have other types
		}
		set.Files().RangeFiles(func(file protoreflect.FileDescriptor) bool {
			own.File = append(own.File, protodesc.ToFileDescriptorProto(file))
			return true
		})
		printed, err := proto.Marshal(own)
		if err != nil || len(own.File) == 0 {
			return
		}
		again, err := load(printed)
		if err != nil || len(again.Messages()) != len(types) {
			t.Fatalf("the set of its own files has %d types of %d (%v)", len(again.Messages()), len(types), err)
		}
	})
}
