package checks

// The files of the chart that are made of others.

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Helm reads only files inside of the chart.
func TestTheChartHasTheAlertsAndTheDashboard(t *testing.T) {
	for from, to := range map[string]string{"../prometheus/alerts.yaml": "alerts.yaml", "../grafana/xds-relay.json": "dashboard.json"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		expected(t, filepath.Join(chartFolder, "files", to), string(text))
	}
}

// line is the line of the values' schema with that of the relay's configuration.
var line = regexp.MustCompile(`(?m)^    "config": .*,$`)

func TestTheValuesHaveTheSchemaOfTheConfiguration(t *testing.T) {
	path := filepath.Join(chartFolder, "values.schema.json")
	text, err := os.ReadFile(path)
	if err != nil || !line.Match(text) {
		t.Fatal("the schema of the values has no line for config", err)
	}
	schema, err := os.ReadFile("../../configs/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(schema, &config); err != nil {
		t.Fatal(err)
	}
	delete(config, "$schema")
	config = withoutTexts(config).(map[string]any)
	// What a pod needs, too.
	listeners := config["properties"].(map[string]any)["listeners"].(map[string]any)
	listeners["items"].(map[string]any)["properties"].(map[string]any)["address"].(map[string]any)["pattern"] = "^(.*:[1-9][0-9]*|unix:/.+)$"
	for _, key := range []string{"store", "fleet"} { // the chart adds the path, and how members reach each other
		delete(config["properties"].(map[string]any)[key].(map[string]any), "required")
	}
	config["properties"].(map[string]any)["authorities"].(map[string]any)["minItems"] = 1
	var compact bytes.Buffer
	e := json.NewEncoder(&compact)
	e.SetEscapeHTML(false)
	if err := e.Encode(config); err != nil {
		t.Fatal(err)
	}
	want := `    "config": ` + string(bytes.TrimSpace(compact.Bytes())) + ","
	expected(t, path, line.ReplaceAllLiteralString(string(text), want))
}

// withoutTexts returns a schema without what it says to people: xds-relay schema prints that.
func withoutTexts(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			if _, isText := value.(string); isText && (key == "description" || key == "title") || key == "default" {
				continue
			}
			out[key] = withoutTexts(value)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, value := range v {
			out[i] = withoutTexts(value)
		}
		return out
	}
	return v
}
