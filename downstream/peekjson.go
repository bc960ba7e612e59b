package downstream

import (
	"bytes"
	"encoding/json"
	"runtime"
)

// The same for a request as JSON. It is looked at with encoding/json, which copies its
// top-level values and makes nothing of them.

// peekJSON counts what is in a request as JSON. It ends where that is none: who decodes
// it finds out why.
func peekJSON(request []byte) (p peeked) {
	d := json.NewDecoder(bytes.NewReader(request))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return p
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return p
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return p
		}
		switch key {
		case "node":
			p.node += len(value)
			p.values += jsonValues(value)
		case "resourceLocators", "resource_locators":
			p.locators += jsonObjects(value) / 2 // each has its parameters in another
		case "errorDetail", "error_detail":
			p.details += jsonValues(value)
		}
	}
	return p
}

// jsonValues counts the values in a JSON text, too many rather than too few; what is
// nested too deeply counts as if it were too much.
func jsonValues(text []byte) int {
	n, depth := 1, 0
	outsideStrings(text, func(c byte) {
		switch c {
		case '[', '{':
			n++
			if depth++; depth > maxNesting {
				n = max(n, maxNodeValues+1)
			}
		case ']', '}':
			depth--
		case ',', ':':
			n++
		}
	})
	return n
}

func jsonObjects(text []byte) (n int) {
	outsideStrings(text, func(c byte) {
		if c == '{' {
			n++
		}
	})
	return n
}

// outsideStrings calls f with each byte of a JSON text that is not in a string.
func outsideStrings(text []byte, f func(byte)) {
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
		case !inString:
			f(c)
		}
	}
}

// decodeSlots bound how many requests are decoded from JSON at once, which takes many
// times their length in memory.
func decodeSlots() chan struct{} { return make(chan struct{}, runtime.GOMAXPROCS(0)) }
