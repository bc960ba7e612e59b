package urn

// What each component may hold unescaped, and the way between the escaped and
// the decoded form of a component.

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

// chars holds for each byte the components in which it stands for itself in the
// canonical spelling. No bit is set for '%', control characters and non-ASCII.
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

// has says whether b may stand unescaped in the component.
func (s set) has(b byte) bool { return chars[b]&s != 0 }

// hasAll says whether every byte of str may stand unescaped in the component.
func (s set) hasAll(str string) bool {
	for i := range len(str) {
		if !s.has(str[i]) {
			return false
		}
	}
	return true
}

const upperHex = "0123456789ABCDEF"

// escape appends str to dst, with everything escaped that is not in plain.
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

// next decodes the first character of str, which is not empty, and says how
// many bytes it takes there. They are none if it is a bad escape.
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

// decode returns str without its escapes, or the offset of the first bad one.
// It returns str itself if there are none.
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

// decoded is decode for components of canonical names, which hold no bad
// escapes.
func decoded(str string) string {
	s, _ := decode(str)
	return s
}

// compareDecoded compares what two components say, not how they say it. Bad
// escapes are compared as they stand: they are reported elsewhere.
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
