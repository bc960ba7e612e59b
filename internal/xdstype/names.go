package xdstype

import (
	"unicode"
	"unicode/utf8"
)

// IsName reports whether field 1 of a message of an unknown type can be its name. A
// name is not empty, is UTF-8 and has no control characters. If field 1 is a message,
// such as an entry of a map, it mostly begins with a control character: the tag of its
// own first field.
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
