package envoyjson

import (
	"encoding/json"
	"slices"
)

// Value is a value of a document in JSON or YAML. It is immutable.
type Value struct {
	Line   int // in the document, from 1
	Kind   Kind
	Scalar string // as JSON
	Fields []Field
	Items  []*Value
}

// Kind is the kind of a value.
type Kind uint8

// The kinds.
const (
	Scalar Kind = iota
	Object
	List
)

// Field is a field of an object.
type Field struct {
	Line  int // of its name
	Name  string
	Value *Value
}

// maxDepth is how deep a document may be nested. It also ends YAML aliases that contain themselves.
const maxDepth = 500

// Field returns the first field that has one of the names, nil if there is none.
func (v *Value) Field(names ...string) *Value {
	for _, f := range v.Fields {
		if slices.Contains(names, f.Name) {
			return f.Value
		}
	}
	return nil
}

// Without returns v without the first field of that name.
func (v *Value) Without(name string) *Value {
	rest := *v
	if i := slices.IndexFunc(v.Fields, func(f Field) bool { return f.Name == name }); i >= 0 {
		rest.Fields = slices.Concat(v.Fields[:i], v.Fields[i+1:])
	}
	return &rest
}

// TypeURL returns the string under "@type", "" if there is none.
func (v *Value) TypeURL() string {
	t := v.Field("@type")
	if t == nil {
		return ""
	}
	s, _ := t.text()
	return s
}

// IsNull reports whether the value is null.
func (v *Value) IsNull() bool { return v.Kind == Scalar && v.Scalar == "null" }

// text returns the text of a string.
func (v *Value) text() (s string, ok bool) {
	if v.Kind != Scalar || v.Scalar == "null" {
		return "", false
	}
	return s, json.Unmarshal([]byte(v.Scalar), &s) == nil
}

// with returns a scalar in place of v.
func (v *Value) with(scalar string) *Value { return &Value{Line: v.Line, Scalar: scalar} }

// printer prints values as JSON, with one token on each line, so that the line in an error of protojson leads to the
// line of the document.
type printer struct {
	json  []byte
	lines []int // of each line of json, the line in the document
}

func (p *printer) token(text string, line int) {
	p.json = append(append(p.json, text...), '\n')
	p.lines = append(p.lines, line)
}

func (p *printer) value(v *Value) {
	switch v.Kind {
	case Object:
		p.token("{", v.Line)
		for i, f := range v.Fields {
			if i > 0 {
				p.token(",", f.Line)
			}
			p.token(quote(f.Name), f.Line)
			p.token(":", f.Line)
			p.value(f.Value)
		}
		p.token("}", v.Line)
	case List:
		p.token("[", v.Line)
		for i, item := range v.Items {
			if i > 0 {
				p.token(",", item.Line)
			}
			p.value(item)
		}
		p.token("]", v.Line)
	default:
		p.token(v.Scalar, v.Line)
	}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot happen for a string
	}
	return string(b)
}
