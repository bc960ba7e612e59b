package xdstype

import (
	"testing"
)

func TestFieldOneIsANameOnlyIfItIsText(t *testing.T) {
	for field, want := range map[string]bool{
		"a":                             true,
		"outbound|80||x.example":        true,
		"xdstp://a/b/c?x=y":             true,
		"Grüße":                         true,
		"":                              false,
		"\xff":                          false,
		"\x0a\x01a\x12\x00":             false, // the entry of a map
		"a\nb":                          false,
		"\u0085":                        false, // a control character of two bytes
		"tab\tular":                     false,
		"\x7f":                          false,
		"with space, and \" and \\ too": true,
	} {
		if IsName([]byte(field)) != want {
			t.Errorf("IsName(%q) is %t", field, !want)
		}
	}
}
