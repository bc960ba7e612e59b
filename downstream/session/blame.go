package session

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A client rejects a whole response. Only the words of its NACK may say which resource in it is to blame.

// NamesResource reports whether a text contains a name as a separate word.
func NamesResource(text, name string) bool {
	if name == "" {
		return false
	}
	for from := 0; ; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return false
		}
		at += from
		if endsName(text[:at]) && beginsNoName(text[at+len(name):]) {
			return true
		}
		from = at + 1
	}
}

func inName(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-|/@#", r)
}

// endsName reports whether a name can begin after a text.
func endsName(before string) bool {
	r, _ := utf8.DecodeLastRuneInString(before)
	return before == "" || !inName(r) && r != '.'
}

// beginsNoName reports whether a name can end before a text: a dot or a colon may be the end of a sentence.
func beginsNoName(after string) bool {
	r, n := utf8.DecodeRuneInString(after)
	if r == '.' || r == ':' {
		r, _ = utf8.DecodeRuneInString(after[n:])
		return len(after) == n || !inName(r)
	}
	return after == "" || !inName(r)
}
