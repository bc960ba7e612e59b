package render

// The conversion of JSON to YAML, which keeps the order of fields. The usual libraries sort fields, but
// people look for the name at the top, not between "lb_policy" and "type".

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

func yamlOf(text []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	root, err := node(decoder)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return nil, err
	}
	if err := encoder.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// node converts one JSON value.
func node(decoder *json.Decoder) (*yaml.Node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch value := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		if value == '[' {
			n = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		}
		for decoder.More() {
			// For an object this reads keys and values in turn, in the order of YAML nodes.
			child, err := node(decoder)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		_, err := decoder.Token() // the end
		return n, err
	case string:
		// Encode quotes texts where needed, also for readers of YAML 1.1 ("yes"), and
		// writes certificates and scripts as blocks.
		n := new(yaml.Node)
		return n, n.Encode(value)
	case json.Number:
		tag := "!!int"
		if strings.ContainsAny(value.String(), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(value)}, nil
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
}
