package envoyjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Error says why a text is not JSON or YAML.
type Error struct {
	Line int // from 1
	Err  error
}

// Error returns the reason without the line.
func (e *Error) Error() string { return e.Err.Error() }

// JSON parses a document in JSON.
func JSON(data []byte) (*Value, *Error) {
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

func (t *jsonReader) value(token json.Token, depth int) (*Value, *Error) {
	v := &Value{Line: t.line}
	if depth > maxDepth {
		return nil, &Error{Line: t.line, Err: errTooDeep}
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			v.Kind = List
			for next := t.next(); next != json.Delim(']'); next = t.next() {
				item, err := t.value(next, depth+1)
				if err != nil {
					return nil, err
				}
				v.Items = append(v.Items, item)
			}
			return v, nil
		}
		v.Kind = Object
		for next := t.next(); next != json.Delim('}'); next = t.next() {
			f := Field{Line: t.line, Name: next.(string)}
			var err *Error
			if f.Value, err = t.value(t.next(), depth+1); err != nil {
				return nil, err
			}
			v.Fields = append(v.Fields, f)
		}
	case string:
		v.Scalar = quote(token)
	case json.Number:
		v.Scalar = token.String()
	case bool:
		v.Scalar = fmt.Sprint(token)
	case nil:
		v.Scalar = "null"
	}
	return v, nil
}

var errTooDeep = fmt.Errorf("nested more than %d deep", maxDepth)
