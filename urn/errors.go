package urn

import "fmt"

// maxQuoted bounds the part of a name that an error message shows, in bytes.
const maxQuoted = 512

// Error describes what is wrong with an xdstp name, where, and what would be right. Every
// error of this package about a name is an *Error.
type Error struct {
	// Name is the name as given. For a protobuf message, it is the message's spelling as a
	// string.
	Name string
	// Offset is the position of the offending part in Name, in bytes.
	Offset int
	// Part is the offending part, as spelled in Name. It is empty if something is missing.
	Part string
	// Problem describes what is wrong with the part.
	Problem string
	// Want describes what would be right.
	Want string
	// Err, if not nil, is the error of an alt directive's URL, with that URL as its Name.
	Err error
}

// Error prints the problem on one line:
//
//	xdstp name "xdstp://a/": no resource type (want xdstp://authority/type/id) at offset 10
func (e *Error) Error() string {
	s := fmt.Sprintf("xdstp name %s: %s", quote(e.Name), e.Problem)
	if e.Part != "" {
		s += " " + quote(e.Part)
	}
	if e.Want != "" {
		s += " (want " + e.Want + ")"
	}
	s += fmt.Sprintf(" at offset %d", e.Offset)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// badEscape returns the error for a bad escape at the beginning of at.
func badEscape(name string, at span) error {
	return &Error{Name: name, Offset: at.at, Part: at.text[:min(3, len(at.text))],
		Problem: "bad escape", Want: "% and two hexadecimal digits, or %25 for the character"}
}

// quote quotes a name, and truncates a long one.
func quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%q...", s[:maxQuoted])
	}
	return fmt.Sprintf("%q", s)
}
