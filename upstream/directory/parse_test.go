package directory

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// TestFilesGiveResourcesOrErrors runs testdata/*.txt. The commands:
//
//	parse FILE [authority=NAME]
//	<the file>
//
//	wire FILE MESSAGE
//	<the message in text format; the file is its wire format>
func TestFilesGiveResourcesOrErrors(t *testing.T) {
	datadriven.Walk(t, "testdata/parse", func(t *testing.T, file string) {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			data := []byte(d.Input + "\n")
			authority := "onprem"
			if d.HasArg("authority") {
				d.ScanArgs(t, "authority", &authority)
			}
			if d.Cmd == "wire" {
				data = wireOf(t, d.CmdArgs[1].Key, d.Input)
			}
			r := parse(authority, d.CmdArgs[0].Key, data, nil)
			for i := range r.ignored {
				r.ignored[i].Err = fmt.Errorf("ignored: %w", r.ignored[i].Err)
			}
			return printItems(r.items) + printErrors(r.ignored) + printErrors(r.errs)
		})
	})
}

func printItems(items []item) string {
	var b strings.Builder
	for _, it := range items {
		fmt.Fprintf(&b, "%d: %s", it.line, describe(it.typeURL, it.resource.Name()))
		if v := it.resource.Version(); v != fmt.Sprintf("%016x", it.resource.Hash()) {
			fmt.Fprintf(&b, " version=%s", v)
		}
		if it.key != it.resource.Name() {
			fmt.Fprintf(&b, " key=%s", it.key)
		}
		if to := it.resource.Redirect(); to != "" {
			fmt.Fprintf(&b, " redirect to %s", to)
		}
		var all discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(it.resource.AppendDelta(nil, it.resource.Name(), 0).Materialize(), &all); err != nil {
			fmt.Fprintf(&b, " %v", err)
		} else if a := all.Resources[0].Aliases; len(a) > 0 {
			fmt.Fprintf(&b, " aliases=%v", a)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func printErrors(errs Errors) string {
	if len(errs) == 0 {
		return ""
	}
	return strings.ReplaceAll(errs.Error(), "\u00a0", " ") + "\n"
}

func wireOf(t *testing.T, name, text string) []byte {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		t.Fatal(err)
	}
	m := mt.New().Interface()
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// What one resource becomes is the same bytes, whatever it was written in.
func TestAllFormatsGiveTheSameResource(t *testing.T) {
	const name = "envoy.config.cluster.v3.Cluster"
	const text = `name: "foo" connect_timeout { seconds: 1 nanos: 500000000 } type: EDS`
	const body = `"name": "foo", "connectTimeout": "1.5s", "type": "EDS"`
	a := &anypb.Any{TypeUrl: xdstype.Prefix + name, Value: wireOf(t, name, text)}
	want := cache.NewResource(cache.Spec{Name: "foo", TypeURL: a.TypeUrl, Value: a.Value})
	wire := func(m proto.Message) string {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	wrapped, err := anypb.New(&discoveryv3.Resource{Resource: a})
	if err != nil {
		t.Fatal(err)
	}
	response := &discoveryv3.DiscoveryResponse{VersionInfo: "7", Resources: []*anypb.Any{a}}
	responseAny, err := anypb.New(response)
	if err != nil {
		t.Fatal(err)
	}
	anyText := "[" + xdstype.Prefix + name + "] { " + text + " }"
	anyJSON := `{"@type": "` + a.TypeUrl + `", ` + body + `}`
	for _, c := range []struct{ what, file, data string }{
		{"bare", "a.json", anyJSON},
		{"listed", "a.json", "[" + anyJSON + "]"},
		{"Resource", "a.json", `{"resource": ` + anyJSON + `}`},
		{"Resource with a type", "a.json", `{"@type": "` + xdstype.Wrapper + `", "resource": ` + anyJSON + `}`},
		{"DiscoveryResponse", "a.json", `{"versionInfo": "7", "resources": [` + anyJSON + `]}`},
		{"DiscoveryResponse with a type", "a.json", `{"@type": "` + responseType + `", "version_info": "7", "resources": [` + anyJSON + `]}`},
		{"Resource in a DiscoveryResponse", "a.json", `{"resources": [{"@type": "` + xdstype.Wrapper + `", "resource": ` + anyJSON + `}]}`},
		{"JSON in YAML", "a.yml", `{resources: [` + anyJSON + `]}`},
		{"YAML", "a.yaml", "\"@type\": " + a.TypeUrl + "\nname: foo\nconnect_timeout: 1.5s\ntype: EDS\n"},
		{"bare", "a.textpb", "# proto-message: " + name + "\n" + text},
		{"Any", "a.txtpb", anyText},
		{"Any with a header", "a.txtpb", "# proto-file: any.proto\n# proto-message: google.protobuf.Any\n\n" + anyText},
		{"Resource", "a.pbtxt", "resource { " + anyText + " }"},
		{"DiscoveryResponse", "a.textpb", `version_info: "7" resources { ` + anyText + ` }`},
		{"Any", "a.pb", wire(a)},
		{"Resource in an Any", "a.pb", wire(wrapped)},
		{"Resource", "a.pb", wire(&discoveryv3.Resource{Name: "foo", Resource: a})},
		{"DiscoveryResponse", "a.pb", wire(response)},
		{"DiscoveryResponse in an Any", "a.pb", wire(responseAny)},
	} {
		r := parse("onprem", c.file, []byte(c.data), nil)
		items, errs := r.items, r.errs
		if len(errs) > 0 || len(items) != 1 {
			t.Errorf("%s as %s: %d resources, %v", c.what, c.file, len(items), errs)
			continue
		}
		got := items[0].resource
		if got.Name() != "foo" || got.Version() != want.Version() || !bytes.Equal(got.Value(), want.Value()) {
			t.Errorf("%s as %s: name %q, version %s, value %x, want %x", c.what, c.file, got.Name(), got.Version(), got.Value(), want.Value())
		}
	}
}

// What a Resource says itself is not said again by what is passed on of it.
func TestResourceIsEncodedOnce(t *testing.T) {
	r := parse("onprem", "a.yaml", []byte("{name: foo, version: '7', resource: {'@type': "+clusterType+"}}"), nil)
	if len(r.errs) > 0 {
		t.Fatal(r.errs)
	}
	want := cache.NewResource(cache.Spec{Name: "foo", Version: "7", TypeURL: clusterType})
	if got := r.items[0].resource; got.Size("foo", 0) != want.Size("foo", 0) {
		t.Errorf("%d bytes, want %d", got.Size("foo", 0), want.Size("foo", 0))
	}
}

// Invariant: secrets are never logged, and errors are.
func TestErrorsDoNotQuoteStrings(t *testing.T) {
	const (
		secret = "hunter2"
		header = "# proto-message: envoy.extensions.transport_sockets.tls.v3.Secret\nname: \"s\"\n"
	)
	for _, c := range []struct{ file, data string }{
		{"a.yaml", "'@type': " + xdstype.Prefix + "envoy.extensions.transport_sockets.tls.v3.Secret\nname: s\ngeneric_secret: {secret: hunter2}\n"},
		{"a.yaml", "'@type': " + xdstype.Prefix + "envoy.extensions.transport_sockets.tls.v3.Secret\nname: s\ngeneric_secret: hunter2\n"},
		{"a.yaml", "'@type': " + xdstype.Prefix + "envoy.extensions.transport_sockets.tls.v3.Secret\nname: s\ngeneric_secret: {secret: {inline_bytes: hunter2*}}\n"},
		{"a.yaml", "'@type': " + xdstype.Prefix + "envoy.extensions.transport_sockets.tls.v3.Secret\nname: s\ngeneric_secret: {secret: {inline_string: [hunter2]}}\n"},
		{"a.json", `{"@type": "` + xdstype.Prefix + `envoy.extensions.transport_sockets.tls.v3.Secret", "genericSecret": "hunter2"}`},
		{"a.json", `{"@type": "` + xdstype.Prefix + `envoy.extensions.transport_sockets.tls.v3.Secret", "genericSecret": {"secret": {"inlineBytes": "hunter2*"}}}`},
		{"a.textpb", header + `generic_secret: "hunter2"`},
		{"a.textpb", header + `generic_secret { secret: "hunter2" }`},
		{"a.textpb", header + `generic_secret { secret { inline_string: hunter2 } }`},
		{"a.textpb", header + `generic_secret { secret { inline_bytes: hunter2 } }`},
		{"a.textpb", header + `generic_secret { secret { inline_string: "hunter2 } }`},
		{"a.textpb", header + `generic_secret { secret { inline_string: "x" "hunter2\z" } }`},
		{"a.textpb", `"hunter2"`},
	} {
		errs := parse("onprem", c.file, []byte(c.data), nil).errs
		if len(errs) == 0 {
			t.Errorf("no error for %s:\n%s", c.file, c.data)
		} else if strings.Contains(errs.Error(), secret) {
			t.Errorf("%s:\n%s\ngives away: %v", c.file, c.data, errs)
		}
	}
}

// YAML's aliases can say very much in few bytes, or contain themselves.
func TestYAMLAliasesAreBounded(t *testing.T) {
	for _, data := range []string{
		"&a [*a, *a]\n",
		"a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
			"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
	} {
		r := parse("onprem", "a.yaml", []byte(data), nil)
		items, errs := r.items, r.errs
		if len(items) > 0 || len(errs) != 1 || !strings.Contains(errs.Error(), "aliases") && !strings.Contains(errs.Error(), "deep") {
			t.Errorf("%q: %d resources, errors %v", data, len(items), errs)
		}
	}
}

func TestDeepDocumentsAreErrors(t *testing.T) {
	deep := strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000)
	for _, name := range []string{"a.json", "a.yaml"} {
		if errs := parse("onprem", name, []byte(deep), nil).errs; len(errs) != 1 || !strings.Contains(errs.Error(), "deep") {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestNameInsideIsOnlyTakenFromTypesThatHaveOne(t *testing.T) {
	s, err := structpb.NewStruct(map[string]any{"a": "b"})
	if err != nil {
		t.Fatal(err)
	}
	data, err := anypb.New(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := nameInside(data); got != "" {
		t.Errorf("name %q inside a Struct", got)
	}
	if got := nameInside(&anypb.Any{TypeUrl: xdstype.Prefix + "not.known", Value: []byte("\x0a\x03foo")}); got != "foo" {
		t.Errorf("name %q inside an unknown message (want foo)", got)
	}
}

func FuzzParse(f *testing.F) {
	names := []string{"a.yaml", "a.json", "a.textpb", "a.pb"}
	const cluster = xdstype.Prefix + "envoy.config.cluster.v3.Cluster"
	for i, data := range []string{
		"resources:\n- '@type': " + cluster + "\n  name: foo\n  <<: {type: EDS}\n---\n- &x {resource: {'@type': " + cluster + "}, name: xdstp://onprem/envoy.config.cluster.v3.Cluster/a}\n- *x\n",
		`{"versionInfo": "1", "resources": [{"@type": "` + cluster + `", "name": "foo", "connectTimeout": "1s"}]}`,
		"# proto-message: envoy.config.cluster.v3.Cluster\nname: 'foo'\n",
		"\x0a\x011\x12\x36\x0a\x2f" + cluster + "\x12\x03\x0a\x01a",
	} {
		f.Add(uint8(i), []byte(data))
	}
	f.Fuzz(func(t *testing.T, format uint8, data []byte) {
		name := names[int(format)%len(names)]
		r := parse("onprem", name, data, nil)
		items, errs := r.items, r.errs
		lines := 1 + bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r"))
		for _, e := range errs {
			if e.File != name || e.Line < 0 || path.Ext(name) != ".pb" && e.Line > lines+1 {
				t.Errorf("error at %s:%d of %d lines: %v", e.File, e.Line, lines, e.Err)
			}
		}
		for _, it := range items {
			if it.resource.Name() == "" || it.key == "" || !strings.HasPrefix(it.typeURL, xdstype.Prefix) {
				t.Errorf("item %+v", it)
			}
		}
	})
}
