package directory

// JSON and YAML are parsed into one kind of tree, with line numbers. Parts of the tree are printed
// again for protojson, with one token per line, so that the line in a protojson
// error leads to the line in the file.

import (
	"encoding/json"
	"slices"
)

// value is a value of a document.
type value struct {
	line   int
	kind   kind
	scalar string // in JSON
	fields []field
	items  []*value
}

type kind uint8

const (
	isScalar kind = iota
	isObject
	isList
)

type field struct {
	line  int
	name  string
	value *value
}

// maxDepth is how deep a document may be nested. It also ends YAML aliases that
// contain themselves.
const maxDepth = 500

// field returns the first field that has one of the names, nil if there is none.
func (v *value) field(names ...string) *value {
	for _, f := range v.fields {
		if slices.Contains(names, f.name) {
			return f.value
		}
	}
	return nil
}

// without returns v without the first field of that name.
func (v *value) without(name string) *value {
	rest := *v
	if i := slices.IndexFunc(v.fields, func(f field) bool { return f.name == name }); i >= 0 {
		rest.fields = slices.Concat(v.fields[:i], v.fields[i+1:])
	}
	return &rest
}

// typeURL returns the string under "@type", "" if there is none.
func (v *value) typeURL() string {
	t := v.field("@type")
	if t == nil || t.kind != isScalar {
		return ""
	}
	var s string
	if json.Unmarshal([]byte(t.scalar), &s) != nil {
		return ""
	}
	return s
}

// printer prints values as JSON.
type printer struct {
	json  []byte
	lines []int // of each line of json, the line in the file
}

func (p *printer) token(text string, line int) {
	p.json = append(append(p.json, text...), '\n')
	p.lines = append(p.lines, line)
}

func (p *printer) value(v *value) {
	switch v.kind {
	case isObject:
		p.token("{", v.line)
		for i, f := range v.fields {
			if i > 0 {
				p.token(",", f.line)
			}
			p.token(quote(f.name), f.line)
			p.token(":", f.line)
			p.value(f.value)
		}
		p.token("}", v.line)
	case isList:
		p.token("[", v.line)
		for i, item := range v.items {
			if i > 0 {
				p.token(",", item.line)
			}
			p.value(item)
		}
		p.token("]", v.line)
	default:
		p.token(v.scalar, v.line)
	}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot happen for a string
	}
	return string(b)
}
