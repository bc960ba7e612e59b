package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// jsonTree parses the document in data.
func jsonTree(data []byte) (*value, *Error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		line := 1
		if s, ok := errors.AsType[*json.SyntaxError](err); ok {
			line += bytes.Count(data[:min(int(s.Offset), len(data))], []byte("\n"))
		}
		return nil, &Error{Line: line, Err: fmt.Errorf("not JSON: %w", err)}
	}
	t := &jsonReader{data: data, tokens: json.NewDecoder(bytes.NewReader(data)), line: 1}
	t.tokens.UseNumber()
	return t.value(t.next(), 0)
}

// jsonReader builds the tree of data, which must be valid JSON.
type jsonReader struct {
	data   []byte
	tokens *json.Decoder
	line   int // of the newest token; no token spans lines
	offset int // of the newest token's end
}

func (t *jsonReader) next() json.Token {
	token, err := t.tokens.Token()
	if err != nil {
		panic(err) // cannot happen: the data is valid
	}
	end := int(t.tokens.InputOffset())
	t.line += bytes.Count(t.data[t.offset:end], []byte("\n"))
	t.offset = end
	return token
}

func (t *jsonReader) value(token json.Token, depth int) (*value, *Error) {
	v := &value{line: t.line}
	if depth > maxDepth {
		return nil, &Error{Line: t.line, Err: errTooDeep}
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			v.kind = isList
			for next := t.next(); next != json.Delim(']'); next = t.next() {
				item, err := t.value(next, depth+1)
				if err != nil {
					return nil, err
				}
				v.items = append(v.items, item)
			}
			return v, nil
		}
		v.kind = isObject
		for next := t.next(); next != json.Delim('}'); next = t.next() {
			f := field{line: t.line, name: next.(string)}
			var err *Error
			if f.value, err = t.value(t.next(), depth+1); err != nil {
				return nil, err
			}
			v.fields = append(v.fields, f)
		}
	case string:
		v.scalar = quote(token)
	case json.Number:
		v.scalar = token.String()
	case bool:
		v.scalar = fmt.Sprint(token)
	case nil:
		v.scalar = "null"
	}
	return v, nil
}

var errTooDeep = fmt.Errorf("nested more than %d deep", maxDepth)
