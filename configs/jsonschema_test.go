package configs

// The JSON Schema, for editors and other people's tools, against the checks of this package.

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func TestTheSchemaAcceptsTheExamples(t *testing.T) {
	schema := compileSchema(t)
	examples, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range examples {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := yaml.Unmarshal(data, &value); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestTheSchemaRefusesWhatTheShapeRefuses holds the two to each other: the schema refuses
// each mistake for which no value has to be understood, but for a few that it cannot see, and
// nothing that is right.
func TestTheSchemaRefusesWhatTheShapeRefuses(t *testing.T) {
	schema := compileSchema(t)
	unseen := map[string]string{
		"metadata with a number for a key": "metadata is anything",
		"an alias in metadata":             "aliases are gone when YAML is decoded",
		"a tag of one's own":               "tags are gone when YAML is decoded",
		"too many entries":                 "it has no largest number",
		"too large a size":                 "sizes with units are compared by pattern",
		"tombstones without time":          "times are compared by pattern",
		"no time":                          "times are compared by pattern",
		"a poll that does not wait":        "times are compared by pattern",
		"a view of an unknown type":        "types can be URLs",
	}
	for _, tt := range mistakes {
		root, err := parseYAML("relay.yaml", []byte(tt.yaml))
		if err != nil {
			continue
		}
		var value any
		if root.Decode(&value) != nil {
			continue // keys twice, which editors see by themselves
		}
		s := newShape("relay.yaml")
		s.walk(root, configType, "", "")
		refused := schema.Validate(value) != nil
		if _, ok := unseen[tt.name]; ok == refused && len(s.errs) > 0 {
			t.Errorf("%s: the schema refuses it: %t\n%s", tt.name, refused, s.errs)
		}
	}
}
