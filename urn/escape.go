package urn

// Escaping: the characters that are plain in each component, and the conversion between
// the escaped and the decoded form.

import "strings"

// set is a set of characters, as a bit in chars.
type set uint8

const (
	inAuthority set = 1 << iota // the authority
	inSegment                   // the resource type, and a segment of the id
	inParam                     // a context parameter's key or value
	inDirective                 // an alt directive's value
	inEntry                     // an entry directive's value
)

// chars has, for each byte, the components in which it is plain in the canonical spelling.
// '%', control characters and non-ASCII have no bit.
//
// Source of the sets: RFC 3986, Appendix A, with the exceptions of the package
// comment; for directives the comment on ResourceLocator.Directive.
var chars = func() (t [256]set) {
	add := func(s set, bytes string) {
		for i := range len(bytes) {
			t[bytes[i]] |= s
		}
	}
	const (
		alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
		unreserved   = alphanumeric + "-._~"
	)
	add(inAuthority, unreserved+"!$&'()*+,;=:[]")
	add(inSegment, unreserved+"!$&'()*+,;=:@")
	add(inParam, unreserved+"!$'()*,:@/?")
	add(inDirective, unreserved+"!$&'()*+;=:@/?")
	add(inEntry, unreserved+"/:")
	return t
}()

// has reports whether b is plain in the component.
func (s set) has(b byte) bool { return chars[b]&s != 0 }

// hasAll reports whether every byte of str is plain in the component.
func (s set) hasAll(str string) bool {
	for i := range len(str) {
		if !s.has(str[i]) {
			return false
		}
	}
	return true
}

const upperHex = "0123456789ABCDEF"

// escape appends str to dst and escapes every byte that is not in plain.
func escape(dst []byte, str string, plain set) []byte {
	for i := range len(str) {
		if b := str[i]; plain.has(b) {
			dst = append(dst, b)
		} else {
			dst = append(dst, '%', upperHex[b>>4], upperHex[b&15])
		}
	}
	return dst
}

// next decodes the first character of str, which is not empty. width is its number of bytes in
// str, 0 for a bad escape.
func next(str string) (b byte, width int) {
	if str[0] != '%' {
		return str[0], 1
	}
	if len(str) < 3 {
		return 0, 0
	}
	hi, lo := unhex(str[1]), unhex(str[2])
	if hi > 15 || lo > 15 {
		return 0, 0
	}
	return hi<<4 | lo, 3
}

// unhex returns the value of a hexadecimal digit, or more than 15.
func unhex(b byte) byte {
	switch {
	case '0' <= b && b <= '9':
		return b - '0'
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10
	}
	return 255
}

// decode returns str without its escapes, or the offset of the first bad one. Without escapes
// it returns str itself.
func decode(str string) (decoded string, bad int) {
	i := strings.IndexByte(str, '%')
	if i < 0 {
		return str, -1
	}
	var out strings.Builder
	out.Grow(len(str))
	out.WriteString(str[:i])
	for i < len(str) {
		b, width := next(str[i:])
		if width == 0 {
			return "", i
		}
		out.WriteByte(b)
		i += width
	}
	return out.String(), -1
}

// decoded is decode for components of canonical names, which have no bad escapes.
func decoded(str string) string {
	s, _ := decode(str)
	return s
}

// compareDecoded compares the decoded forms of two components. A bad escape is compared as it
// is spelled; other code reports it.
func compareDecoded(a, b string) int {
	for a != "" && b != "" {
		x, n := next(a)
		if n == 0 {
			x, n = a[0], 1
		}
		y, m := next(b)
		if m == 0 {
			y, m = b[0], 1
		}
		if x != y {
			return int(x) - int(y)
		}
		a, b = a[n:], b[m:]
	}
	return len(a) - len(b)
}
