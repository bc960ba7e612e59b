package urn

// Printing of the canonical spelling. Components are checked while they are printed.

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printer writes the canonical spelling of a name. As long as the name itself is spelled that way, the
// printer only counts, so that canonical names are not copied.
type printer struct {
	name   string
	same   int  // the text so far is name[:same] ...
	differ bool // ... unless differ is set: then it is in out
	out    strings.Builder
}

func (p *printer) print(s string) {
	if !p.differ {
		if strings.HasPrefix(p.name[p.same:], s) {
			p.same += len(s)
			return
		}
		p.differ = true
		// The canonical spelling of a real client's name is mostly shorter, or longer by a slash.
		p.out.Grow(len(p.name) + 8)
		p.out.WriteString(p.name[:p.same])
	}
	p.out.WriteString(s)
}

// printed returns the number of bytes printed.
func (p *printer) printed() int {
	if p.differ {
		return p.out.Len()
	}
	return p.same
}

// String returns the printed text.
func (p *printer) String() string {
	if p.differ {
		return p.out.String()
	}
	return p.name[:p.same]
}

// component prints one component: decoded, checked, and escaped again where necessary.
func (p *printer) component(c span, plain set) error {
	text, i := c.text, 0
	for i < len(text) {
		start := i
		for i < len(text) && plain.has(text[i]) {
			i++
		}
		if i > start {
			p.print(text[start:i])
			continue
		}
		var char [utf8.UTFMax]byte
		n := 0
		for n == 0 || i < len(text) && !utf8.FullRune(char[:n]) {
			b, width := next(text[i:])
			if width == 0 {
				return badEscape(p.name, span{text[i:], c.at + i})
			}
			char[n] = b
			n++
			i += width
		}
		r, size := utf8.DecodeRune(char[:n])
		switch {
		case r == utf8.RuneError && size == 1:
			return &Error{Name: p.name, Offset: c.at + start, Part: text[start:i],
				Problem: "invalid UTF-8"}
		case unicode.IsControl(r):
			return &Error{Name: p.name, Offset: c.at + start, Part: text[start:i],
				Problem: "control character"}
		}
		var buf [3 * utf8.UTFMax]byte
		p.print(string(escape(buf[:0], string(char[:n]), plain)))
	}
	return nil
}

// id prints the segments of the id.
func (p *printer) id(id span) error {
	for more := true; more; {
		var segment span
		segment, id, more = id.cut('/')
		if err := p.component(segment, inSegment); err != nil {
			return err
		}
		if more {
			p.print("/")
		}
	}
	return nil
}

// param is one context parameter.
type param struct{ key, value span }

// params prints the context parameters, sorted by key.
// TP1: "Context parameters".
func (p *printer) params(query span) error {
	if query.text == "" {
		return nil
	}
	var few [8]param // most names have fewer parameters, and need no allocation
	params := few[:0]
	for rest, more := query, true; more; {
		var pair span
		pair, rest, more = rest.cut('&')
		if pair.text == "" {
			return &Error{Name: p.name, Offset: pair.at,
				Problem: "empty context parameter", Want: "key=value"}
		}
		key, value, _ := pair.cut('=')
		params = append(params, param{key, value})
	}
	slices.SortStableFunc(params, func(a, b param) int {
		return compareDecoded(a.key.text, b.key.text)
	})
	for i, param := range params {
		if i > 0 && compareDecoded(params[i-1].key.text, param.key.text) == 0 {
			return &Error{Name: p.name, Offset: param.key.at, Part: param.key.text,
				Problem: "duplicate context parameter", Want: "each once"}
		}
		if i == 0 {
			p.print("?")
		} else {
			p.print("&")
		}
		if err := p.component(param.key, inParam); err != nil {
			return err
		}
		p.print("=")
		if err := p.component(param.value, inParam); err != nil {
			return err
		}
	}
	return nil
}
