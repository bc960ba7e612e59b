package configs

// This file checks the YAML tree against the schema: it finds unknown keys, repeated keys, and values of
// the wrong type. check.go checks the meaning of the values.
//
// A JSON Schema validator cannot do this. It sees decoded values, without lines, aliases, tags or
// repeated keys, and its errors have no hints. It also does not take wrong values out of the tree, so
// one mistake would hide all errors of check.go. A test compares the two.

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// shape compares a YAML tree with the schema. It records where every key is, and takes wrong values out
// of the tree.
type shape struct {
	source
	errs Errors
	// unusable are the paths of wrong values, and of the keys that misspelled keys probably stand for.
	// There already is an error for them, so that no later check may report them as missing.
	unusable map[string]bool
	// metadata is the value of node.metadata: the YAML library cannot decode into a Struct.
	metadata *structpb.Struct
	// file is what errors call the file. origins are the variables and flags from which the other nodes
	// come.
	file    string
	origins map[*yaml.Node]string
}

func newShape(file string) *shape {
	return &shape{source: source{at: map[string]place{}}, unusable: map[string]bool{}, file: file, origins: map[*yaml.Node]string{}}
}

func (s *shape) placeOf(n *yaml.Node) place {
	if origin, ok := s.origins[n]; ok {
		return place{file: origin}
	}
	return place{s.file, n.Line, n.Column}
}

var (
	configType     = reflect.TypeFor[Config]()
	durationType   = reflect.TypeFor[time.Duration]()
	bytesType      = reflect.TypeFor[Bytes]()
	expressionType = reflect.TypeFor[Expression]()
	modeType       = reflect.TypeFor[FileMode]()
	ratioType      = reflect.TypeFor[Ratio]()
	guardType      = reflect.TypeFor[Guard]()
	factorType     = reflect.TypeFor[Factor]()
	metadataType   = reflect.TypeFor[*structpb.Struct]()
	textType       = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// walk checks n, which is at path, against t. If n is wrong, it adds an error and returns
// false, and the caller takes n out of the tree. allow is the field's tag of that name: "empty"
// allows an empty text, "zero" a duration of 0s, "off" that word in place of a map.
func (s *shape) walk(n *yaml.Node, t reflect.Type, path, allow string) bool {
	if !s.has(path) {
		s.at[path] = s.placeOf(n)
	}
	if n.Kind == yaml.AliasNode {
		return s.fail(n, path, "*%s is a YAML alias, which is not supported (want the value itself)", n.Value)
	}
	if n.ShortTag() == "!!null" {
		return s.fail(n, path, "has no value (want %s, or no such key)", want(t))
	}
	switch {
	case t == metadataType:
		return s.walkMetadata(n, path)
	case t == durationType:
		return s.walkDuration(n, path, allow == "zero")
	case reflect.PointerTo(t).Implements(textType):
		return s.walkText(n, t, path)
	case t.Kind() == reflect.Pointer:
		return s.walk(n, t.Elem(), path, allow)
	case t.Kind() == reflect.Struct && allow == guardOff && n.Kind == yaml.ScalarNode:
		return n.Value == guardOff || s.wrongType(n, t, path)
	case t.Kind() == reflect.Struct:
		return s.walkMap(n, t, path)
	case t.Kind() == reflect.Slice:
		return s.walkList(n, t, path)
	case t.Kind() == reflect.Int:
		return s.walkInt(n, path)
	case t.Kind() == reflect.Bool:
		return s.walkBool(n, path)
	default:
		return s.walkString(n, path, allow == "empty")
	}
}

func (s *shape) walkMap(n *yaml.Node, t reflect.Type, path string) bool {
	if n.Kind != yaml.MappingNode {
		return s.wrongType(n, t, path)
	}
	var kept []*yaml.Node
	written := map[string]int{} // the line of each key
	for i := 0; i+1 < len(n.Content); i += 2 {
		written[n.Content[i].Value] = n.Content[i].Line
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		keyPath := join(path, printable(key.Value))
		field, known := fieldOf(t, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode:
			s.fail(key, path, "a key is %s (want text)", kind(key))
		case !known:
			s.unknownKey(key, t, path, written)
		case seen[key.Value] > 0:
			s.fail(key, keyPath, "is given twice (first in line %d)", seen[key.Value])
		default:
			seen[key.Value] = key.Line
			s.at[keyPath] = s.placeOf(key)
			if _, ok := s.origins[value]; ok {
				s.at[keyPath] = s.placeOf(value)
			}
			if !s.walk(value, field.Type, keyPath, field.Tag.Get("allow")) {
				s.unusable[keyPath] = true
			} else if field.Type != metadataType {
				kept = append(kept, key, value)
			}
		}
	}
	n.Content = kept
	return true
}

func (s *shape) walkList(n *yaml.Node, t reflect.Type, path string) bool {
	if n.Kind != yaml.SequenceNode {
		return s.wrongType(n, t, path)
	}
	for i, element := range n.Content {
		elementPath := fmt.Sprintf("%s[%d]", path, i)
		if !s.walk(element, t.Elem(), elementPath, "") {
			// A placeholder, so that the other entries keep their indices.
			s.unusable[elementPath] = true
			n.Content[i] = nothing(t.Elem(), element.Line)
		}
	}
	return true
}

// nothing returns a placeholder for a wrong entry.
func nothing(t reflect.Type, line int) *yaml.Node {
	if t.Kind() == reflect.String {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Line: line}
	}
	return &yaml.Node{Kind: yaml.MappingNode, Line: line}
}

func (s *shape) walkString(n *yaml.Node, path string, allowEmpty bool) bool {
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str":
		return s.wrongType(n, reflect.TypeFor[string](), path)
	case n.Value == "" && !allowEmpty:
		return s.fail(n, path, `is "" (want text, or no such key)`)
	}
	return true
}

func (s *shape) walkInt(n *yaml.Node, path string) bool {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		return s.wrongType(n, reflect.TypeFor[int](), path)
	}
	var i int
	if err := n.Decode(&i); err != nil || i <= 0 {
		return s.fail(n, path, "%s is out of range (want 1 or more)", n.Value)
	}
	return true
}

func (s *shape) walkBool(n *yaml.Node, path string) bool {
	var b bool
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(&b) != nil {
		return s.wrongType(n, reflect.TypeFor[bool](), path)
	}
	return true
}

func (s *shape) walkDuration(n *yaml.Node, path string, allowZero bool) bool {
	d, err := time.ParseDuration(n.Value)
	switch {
	case n.Kind != yaml.ScalarNode:
		return s.wrongType(n, durationType, path)
	case n.ShortTag() == "!!int" && strings.Trim(n.Value, "-0") == "" && !allowZero:
		return s.fail(n, path, "%s is not a time to wait (want more than 0s)", n.Value)
	case n.ShortTag() == "!!int":
		return s.fail(n, path, "%s has no unit (want a duration such as %ss)", n.Value, strings.TrimPrefix(n.Value, "-"))
	case n.ShortTag() != "!!str":
		return s.wrongType(n, durationType, path)
	case err != nil:
		return s.fail(n, path, "%q is not a duration (want a number with ms, s, m or h, such as 30s)", n.Value)
	case d < 0, d == 0 && !allowZero:
		return s.fail(n, path, "%s is not a time to wait (want more than 0s)", n.Value)
	}
	return true
}

func (s *shape) walkText(n *yaml.Node, t reflect.Type, path string) bool {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode || tag != "!!str" && !(tag == "!!int" && (t == bytesType || t == modeType || t == ratioType || t == factorType)) &&
		!(tag == "!!float" && (t == ratioType || t == factorType)) && !(tag == "!!bool" && t == expressionType) {
		return s.wrongType(n, t, path)
	}
	value := reflect.New(t).Interface().(encoding.TextUnmarshaler)
	if err := value.UnmarshalText([]byte(n.Value)); err != nil {
		return s.fail(n, path, "%w", err)
	}
	return true
}

func (s *shape) walkMetadata(n *yaml.Node, path string) bool {
	if n.Kind != yaml.MappingNode {
		return s.wrongType(n, metadataType, path)
	}
	s.metadata = s.value(n, path).GetStructValue()
	return true
}

// value returns any YAML value as a google.protobuf.Value.
func (s *shape) value(n *yaml.Node, path string) *structpb.Value {
	switch n.Kind {
	case yaml.MappingNode:
		m := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			keyPath := join(path, printable(key.Value))
			if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
				s.fail(key, path, "a key is %s (want text)", kind(key))
			} else if _, twice := m.Fields[key.Value]; twice {
				s.fail(key, keyPath, "is given twice (first in line %d)", s.at[keyPath].line)
			} else {
				s.at[keyPath] = s.placeOf(key)
				m.Fields[key.Value] = s.value(value, keyPath)
			}
		}
		return structpb.NewStructValue(m)
	case yaml.SequenceNode:
		list := &structpb.ListValue{}
		for i, element := range n.Content {
			list.Values = append(list.Values, s.value(element, fmt.Sprintf("%s[%d]", path, i)))
		}
		return structpb.NewListValue(list)
	case yaml.AliasNode:
		s.walk(n, metadataType, path, "")
		return structpb.NewNullValue()
	}
	switch n.ShortTag() {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		var b bool
		if err := n.Decode(&b); err != nil {
			s.fail(n, path, "%q is not a boolean (want true or false)", n.Value)
		}
		return structpb.NewBoolValue(b)
	case "!!int", "!!float":
		var f float64
		if err := n.Decode(&f); err != nil {
			s.fail(n, path, "%q is not a number (want one such as 1 or 2.5)", n.Value)
		}
		return structpb.NewNumberValue(f)
	}
	return structpb.NewStringValue(n.Value)
}

func (s *shape) unknownKey(key *yaml.Node, t reflect.Type, path string, written map[string]int) {
	keys := keysOf(t)
	keyPath := join(path, printable(key.Value))
	word := closest(key.Value, keys)
	if word == "" {
		s.fail(key, keyPath, "unknown key (want %s)", oneOf(keys))
		return
	}
	if written[word] == 0 {
		s.unusable[join(path, word)] = true
	}
	s.fail(key, keyPath, "unknown key (did you mean %q?)", word)
}

func (s *shape) wrongType(n *yaml.Node, t reflect.Type, path string) bool {
	if n.Kind == yaml.ScalarNode {
		if t.Kind() == reflect.String {
			return s.fail(n, path, "%s is %s (want text: %q)", n.Value, kind(n), n.Value)
		}
		return s.fail(n, path, "%q is %s (want %s)", n.Value, kind(n), want(t))
	}
	return s.fail(n, path, "is %s (want %s)", kind(n), want(t))
}

// fail adds an error for n and returns false.
func (s *shape) fail(n *yaml.Node, path, format string, args ...any) bool {
	s.errs = append(s.errs, s.placeOf(n).error(path, fmt.Errorf(format, args...)))
	return false
}

// want describes a type of the schema, for errors.
func want(t reflect.Type) string {
	switch {
	case t == metadataType:
		return "a map"
	case t == durationType:
		return "a duration such as 30s"
	case t == bytesType:
		return "a size such as 4MiB"
	case t == modeType:
		return `a file mode such as "0600"`
	case t == factorType:
		return "a number above 1, such as 3 or 2.5"
	case t == expressionType:
		return "a CEL expression"
	case t.Kind() == reflect.Pointer:
		return want(t.Elem())
	case t == ratioType:
		return "a number above 0 and up to 1, such as 0.5"
	case t == guardType:
		return "off, or a map with " + strings.Join(keysOf(t), ", ")
	case t.Kind() == reflect.Struct:
		return "a map with " + strings.Join(keysOf(t), ", ")
	case t.Kind() == reflect.Slice:
		return `a list, each entry with "- " before it`
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "text"
}

// kind describes the type of n, for errors.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch tag := n.ShortTag(); tag {
	case "!!str":
		return "text"
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "a boolean"
	case "!!timestamp":
		return "a date"
	case "!!null":
		return "nothing"
	default:
		return tag
	}
}

func oneOf(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return "one of " + strings.Join(words, ", ")
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// printable returns a key, in quotes if its path would otherwise be unclear.
func printable(key string) string {
	if plain.MatchString(key) {
		return key
	}
	return strconv.Quote(key)
}
