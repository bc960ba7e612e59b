package configs

// What is made of the declarations of the keys: the JSON Schema, the comments of the
// reference, and the tables of the page about the configuration. `make generate` writes them.

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write what is generated from the schema")

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	keys := allKeys(t)
	for _, tt := range []struct {
		file     string
		generate func(*testing.T, []key, []byte) []byte
	}{
		{"schema.json", jsonSchema},
		{"examples/reference.yaml", reference},
		{"../docs/configure.md", tables},
	} {
		t.Run(tt.file, func(t *testing.T) {
			is, err := os.ReadFile(tt.file)
			if err != nil && !*update {
				t.Fatal(err)
			}
			want := tt.generate(t, keys, is)
			if bytes.Equal(is, want) {
				return
			}
			if !*update {
				t.Fatalf("%s is not what the schema says: make generate\n%s", tt.file, firstDifference(is, want))
			}
			if err := os.WriteFile(tt.file, want, 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func firstDifference(is, want []byte) string {
	a, b := strings.Split(string(is), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d:\n\t%s\nwant\n\t%s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}

// schemaNode is a JSON Schema, as far as it is needed here.
type schemaNode struct {
	Schema      string                 `json:"$schema,omitempty"`
	Title       string                 `json:"title,omitempty"`
	Description string                 `json:"description,omitempty"`
	Type        any                    `json:"type"`
	Enum        []string               `json:"enum,omitempty"`
	Pattern     string                 `json:"pattern,omitempty"`
	MinLength   int                    `json:"minLength,omitempty"`
	Minimum     int                    `json:"minimum,omitempty"`
	Above       *int                   `json:"exclusiveMinimum,omitempty"`
	Maximum     int                    `json:"maximum,omitempty"`
	Default     any                    `json:"default,omitempty"`
	Items       *schemaNode            `json:"items,omitempty"`
	MinItems    int                    `json:"minItems,omitempty"`
	Required    []string               `json:"required,omitempty"`
	Properties  map[string]*schemaNode `json:"properties,omitempty"`
	Additional  *bool                  `json:"additionalProperties,omitempty"`
}

const (
	sizePattern   = `^[0-9]+ *(KiB|MiB|GiB)?$`
	modePattern   = `^(0o)?[0-7]+$`
	factorPattern = `^[0-9.]+$`
	timePattern   = `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`
)

func jsonSchema(t *testing.T, keys []key, _ []byte) []byte {
	root := nodeOf(configType, "")
	root.Schema, root.Title = "https://json-schema.org/draft/2020-12/schema", "xds-relay configuration"
	maps := map[string]*schemaNode{"": root}
	for _, k := range keys {
		n := nodeOf(k.field.Type, k.field.Tag)
		n.Description = strings.ReplaceAll("\n"+k.comment(-1<<20, &yaml.Node{}), "\n# ", "\n")[1:]
		if k.hasValue && !k.isMap() {
			n.Default = reflect.New(k.field.Type).Interface()
			if err := yaml.Unmarshal([]byte(k.value), n.Default); err != nil {
				t.Fatal(err)
			}
			if kind := k.field.Type; kind == durationType || kind == bytesType || kind == modeType {
				n.Default = k.value
			}
		}
		name := k.path[strings.LastIndex(k.path, ".")+1:]
		around := maps[strings.TrimSuffix(strings.TrimSuffix(k.path, name), ".")]
		around.Properties[name] = n
		if _, required := k.field.Tag.Lookup("required"); required {
			around.Required = append(around.Required, name)
		}
		maps[k.path] = n
		if n.Items != nil {
			maps[k.path+"[]"] = n.Items
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(root); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func nodeOf(t reflect.Type, tag reflect.StructTag) *schemaNode {
	closed := false
	if words, ok := choicesOf(t); ok {
		return &schemaNode{Type: "string", Enum: words}
	}
	switch {
	case t == metadataType:
		return &schemaNode{Type: "object"}
	case t == durationType:
		return &schemaNode{Type: "string", Pattern: timePattern}
	case t == bytesType:
		return &schemaNode{Type: []string{"string", "integer"}, Pattern: sizePattern, Minimum: 1, Maximum: 1<<31 - 1}
	case t == modeType:
		return &schemaNode{Type: []string{"string", "integer"}, Pattern: modePattern}
	case t == factorType:
		return &schemaNode{Type: []string{"string", "number"}, Pattern: factorPattern, Minimum: 1}
	case t == expressionType:
		return &schemaNode{Type: []string{"string", "boolean"}, MinLength: 1}
	case t.Kind() == reflect.Pointer:
		return nodeOf(t.Elem(), tag)
	case t == ratioType:
		most := 1
		return &schemaNode{Type: "number", Above: new(int), Maximum: most}
	case t == guardType:
		return &schemaNode{Type: []string{"object", "string"}, Pattern: "^" + guardOff + "$", Properties: map[string]*schemaNode{}, Additional: &closed}
	case isMap(t):
		return &schemaNode{Type: "object", Properties: map[string]*schemaNode{}, Additional: &closed}
	case t.Kind() == reflect.Slice:
		return &schemaNode{Type: "array", Items: nodeOf(t.Elem(), "")}
	case t.Kind() == reflect.Int:
		return &schemaNode{Type: "integer", Minimum: 1}
	case t.Kind() == reflect.Bool:
		return &schemaNode{Type: "boolean"}
	case tag.Get("allow") == "empty":
		return &schemaNode{Type: "string"}
	}
	return &schemaNode{Type: "string", MinLength: 1}
}

const (
	tablesBegin = "<!-- The tables are written by `make generate`, from the comments in configs/. -->\n"
	tablesEnd   = "<!-- The end of the tables. -->\n"
)

// tables writes one table for each key of the document into a page.
func tables(t *testing.T, keys []key, page []byte) []byte {
	before, rest, begins := strings.Cut(string(page), tablesBegin)
	_, after, ends := strings.Cut(rest, tablesEnd)
	if !begins || !ends {
		t.Fatalf("the page has no lines\n%s%s", tablesBegin, tablesEnd)
	}
	var b strings.Builder
	for i, k := range keys {
		if k.depth == 0 {
			fmt.Fprintf(&b, "\n### `%s`\n\n%s\n", k.path, strings.Join(append([]string{k.firstSentence()}, k.notes()...), " "))
			if i+1 < len(keys) && keys[i+1].depth > 0 {
				b.WriteString("\n| key | value | default | meaning |\n|---|---|---|---|\n")
			}
			continue
		}
		meaning := k.firstSentence()
		value := ""
		if k.hasValue && !k.isMap() {
			value = "`" + k.value + "`"
		}
		for _, note := range k.notes() {
			if absent, ok := strings.CutPrefix(note, "Default: "); ok {
				value = strings.TrimSuffix(absent, ".")
			} else if note == "Required." {
				value = "required"
			} else {
				meaning += " " + note
			}
		}
		top, _, _ := strings.Cut(strings.ReplaceAll(k.path, "[]", ""), ".")
		path := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(k.path, top), "[]"), ".")
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", path, k.kind(), value, strings.ReplaceAll(meaning, "|", `\|`))
	}
	return []byte(before + tablesBegin + b.String() + "\n" + tablesEnd + after)
}
