package xdstype

import (
	"unicode"
	"unicode/utf8"
)

// IsName says whether field 1 of a message of an unknown type can be its name. A
// name is not empty, is UTF-8 and has no control characters. The entries of a map
// and most other messages begin with one: the tag of their own first field.
func IsName(field []byte) bool {
	if len(field) == 0 || !utf8.Valid(field) {
		return false
	}
	for _, r := range string(field) {
		if unicode.IsControl(r) {
			return false
		}
	}
	return true
}
