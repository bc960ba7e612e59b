package envoyjson

import (
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// What Envoy 1.40 made of each of these scalars is in its config dump.
func TestScalarsOfYAML(t *testing.T) {
	const document = `
a: 1.10
b: yes
c: 9007199254740993
d: 0x1F
e: 010
f: 1e3
g: ~
h: .inf
i: "1"
j: !!str 1
k: On
l: n
m: 70696e67
n: 2024-01-01
o: null
p: -5
q: +5
r: 1_000
s: 5000000000
t: 0o17
u: 'yes'
v: |
  1
w: 12345678901234567890
x:
y: !!binary aGVs
z: 1.0
aa: .5
ab: oN
ac: TRUE
ad: tRue
ae: !foo 7
af: 0b11
ag: "  "
ah: !!int "5"
ai: !!float 2
aj: NULL
al: 2147483648
am: -2147483649
an: 1.
ap: .NaN
aq: 5:30
"1": one
yes: two
!ignore anchors: &anchor {merged: 1}
`
	want := map[string]any{
		"a": "1.10", "b": true, "c": "9007199254740993", "d": 31., "e": 8., "f": "1e3", "g": nil, "h": ".inf", "i": "1", "j": 1.,
		"k": true, "l": false, "m": "70696e67", "n": "2024-01-01", "o": nil, "p": -5., "q": 5., "r": "1_000", "s": "5000000000",
		"t": "0o17", "u": "yes", "v": "1\n", "w": "12345678901234567890", "x": nil, "y": "aGVs", "z": "1.0", "aa": ".5",
		"ab": "oN", "ac": true, "ad": "tRue", "ae": 7., "af": "0b11", "ag": "  ", "ah": 5., "ai": 2., "aj": nil,
		"al": "2147483648", "am": "-2147483649", "an": "1.", "ap": ".NaN", "aq": "5:30", "1": "one", "yes": "two",
	}
	documents, err := YAML([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	var got structpb.Struct
	if _, _, err := documents[0].Unmarshal(&got); err != nil {
		t.Fatal(err)
	}
	for key, value := range got.AsMap() {
		if w, ok := want[key]; !ok || value != w {
			t.Errorf("%s is %#v, want %#v", key, value, w)
		}
		delete(want, key)
	}
	if len(want) > 0 {
		t.Errorf("%v are missing", want)
	}
}

// Each of these is valid for Envoy 1.40.
func TestFormsThatEnvoyTakes(t *testing.T) {
	for _, tt := range []struct{ name, yaml, want, ignored string }{
		{name: "an enum in lower case", yaml: `{type: strict_dns}`, want: `type: STRICT_DNS`},
		{name: "an enum as a number in quotes", yaml: `{type: "2"}`, want: `type: LOGICAL_DNS`},
		{
			name: "an unknown value of an enum", yaml: "name: c\ntype: EDDS", want: `name: "c"`,
			ignored: "2: type: DiscoveryType has no value of that name",
		},
		{
			name: "an unknown field", yaml: "name: c\nload_assignment:\n  endpoints:\n  - prioritty: 1", want: `name: "c" load_assignment { endpoints {} }`,
			ignored: "4: load_assignment.endpoints[0].prioritty: LocalityLbEndpoints has no such field",
		},
		{
			name: "a field twice", yaml: "name: c\nname: d", want: `name: "d"`,
			ignored: "1: name: the field is there again, and the last one counts",
		},
		{
			name: "one element in place of a list", yaml: `{load_assignment: {endpoints: {lb_endpoints: {health_status: healthy}}}, health_checks: {alt_port: 80}}`,
			want: `load_assignment { endpoints { lb_endpoints { health_status: HEALTHY } } } health_checks { alt_port { value: 80 } }`,
		},
		{name: "a list in a list", yaml: `{health_checks: [[{alt_port: 1}], {alt_port: 2}]}`, want: `health_checks { alt_port { value: 1 } } health_checks { alt_port { value: 2 } }`},
		{name: "null in a list", yaml: `{health_checks: [null]}`, want: `health_checks {}`},
		{name: "null for a list and a map", yaml: `{health_checks: null, typed_extension_protocol_options: ~, name: c}`, want: `name: "c"`},
		{name: "a boolean in quotes", yaml: `{respect_dns_ttl: "yes"}`, want: `respect_dns_ttl: true`},
		{name: "a boolean as a word", yaml: `{respect_dns_ttl: on}`, want: `respect_dns_ttl: true`},
		{name: "a Duration as a message", yaml: `{connect_timeout: {seconds: 3, nanos: 5}}`, want: `connect_timeout { seconds: 3 nanos: 5 }`},
		{name: "a wrapper as a message", yaml: `{per_connection_buffer_limit_bytes: {value: 77}}`, want: `per_connection_buffer_limit_bytes { value: 77 }`},
		{name: "a fraction", yaml: `{common_lb_config: {healthy_panic_threshold: {value: .5}}}`, want: `common_lb_config { healthy_panic_threshold { value: 0.5 } }`},
		{name: "a fraction that is a string", yaml: `{alt_stat_name: 1.10}`, want: `alt_stat_name: "1.10"`},
		{name: "a large integer", yaml: `{ring_hash_lb_config: {minimum_ring_size: 5000000000}}`, want: `ring_hash_lb_config { minimum_ring_size { value: 5000000000 } }`},
		{name: "hexadecimal", yaml: `{health_checks: [{alt_port: 0x50}]}`, want: `health_checks { alt_port { value: 80 } }`},
		{
			name:    "the same in an Any, in a map",
			yaml:    `{typed_extension_protocol_options: {a: {"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, upstream_http_protocol_options: {auto_sni: yes}, new: 1}}}`,
			want:    `typed_extension_protocol_options { key: "a" value { [type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions] { upstream_http_protocol_options { auto_sni: true } } } }`,
			ignored: `1: typed_extension_protocol_options[].new: HttpProtocolOptions has no such field`,
		},
		{
			name: "a message with a form of its own, in an Any",
			yaml: `{typed_extension_protocol_options: {a: {"@type": type.googleapis.com/google.protobuf.Duration, value: {seconds: 1}}}}`,
			want: `typed_extension_protocol_options { key: "a" value { [type.googleapis.com/google.protobuf.Duration] { seconds: 1 } } }`,
		},
		{name: "an Any that is empty", yaml: `{cluster_type: {name: a, typed_config: {}}}`, want: `cluster_type { name: "a" typed_config {} }`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			documents, wrong := YAML([]byte(tt.yaml))
			if wrong != nil {
				t.Fatal(wrong)
			}
			var got, want clusterv3.Cluster
			ignored, _, err := documents[0].Unmarshal(&got)
			if err != nil {
				t.Fatal(err)
			}
			if err := prototext.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(&got, &want) {
				t.Errorf("got %v, want %v", &got, &want)
			}
			if lines := printed(ignored); lines != tt.ignored {
				t.Errorf("ignored: %q, want %q", lines, tt.ignored)
			}
		})
	}
}

func printed(ignored []Ignored) string {
	lines := make([]string, len(ignored))
	for i, part := range ignored {
		lines[i] = fmt.Sprintf("%d: %s: %s", part.Line, Join(part.Path, part.Field), part.Text)
	}
	return strings.Join(lines, "\n")
}

// What neither Envoy nor protobuf takes is an error, on the line where it is.
func TestErrorsHaveTheirLine(t *testing.T) {
	for _, tt := range []struct {
		yaml string
		line int
	}{
		{"name: c\nconnect_timeout: soon", 2},
		{"name: c\n\nalt_stat_name: 5", 3},
		{"name: [c]", 1},
		{"name: c\nload_assignment:\n  endpoints:\n  - foo", 4},
		{"name: c\nmetadata: {typed_filter_metadata: {a: {\n  '@type': not.known}}}", 3},
	} {
		documents, wrong := YAML([]byte(tt.yaml))
		if wrong != nil {
			t.Fatal(wrong)
		}
		if _, line, err := documents[0].Unmarshal(&clusterv3.Cluster{}); err == nil || line != tt.line {
			t.Errorf("%q: line %d, want %d: %v", tt.yaml, line, tt.line, err)
		}
	}
}

func TestAHostileDocumentIsIgnoredInBoundedMemory(t *testing.T) {
	text := []byte(`{"a": 1` + strings.Repeat(`, "b": 1`, 10_000) + `}`)
	if ignored, err := Unmarshal(text, &clusterv3.Cluster{}); err != nil || len(ignored) != mostIgnored {
		t.Errorf("%d parts are ignored: %v", len(ignored), err)
	}
}

// What protobuf's parser reads, this one reads alike.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{
		`{"name": "c", "type": "EDS", "connect_timeout": "1.5s"}`, `{"type": "eds", "healthChecks": {"altPort": 1}}`,
		`{"metadata": {"filterMetadata": {"a": {"b": [1, null, {"c": "d"}]}}}}`,
		`{"clusterType": {"typedConfig": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s"}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, wrong := JSON(text)
		if wrong != nil {
			return
		}
		var lenient, strict clusterv3.Cluster
		_, _, err := v.Unmarshal(&lenient)
		if protojson.Unmarshal(text, &strict) == nil && (err != nil || !proto.Equal(&lenient, &strict)) {
			t.Errorf("got %v, %v, want %v", &lenient, err, &strict)
		}
	})
}
