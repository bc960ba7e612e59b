package configs

// The reference is a configuration with an example of every key. Its values are written by
// hand. The comments of each key's first example are the key's explanation.

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	referenceWidth = 90 // of a line
	shortComments  = 35 // the column where they begin
)

// excluded are keys that have no example, because another key of the same map excludes them.
var excluded = map[string]bool{"fleet.members.dns": true, "fleet.members.static": true}

// reference writes the explanations into the reference. A key that it lacks is added, if its
// default is a value.
func reference(t *testing.T, keys []key, file []byte) []byte {
	head, _, ok := bytes.Cut(file, []byte("\n\n"))
	if !ok || !bytes.HasPrefix(head, []byte("#")) {
		t.Fatal("the reference has no comment at its beginning")
	}
	root, err := parseYAML("reference.yaml", file)
	if err != nil {
		t.Fatal(err)
	}
	r := referenceWriter{keys: map[string]key{}, written: map[string]bool{}, seen: map[string]bool{}}
	for _, k := range keys {
		r.keys[k.path] = k
	}
	collectPaths(root, "", r.written)
	r.out.Write(head)
	r.out.WriteByte('\n')
	r.writeMap(root, configType, "", "", "")
	for _, k := range keys {
		if !r.seen[k.path] && !excluded[k.path] {
			t.Errorf("examples/reference.yaml has no example of %s: add one, and then make generate", k.path)
		}
	}
	return r.out.Bytes()
}

func collectPaths(n *yaml.Node, path string, paths map[string]bool) {
	for i, c := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode:
			collectPaths(c, path+"[]", paths)
		case i%2 == 1:
			at := join(path, n.Content[i-1].Value)
			paths[at] = true
			collectPaths(c, at, paths)
		}
	}
}

type referenceWriter struct {
	keys    map[string]key
	written map[string]bool // the paths of the file
	seen    map[string]bool // those that have been explained
	out     bytes.Buffer
}

// writeMap writes the keys of n, which is at path. The first key comes after first, the
// others after indent.
func (r *referenceWriter) writeMap(n *yaml.Node, t reflect.Type, path, first, indent string) {
	protocol := ""
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == "protocol" {
			protocol = n.Content[i+1].Value
		}
	}
	r.add(n, t, path, protocol)
	for i := 0; i < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if path == "" {
			r.out.WriteByte('\n')
		}
		field, known := fieldOf(t, name.Value)
		at := join(path, name.Value)
		comment := commentOf(name)
		if i == 0 && comment == "" {
			comment = commentOf(n)
		}
		start := indent
		if i == 0 {
			start = first
		}
		k := r.keys[at]
		short := ""
		if known && !r.seen[at] {
			comment = k.comment(len(indent), value)
			short = strings.TrimPrefix(comment, "# ")
		}
		r.seen[at] = true
		text := start + name.Value + ":"
		if isFlow(value) {
			text += " " + flow(value)
		}
		padded := fmt.Sprintf("%-*s", shortComments-1, text)
		if fits := len(padded)+3+len(short) <= referenceWidth; short != "" && fits && isFlow(value) && !strings.Contains(short, "\n") && start == indent {
			r.out.WriteString(padded + " # " + short + "\n")
			continue
		}
		if comment != "" {
			r.out.WriteString(indent + strings.ReplaceAll(comment, "\n", "\n"+indent) + "\n")
		}
		r.out.WriteString(text + "\n")
		if !isFlow(value) {
			r.writeBelow(value, field.Type, at, indent)
		}
	}
}

// writeBelow writes a map or a list on lines of its own.
func (r *referenceWriter) writeBelow(n *yaml.Node, t reflect.Type, path, indent string) {
	if t != metadataType && t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case n.Kind == yaml.MappingNode && t != metadataType:
		r.writeMap(n, t, path, indent+"  ", indent+"  ")
	case n.Kind == yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			fmt.Fprintf(&r.out, "%s  %s: %s\n", indent, n.Content[i].Value, flow(n.Content[i+1]))
		}
	default:
		for i, entry := range n.Content {
			if indent == "" && i > 0 && path == "authorities" {
				r.out.WriteByte('\n')
			}
			if isFlow(entry) {
				fmt.Fprintf(&r.out, "%s  - %s\n", indent, flow(entry))
				continue
			}
			r.writeMap(entry, t.Elem(), path+"[]", indent+"  - ", indent+"    ")
		}
	}
}

// add adds the keys that the file lacks to a map where they have a meaning.
func (r *referenceWriter) add(n *yaml.Node, t reflect.Type, path, protocol string) {
	after := 0
	for _, name := range keysOf(t) {
		at := join(path, name)
		k := r.keys[at]
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				after = i + 2
			}
		}
		if r.written[at] || !k.hasValue || k.isMap() || !goesWith(k.field, protocol) {
			continue
		}
		r.written[at] = true
		pair := []*yaml.Node{{Kind: yaml.ScalarNode, Value: name}, {Kind: yaml.ScalarNode, Value: k.value}}
		n.Content = append(n.Content[:after:after], append(pair, n.Content[after:]...)...)
		after += 2
	}
}

// comment returns the explanation in lines that fit. The default is in it if it is not what
// the reference shows.
func (k key) comment(indent int, shown *yaml.Node) string {
	var lines []string
	paragraphs := strings.Split(strings.TrimSpace(k.doc), "\n\n")
	notes := strings.Join(k.notes(), " ")
	if k.hasValue && shown.Kind == yaml.ScalarNode && shown.Value != strings.Trim(k.value, `"`) {
		notes = strings.TrimSpace("Default: " + k.value + ". " + notes)
	}
	if notes != "" {
		if last := len(paragraphs) - 1; strings.HasPrefix(paragraphs[last], "\t") || strings.Contains(paragraphs[last], "\n\t") {
			paragraphs = append(paragraphs, notes)
		} else {
			paragraphs[0] += " " + notes
		}
	}
	for i, paragraph := range paragraphs {
		if strings.HasPrefix(paragraph, "\t") {
			for line := range strings.SplitSeq(paragraph, "\n") {
				lines = append(lines, "#   "+strings.TrimPrefix(line, "\t"))
			}
			continue
		}
		if i > 0 && !strings.HasPrefix(paragraphs[i-1], "\t") {
			lines = append(lines, "#")
		}
		line := "#"
		for word := range strings.FieldsSeq(paragraph) {
			if indent+len(line)+1+len(word) > referenceWidth {
				lines, line = append(lines, line), "#"
			}
			line += " " + word
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// commentOf returns the comment before a node.
func commentOf(n *yaml.Node) string { return strings.TrimSpace(n.HeadComment) }

// isFlow reports whether n is on one line.
func isFlow(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode || n.Style&yaml.FlowStyle != 0
}

func flow(n *yaml.Node) string {
	bare := *n
	bare.HeadComment, bare.LineComment, bare.FootComment = "", "", ""
	text, err := yaml.Marshal(&bare)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}
