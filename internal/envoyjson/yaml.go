package envoyjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML parses the documents in data, up to the first that is not valid YAML. It leaves out empty documents.
func YAML(data []byte) (documents []*Value, err *Error) {
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
		if !v.IsNull() {
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

func (t *yamlReader) value(n *yaml.Node, depth int) (*Value, *Error) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	v := &Value{Line: n.Line}
	switch t.left--; {
	case depth > maxDepth:
		return nil, &Error{Line: n.Line, Err: errTooDeep}
	case t.left < 0:
		return nil, &Error{Line: n.Line, Err: errors.New("aliases make this too large")}
	}
	switch n.Kind {
	case yaml.MappingNode:
		v.Kind = Object
		return v, t.fields(v, n, depth)
	case yaml.SequenceNode:
		v.Kind = List
		for _, c := range n.Content {
			item, err := t.value(c, depth+1)
			if err != nil {
				return nil, err
			}
			v.Items = append(v.Items, item)
		}
		return v, nil
	}
	v.Scalar = yamlScalar(n)
	return v, nil
}

// fields adds the fields of the mapping n to v, and then the fields of mappings that n merges
// in (`<<: *other`), unless n has them itself.
func (t *yamlReader) fields(v *Value, n *yaml.Node, depth int) *Error {
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, content := n.Content[i], n.Content[i+1]
		for name.Kind == yaml.AliasNode {
			name = name.Alias
		}
		switch {
		case name.Kind != yaml.ScalarNode:
			return &Error{Line: name.Line, Err: errors.New("a map or list as a key (want a string)")}
		case name.Tag == "!ignore": // a place for anchors
			continue
		case name.ShortTag() == "!!merge":
			merged = append(merged, content)
			continue
		}
		c, err := t.value(content, depth+1)
		if err != nil {
			return err
		}
		v.Fields = append(v.Fields, Field{Line: name.Line, Name: name.Value, Value: c})
	}
	if len(merged) == 0 {
		return nil
	}
	own := map[string]struct{}{}
	for _, f := range v.Fields {
		own[f.Name] = struct{}{}
	}
	for _, m := range merged {
		other, err := t.value(m, depth+1)
		if err != nil {
			return err
		}
		sources := []*Value{other}
		if other.Kind == List {
			sources = other.Items
		}
		for _, source := range sources {
			if source.Kind != Object {
				return &Error{Line: m.Line, Err: errors.New("<< merges something that is no map")}
			}
			before := len(v.Fields)
			for _, f := range source.Fields {
				if _, there := own[f.Name]; !there {
					v.Fields = append(v.Fields, f)
				}
			}
			for _, f := range v.Fields[before:] {
				own[f.Name] = struct{}{}
			}
		}
	}
	return nil
}

// yamlScalar returns a scalar as JSON. Envoy looks at the text only, and not at the tag: a scalar without quotes is
// null, true, false or an integer if it looks like it, and else a string, which a message with a field for a fraction
// takes for one.
func yamlScalar(n *yaml.Node) string {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Style&quoted != 0 && n.Style&yaml.TaggedStyle == 0 || n.Tag == "!" {
		return quote(n.Value)
	}
	if word, ok := yamlWords[n.Value]; ok {
		return word
	}
	if number, ok := yamlInteger(n.Value); ok {
		return number
	}
	return quote(n.Value)
}

// yamlWords has the JSON of words in lower case, in upper case and with a capital letter.
var yamlWords = func() map[string]string {
	words := map[string]string{"": "null", "~": "null"}
	for json, all := range map[string][]string{"null": {"null"}, "true": {"y", "yes", "true", "on"}, "false": {"n", "no", "false", "off"}} {
		for _, w := range all {
			for _, spelling := range []string{w, strings.ToUpper(w), strings.ToUpper(w[:1]) + w[1:]} {
				words[spelling] = json
			}
		}
	}
	return words
}()

var integer = regexp.MustCompile(`^([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))$`)

// yamlInteger returns an integer as JSON: a string if a number of JSON might not hold it exactly.
func yamlInteger(text string) (json string, ok bool) {
	m := integer.FindStringSubmatch(text)
	if m == nil {
		return "", false
	}
	digits, base := m[4], 10
	switch {
	case m[2] != "":
		digits, base = m[2], 16
	case m[3] != "":
		digits, base = m[3], 8
	}
	i, err := strconv.ParseInt(m[1]+digits, base, 64)
	switch decimal := strconv.FormatInt(i, 10); {
	case err != nil:
		return "", false
	case i < math.MinInt32 || i > math.MaxInt32:
		return quote(decimal), true
	default:
		return decimal, true
	}
}
