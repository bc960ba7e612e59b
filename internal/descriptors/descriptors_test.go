package descriptors_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	udpaannotations "github.com/cncf/xds/go/udpa/annotations"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/protoc-gen-validate/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/xds-relay/xds-relay/client/render" // links all of Envoy's packages
	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/descriptors/descriptorstest"
)

func find(t *testing.T, url string) protoreflect.MessageDescriptor {
	t.Helper()
	found, err := descriptors.Types{}.FindMessageByURL(url)
	if err != nil {
		t.Fatal(err)
	}
	return found.Descriptor()
}

// The relay links in all that the embedded files import.
func TestEveryEmbeddedFileIsRead(t *testing.T) {
	unzip, err := gzip.NewReader(bytes.NewReader(descriptors.Embedded))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(unzip); err != nil {
		t.Fatal(err)
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(text.Bytes(), set); err != nil {
		t.Fatal(err)
	}
	if len(set.File) < 40 {
		t.Errorf("there are only %d files", len(set.File))
	}
	for _, f := range set.File {
		for _, m := range f.MessageType {
			find(t, "type.googleapis.com/"+f.GetPackage()+"."+m.GetName())
		}
	}
}

// Options of Envoy's API are in the descriptors: constraints, and marks of secrets.
func TestOptionsSurvive(t *testing.T) {
	kafka := find(t, "type.googleapis.com/envoy.extensions.filters.network.kafka_broker.v3.KafkaBroker")
	options := kafka.Fields().ByName("stat_prefix").Options()
	rules, ok := proto.GetExtension(options, validate.E_Rules).(*validate.FieldRules)
	if !ok || rules.GetString_().GetMinLen() != 1 {
		t.Errorf("the constraints of stat_prefix are %v", rules)
	}
	descriptorstest.Use(t, descriptorstest.Widget)
	token := find(t, descriptorstest.WidgetURL).Fields().ByName("api_token").Options()
	if proto.GetExtension(token, udpaannotations.E_Sensitive) != true {
		t.Errorf("api_token is not marked: %v", token)
	}
}

func TestGoPackagesWin(t *testing.T) {
	const node = `file { name: "mine/node.proto" package: "envoy.config.core.v3" message_type { name: "Node" } message_type { name: "Knot" } }`
	descriptorstest.Use(t, node)
	if find(t, "type.googleapis.com/envoy.config.core.v3.Node") != (&corev3.Node{}).ProtoReflect().Descriptor() {
		t.Error("the set's Node is found")
	}
	find(t, "type.googleapis.com/envoy.config.core.v3.Knot")
}

// A newer version of a contrib extension replaces the embedded one.
func TestSetsWinOverTheEmbeddedOne(t *testing.T) {
	const url = "type.googleapis.com/envoy.extensions.filters.network.kafka_broker.v3.KafkaBroker"
	descriptorstest.Use(t, `file {
		name: "contrib/envoy/extensions/filters/network/kafka_broker/v3/kafka_broker.proto" package: "envoy.extensions.filters.network.kafka_broker.v3"
		message_type { name: "KafkaBroker" field { name: "next_year" number: 100 type: TYPE_STRING label: LABEL_OPTIONAL } }
	}`)
	if find(t, url).Fields().ByName("next_year") == nil {
		t.Error("the embedded version is found")
	}
}

// A file of a set refers to the set's version of another file, which has more than the Go package.
func TestImportsAreThoseOfTheSet(t *testing.T) {
	descriptorstest.Use(t, `
		file { name: "acme/uses.proto" package: "acme" dependency: "envoy/config/core/v3/base.proto"
			message_type { name: "Uses" field { name: "year" number: 1 type: TYPE_MESSAGE type_name: ".envoy.config.core.v3.NextYear" label: LABEL_OPTIONAL } } }
		file { name: "envoy/config/core/v3/base.proto" package: "envoy.config.core.v3" message_type { name: "Node" } message_type { name: "NextYear" } }`)
	find(t, "type.googleapis.com/acme.Uses")
}

func TestWhatIsNoLongerUsedIsUnknown(t *testing.T) {
	set, err := descriptors.Load(descriptorstest.Write(t, descriptorstest.Widget))
	if err != nil {
		t.Fatal(err)
	}
	var cached descriptors.Cached[int]
	*cached.Get() = 1
	before := descriptors.Use(set)
	find(t, descriptorstest.WidgetURL)
	if n := *cached.Get(); n != 0 {
		t.Errorf("what was computed from other types is still there: %d", n)
	}
	*cached.Get() = 2
	if n := *cached.Get(); n != 2 {
		t.Errorf("the cache has lost its value: %d", n)
	}
	descriptors.Use(before)
	if _, err := (descriptors.Types{}).FindMessageByURL(descriptorstest.WidgetURL); !errors.Is(err, protoregistry.NotFound) {
		t.Errorf("the error is %v, want NotFound", err)
	}
}

func TestCompressedSets(t *testing.T) {
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	_, _ = zip.Write(descriptorstest.Encode(t, descriptorstest.Widget))
	_ = zip.Close()
	path := filepath.Join(t.TempDir(), "set.gz")
	if err := os.WriteFile(path, zipped.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := descriptors.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := descriptors.Load(descriptorstest.Write(t, descriptorstest.Widget))
	if err != nil {
		t.Fatal(err)
	}
	if set.Fingerprint() != plain.Fingerprint() {
		t.Error("the fingerprint depends on the compression")
	}
}

func TestBadSets(t *testing.T) {
	bomb := func() []byte {
		var zipped bytes.Buffer
		zip := gzip.NewWriter(&zipped)
		_, _ = zip.Write(make([]byte, 65<<20))
		_ = zip.Close()
		return zipped.Bytes()
	}
	file := func(text string) []byte { return descriptorstest.Encode(t, text) }
	for _, tt := range []struct {
		name string
		sets [][]byte
		want string
	}{
		{"text", [][]byte{[]byte("syntax = \"proto3\";")}, "a: no FileDescriptorSet (want the output of protoc"},
		{"empty", [][]byte{nil}, "a: no FileDescriptorSet"},
		{"a broken gzip", [][]byte{{0x1f, 0x8b, 0}}, "a: unexpected EOF"},
		{"a gzip bomb", [][]byte{bomb()}, "a: larger than 64 MiB"},
		{
			"a missing import",
			[][]byte{file(`file { name: "x.proto" package: "x" dependency: "y.proto" message_type { name: "X" } }`)},
			"a: x.proto imports y.proto, which is missing in the set (want protoc --include_imports)",
		},
		{
			"a file that imports itself",
			[][]byte{file(`file { name: "x.proto" package: "x" dependency: "y.proto" message_type { name: "X" } }
				file { name: "y.proto" package: "y" dependency: "x.proto" message_type { name: "Y" } }`)},
			"a: x.proto imports itself",
		},
		{
			"a type that is missing",
			[][]byte{file(`file { name: "x.proto" package: "x" message_type { name: "X" field { name: "f" number: 1 type: TYPE_MESSAGE type_name: ".x.Y" label: LABEL_OPTIONAL } } }`)},
			`a: x.proto is invalid: message field "x.X.f" cannot resolve type`,
		},
		{
			"a message twice",
			[][]byte{file(`file { name: "x.proto" package: "x" message_type { name: "X" } }`), file(`file { name: "z.proto" package: "x" message_type { name: "X" } }`)},
			`b: z.proto is invalid: file "z.proto" has a name conflict over x.X`,
		},
		{
			"two versions of a file",
			[][]byte{file(`file { name: "x.proto" package: "x" message_type { name: "X" } }`), file(`file { name: "x.proto" package: "x" message_type { name: "Y" } }`)},
			"b: x.proto differs from the file of this name in ",
		},
		{
			"protobuf's own messages",
			[][]byte{file(`file { name: "any.proto" package: "google.protobuf" message_type { name: "Any" } message_type { name: "Other" } }`)},
			"a: any.proto defines google.protobuf.Any again",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			var paths []string
			for i, set := range tt.sets {
				path := filepath.Join(dir, string(rune('a'+i)))
				if err := os.WriteFile(path, set, 0o600); err != nil {
					t.Fatal(err)
				}
				paths = append(paths, path)
			}
			_, err := descriptors.Load(paths...)
			if err == nil {
				t.Fatal("the set is read")
			}
			got := strings.ReplaceAll(strings.ReplaceAll(err.Error(), dir+"/", ""), "\u00a0", " ")
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("the error is %q, want %q", got, tt.want)
			}
		})
	}
	if _, err := descriptors.Load("no/such/file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error for a missing file is %v", err)
	}
}
