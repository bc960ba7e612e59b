package configs

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestExamplesLoad(t *testing.T) {
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if _, err := Load(file); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestReferenceHasEveryKeyOfTheSchema(t *testing.T) {
	data, err := os.ReadFile("examples/reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	written := map[string]bool{}
	collectKeys(document.Content[0], "", written)
	for _, key := range schemaKeys(configType, "") {
		if !written[key] && !excluded[key] {
			t.Errorf("%s is missing", key)
		}
	}
}

// TestReferenceShowsTheDefaults compares the reference with a configuration
// that has only what is required: what that one got by default is what the
// reference says.
func TestReferenceShowsTheDefaults(t *testing.T) {
	reference, err := Load("examples/reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	least := mustParse(t, `
listeners: [{address: "127.0.0.1:18000"}]
node: {id: relay-1}
authorities: [{name: cloud.example.com, servers: [{address: "cp.example.com:443"}]}]
`)
	compareDefaults(t, "", reflect.ValueOf(*least), reflect.ValueOf(*reference))
}

func compareDefaults(t *testing.T, path string, least, reference reflect.Value) {
	t.Helper()
	switch {
	case least.IsZero():
	case least.Kind() == reflect.Struct:
		for i := range least.NumField() {
			if key := least.Type().Field(i).Tag.Get("yaml"); key != "" {
				compareDefaults(t, join(path, key), least.Field(i), reference.Field(i))
			}
		}
	case least.Kind() == reflect.Slice:
		for i := range least.Len() {
			compareDefaults(t, path, least.Index(i), reference.Index(i))
		}
	case !least.Equal(reference):
		t.Errorf("%s: the default is %v, the reference says %v", path, least, reference)
	}
}

func collectKeys(n *yaml.Node, path string, keys map[string]bool) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			key := join(path, n.Content[i].Value)
			keys[key] = true
			collectKeys(n.Content[i+1], key, keys)
		}
	case yaml.SequenceNode:
		for _, element := range n.Content {
			collectKeys(element, path, keys)
		}
	}
}

func schemaKeys(t reflect.Type, path string) []string {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer && t != metadataType {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var keys []string
	for _, key := range keysOf(t) {
		field, _ := fieldOf(t, key)
		keys = append(keys, join(path, key))
		keys = append(keys, schemaKeys(field.Type, join(path, key))...)
	}
	return keys
}
