package checks

// Kubernetes' OpenAPI schemas, as far as its modules have them: of v1 and apps/v1.

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// openAPI is the folder of the schemas in k8s.io/client-go.
var openAPI = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/client-go").Output()
	return filepath.Join(strings.TrimSpace(string(out)), "openapi", "openapitest", "testdata"), err
})

var compiled = map[string]*jsonschema.Schema{}

func checkSchema(t *testing.T, apiVersion, kind string, document []byte) {
	t.Helper()
	var file, prefix string
	switch apiVersion {
	case "v1":
		file, prefix = "api__v1_openapi.json", "io.k8s.api.core.v1."
	case "apps/v1":
		file, prefix = "apis__apps__v1_openapi.json", "io.k8s.api.apps.v1."
	default:
		return
	}
	folder, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	schema := compiled[apiVersion+kind]
	if schema == nil {
		text, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			t.Fatal(err)
		}
		api, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("mem:///api.json", api); err != nil {
			t.Fatal(err)
		}
		if schema, err = c.Compile(fmt.Sprintf("mem:///api.json#/components/schemas/%s%s", prefix, kind)); err != nil {
			t.Fatal(err)
		}
		compiled[apiVersion+kind] = schema
	}
	asJSON, err := yaml.YAMLToJSON(document)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%s: %v\n%s", kind, err, document)
	}
}
