// Package fileerrors defines errors about files: each has the file, the line and the key of the
// mistake.
package fileerrors

import (
	"fmt"
	"strings"
)

// Error is one mistake in a file.
type Error struct {
	// File is the path of the file, or the name of something else that has the mistake: an
	// environment variable, a flag, a folder.
	File string
	// Line and Column count from 1. They are 0 if unknown.
	Line, Column int
	// Path is the key, such as authorities[2].servers[0].address. It is empty for the
	// document as a whole.
	Path string
	// Err says what is wrong there and what would be right.
	Err error
}

// Error returns the place and the mistake, on one line.
func (e Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		if e.Column > 0 {
			fmt.Fprintf(&b, ":%d", e.Column)
		}
		b.WriteString(": ")
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns e.Err.
func (e Error) Unwrap() error { return e.Err }

// List has all mistakes that were found.
type List []Error

// Error returns one line per mistake.
func (l List) Error() string {
	lines := make([]string, len(l))
	for i, e := range l {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the mistakes one by one.
func (l List) Unwrap() []error {
	errs := make([]error, len(l))
	for i, e := range l {
		errs[i] = e
	}
	return errs
}

// OrNil returns l as an error that is nil if there is no mistake.
func (l List) OrNil() error {
	if len(l) == 0 {
		return nil
	}
	return l
}
