package directory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlTrees parses the documents in data, up to the first that is not valid
// YAML. It leaves out empty documents.
func yamlTrees(data []byte) (documents []*value, err *Error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return documents, yamlError(err)
		}
		t := yamlReader{left: 10*len(data) + 1000}
		v, bad := t.value(document.Content[0], 0)
		if bad != nil {
			return documents, bad
		}
		if v.kind != isScalar || v.scalar != "null" {
			documents = append(documents, v)
		}
	}
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func yamlError(err error) *Error {
	text, line := err.Error(), 1 // the library's errors leave out line 1
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if m[1] != "" {
			line, _ = strconv.Atoi(m[1])
		}
	}
	if strings.HasPrefix(text, "unknown anchor ") {
		text = "an alias of an unknown anchor" // the anchor's name may be a value without quotes
	}
	return &Error{Line: line, Err: fmt.Errorf("not YAML: %s", text)}
}

// yamlReader builds the tree of one document, with aliases and merges resolved.
type yamlReader struct {
	left int // how many more values are allowed: aliases of aliases multiply
}

func (t *yamlReader) value(n *yaml.Node, depth int) (*value, *Error) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	v := &value{line: n.Line}
	switch t.left--; {
	case depth > maxDepth:
		return nil, &Error{Line: n.Line, Err: errTooDeep}
	case t.left < 0:
		return nil, &Error{Line: n.Line, Err: errors.New("aliases make this too large")}
	}
	switch n.Kind {
	case yaml.MappingNode:
		v.kind = isObject
		return v, t.fields(v, n, depth)
	case yaml.SequenceNode:
		v.kind = isList
		for _, c := range n.Content {
			item, err := t.value(c, depth+1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, item)
		}
		return v, nil
	}
	var err error
	if v.scalar, err = yamlScalar(n); err != nil {
		return nil, &Error{Line: n.Line, Err: err}
	}
	return v, nil
}

// fields adds the fields of the mapping n to v, and then the fields of mappings that n merges
// in (`<<: *other`), unless n has them itself.
func (t *yamlReader) fields(v *value, n *yaml.Node, depth int) *Error {
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, content := n.Content[i], n.Content[i+1]
		for name.Kind == yaml.AliasNode {
			name = name.Alias
		}
		switch {
		case name.Kind != yaml.ScalarNode:
			return &Error{Line: name.Line, Err: errors.New("a map or list as a key (want a string)")}
		case name.ShortTag() == "!!merge":
			merged = append(merged, content)
			continue
		}
		c, err := t.value(content, depth+1)
		if err != nil {
			return err
		}
		v.fields = append(v.fields, field{line: name.Line, name: name.Value, value: c})
	}
	for _, m := range merged {
		other, err := t.value(m, depth+1)
		if err != nil {
			return err
		}
		sources := []*value{other}
		if other.kind == isList {
			sources = other.items
		}
		for _, source := range sources {
			if source.kind != isObject {
				return &Error{Line: m.Line, Err: errors.New("<< merges something that is no map")}
			}
			own := slices.Clone(v.fields)
			for _, f := range source.fields {
				if !slices.ContainsFunc(own, func(o field) bool { return o.name == f.name }) {
					v.fields = append(v.fields, f)
				}
			}
		}
	}
	return nil
}

// yamlScalar returns a scalar as JSON. A value that looks like a time is a string.
func yamlScalar(n *yaml.Node) (string, error) {
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp", "!!merge":
		return quote(n.Value), nil
	case "!!binary":
		return quote(strings.Join(strings.Fields(n.Value), "")), nil
	case "!!null":
		return "null", nil
	case "!!bool", "!!int", "!!float":
		var x any
		if err := n.Decode(&x); err != nil {
			return "", fmt.Errorf("not a %s", strings.TrimPrefix(tag, "!!"))
		}
		if f, ok := x.(float64); ok {
			return jsonFloat(f), nil
		}
		return fmt.Sprint(x), nil
	default:
		return "", errors.New("a tag that is not supported (a value that begins with ! needs quotes)")
	}
}

// jsonFloat prints f as in protobuf's JSON.
func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return `"NaN"`
	case math.IsInf(f, 1):
		return `"Infinity"`
	case math.IsInf(f, -1):
		return `"-Infinity"`
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}
