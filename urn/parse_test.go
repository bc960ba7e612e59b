package urn

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestURNComponentsAreSplitBeforeTheyAreDecoded(t *testing.T) {
	tests := []struct {
		in        string
		authority string
		typ       string
		id        []string
		params    map[string]string
		canonical string // if not in
	}{
		{in: "xdstp://a/t/i", authority: "a", typ: "t", id: []string{"i"}},
		{in: "xdstp:///t/i", typ: "t", id: []string{"i"}},
		{in: "xdstp://a/t/x/y/z", authority: "a", typ: "t", id: []string{"x", "y", "z"}},
		{
			in:        "xdstp://some.control.plane/envoy.config.route.v3.RouteConfiguration/foo/bar?shard_id=1234&direction=inbound",
			authority: "some.control.plane",
			typ:       "envoy.config.route.v3.RouteConfiguration",
			id:        []string{"foo", "bar"},
			params:    map[string]string{"shard_id": "1234", "direction": "inbound"},
			canonical: "xdstp://some.control.plane/envoy.config.route.v3.RouteConfiguration/foo/bar?direction=inbound&shard_id=1234",
		},

		// Empty ids and segments.
		{in: "xdstp://a/t/", authority: "a", typ: "t"},
		{in: "xdstp://a/t", authority: "a", typ: "t", canonical: "xdstp://a/t/"},
		{in: "xdstp://a/t?x=1", authority: "a", typ: "t", params: map[string]string{"x": "1"}, canonical: "xdstp://a/t/?x=1"},
		{in: "xdstp://a/t//", authority: "a", typ: "t", id: []string{"", ""}},
		{in: "xdstp://a/t/i/", authority: "a", typ: "t", id: []string{"i", ""}},
		{in: "xdstp://a/t/bar////baz", authority: "a", typ: "t", id: []string{"bar", "", "", "", "baz"}},
		{in: "xdstp://a/t/.././i", authority: "a", typ: "t", id: []string{"..", ".", "i"}},

		// Escapes.
		{in: "xdstp://a/t/foo%2Fbar/baz", authority: "a", typ: "t", id: []string{"foo/bar", "baz"}},
		{in: "xdstp://a/t/foo%2fbar", authority: "a", typ: "t", id: []string{"foo/bar"}, canonical: "xdstp://a/t/foo%2Fbar"},
		{in: "xdstp://a/t/%3F%23%25%5B%5D", authority: "a", typ: "t", id: []string{"?#%[]"}},
		{in: "xdstp://a/t/%2541", authority: "a", typ: "t", id: []string{"%41"}},
		{in: "xdstp://a/t/a=b&c,d;e+f", authority: "a", typ: "t", id: []string{"a=b&c,d;e+f"}},
		{in: "xdstp://a%2Fb%3Fc%23d/t/i", authority: "a/b?c#d", typ: "t", id: []string{"i"}},
		{in: "xdstp://[::1]:443/t/i", authority: "[::1]:443", typ: "t", id: []string{"i"}},
		{in: "xdstp://me@a/t/i", authority: "me@a", typ: "t", id: []string{"i"}, canonical: "xdstp://me%40a/t/i"},
		{in: "xdstp://A/t/i", authority: "A", typ: "t", id: []string{"i"}},
		{in: "xdstp://a/x%2Fy/i", authority: "a", typ: "x/y", id: []string{"i"}},
		{in: "xdstp://a/t/caf\u00e9 \"<|>\"", authority: "a", typ: "t", id: []string{"caf\u00e9 \"<|>\""}, canonical: "xdstp://a/t/caf%C3%A9%20%22%3C%7C%3E%22"},
		{in: "xdstp://a/t/%F0%9F%8E%89", authority: "a", typ: "t", id: []string{"\U0001f389"}},
		{in: "xdstp://a/t/%EF%BF%BD", authority: "a", typ: "t", id: []string{"\ufffd"}},

		// A * is a glob only where it is the whole last segment.
		{in: "xdstp://a/t/*/i", authority: "a", typ: "t", id: []string{"*", "i"}},
		{in: "xdstp://a/t/i*", authority: "a", typ: "t", id: []string{"i*"}},
		{in: "xdstp://a/t/**", authority: "a", typ: "t", id: []string{"**"}},
		{in: "xdstp://a/*", authority: "a", typ: "*", canonical: "xdstp://a/*/"},
		{in: "xdstp://a/t/i?x=/*", authority: "a", typ: "t", id: []string{"i"}, params: map[string]string{"x": "/*"}},

		// Parameters.
		{in: "xdstp://a/t/i?x=a%26b", authority: "a", typ: "t", id: []string{"i"}, params: map[string]string{"x": "a&b"}},
		{in: "xdstp://a/t/i?b=&x=a", authority: "a", typ: "t", id: []string{"i"}, params: map[string]string{"x": "a", "b": ""}},
		{in: "xdstp://a/t/i?x", authority: "a", typ: "t", id: []string{"i"}, params: map[string]string{"x": ""}, canonical: "xdstp://a/t/i?x="},
		{in: "xdstp://a/t/i?=cd", authority: "a", typ: "t", id: []string{"i"}, params: map[string]string{"": "cd"}},
		{in: "xdstp://a/t/i?x=1=2", authority: "a", typ: "t", id: []string{"i"}, params: map[string]string{"x": "1=2"}, canonical: "xdstp://a/t/i?x=1%3D2"},
		{in: "xdstp://a/t/i?x=y?z", authority: "a", typ: "t", id: []string{"i"}, params: map[string]string{"x": "y?z"}},
		{in: "xdstp://a/t/i?x=a+b;c", authority: "a", typ: "t", id: []string{"i"}, params: map[string]string{"x": "a+b;c"}, canonical: "xdstp://a/t/i?x=a%2Bb%3Bc"},
		{in: "xdstp://a/t/i?", authority: "a", typ: "t", id: []string{"i"}, canonical: "xdstp://a/t/i"},
		{
			in:        "xdstp://a/t/i?j=9&i=8&h=7&g=6&f=5&e=4&d=3&c=2&b=1&a=0",
			authority: "a", typ: "t", id: []string{"i"},
			params:    map[string]string{"a": "0", "b": "1", "c": "2", "d": "3", "e": "4", "f": "5", "g": "6", "h": "7", "i": "8", "j": "9"},
			canonical: "xdstp://a/t/i?a=0&b=1&c=2&d=3&e=4&f=5&g=6&h=7&i=8&j=9",
		},
	}
	for _, tt := range tests {
		u, err := ParseURN(tt.in)
		if err != nil {
			t.Errorf("ParseURN(%q): %v", tt.in, err)
			continue
		}
		want := tt.canonical
		if want == "" {
			want = tt.in
		}
		if u.String() != want {
			t.Errorf("ParseURN(%q) prints %q, want %q", tt.in, u, want)
		}
		if u.Authority() != tt.authority || u.Type() != tt.typ || !slices.Equal(u.ID(), tt.id) || !maps.Equal(u.Params(), tt.params) {
			t.Errorf("ParseURN(%q) = authority %q, type %q, id %q, params %q; want %q, %q, %q, %q",
				tt.in, u.Authority(), u.Type(), u.ID(), u.Params(), tt.authority, tt.typ, tt.id, tt.params)
		}
		if again, err := ParseURN(u.String()); err != nil || again != u {
			t.Errorf("ParseURN(%q) = %q, %v; want itself", u, again, err)
		}
		url, err := ParseURL(tt.in)
		if err != nil {
			t.Errorf("ParseURL(%q): %v", tt.in, err)
			continue
		}
		if urn, ok := url.URN(); !ok || urn != u || url.String() != u.String() || url.Key() != u.Key() {
			t.Errorf("ParseURL(%q) = %q, key %+v; want that of the URN", tt.in, url, url.Key())
		}
	}
}

func TestBadNamesSayWhatAndWhere(t *testing.T) {
	long := "xdstp://a/t/" + strings.Repeat("i", MaxLength)
	tests := []struct{ in, want string }{
		{"", `xdstp name "": not an xdstp name (want xdstp://authority/type/id) at offset 0`},
		{"foo", `xdstp name "foo": not an xdstp name (want xdstp://authority/type/id) at offset 0`},
		{"XDSTP://a/t/i", `xdstp name "XDSTP://a/t/i": not an xdstp name (want xdstp://authority/type/id) at offset 0`},
		{"xdstp:a/t/i", `xdstp name "xdstp:a/t/i": no // after the scheme (want xdstp://authority/type/id) at offset 6`},
		{"xdstp:/a/t/i", `xdstp name "xdstp:/a/t/i": no // after the scheme (want xdstp://authority/type/id) at offset 6`},

		// No type.
		{"xdstp://", `xdstp name "xdstp://": no resource type (want xdstp://authority/type/id) at offset 8`},
		{"xdstp://a", `xdstp name "xdstp://a": no resource type (want xdstp://authority/type/id) at offset 9`},
		{"xdstp://a/", `xdstp name "xdstp://a/": no resource type (want xdstp://authority/type/id) at offset 10`},
		{"xdstp://a//i", `xdstp name "xdstp://a//i": no resource type (want xdstp://authority/type/id) at offset 10`},
		{"xdstp://a?t/i", `xdstp name "xdstp://a?t/i": no resource type (want xdstp://authority/type/id) at offset 9`},
		{"xdstp://a/#t", `xdstp name "xdstp://a/#t": no resource type (want xdstp://authority/type/id) at offset 10`},

		// Bad escapes, in each component.
		{"xdstp://a/t/i%zz", `xdstp name "xdstp://a/t/i%zz": bad escape "%zz" (want % and two hexadecimal digits, or %25 for the character) at offset 13`},
		{"xdstp://a/t/i%4gh", `xdstp name "xdstp://a/t/i%4gh": bad escape "%4g" (want % and two hexadecimal digits, or %25 for the character) at offset 13`},
		{"xdstp://a/t/i%g4", `xdstp name "xdstp://a/t/i%g4": bad escape "%g4" (want % and two hexadecimal digits, or %25 for the character) at offset 13`},
		{"xdstp://a/t/i%4", `xdstp name "xdstp://a/t/i%4": bad escape "%4" (want % and two hexadecimal digits, or %25 for the character) at offset 13`},
		{"xdstp://a/t/i%", `xdstp name "xdstp://a/t/i%": bad escape "%" (want % and two hexadecimal digits, or %25 for the character) at offset 13`},
		{"xdstp://a/t/i%4/1", `xdstp name "xdstp://a/t/i%4/1": bad escape "%4" (want % and two hexadecimal digits, or %25 for the character) at offset 13`},
		{"xdstp://%x/t/i", `xdstp name "xdstp://%x/t/i": bad escape "%x" (want % and two hexadecimal digits, or %25 for the character) at offset 8`},
		{"xdstp://a/t%-1/i", `xdstp name "xdstp://a/t%-1/i": bad escape "%-1" (want % and two hexadecimal digits, or %25 for the character) at offset 11`},
		{"xdstp://a/t/i?%=1", `xdstp name "xdstp://a/t/i?%=1": bad escape "%" (want % and two hexadecimal digits, or %25 for the character) at offset 14`},
		{"xdstp://a/t/i?x=%", `xdstp name "xdstp://a/t/i?x=%": bad escape "%" (want % and two hexadecimal digits, or %25 for the character) at offset 16`},

		// What protobuf strings and logs must not hold.
		{"xdstp://a/t/i%FF", `xdstp name "xdstp://a/t/i%FF": invalid UTF-8 "%FF" at offset 13`},
		{"xdstp://a/t/i\xff", `xdstp name "xdstp://a/t/i\xff": invalid UTF-8 "\xff" at offset 13`},
		{"xdstp://a/t/%C3/%A9", `xdstp name "xdstp://a/t/%C3/%A9": invalid UTF-8 "%C3" at offset 12`},
		{"xdstp://a/t/%E2%82x", `xdstp name "xdstp://a/t/%E2%82x": invalid UTF-8 "%E2%82x" at offset 12`},
		{"xdstp://a/t/%ED%A0%80", `xdstp name "xdstp://a/t/%ED%A0%80": invalid UTF-8 "%ED%A0" at offset 12`},
		{"xdstp://a/t/i%00", `xdstp name "xdstp://a/t/i%00": control character "%00" at offset 13`},
		{"xdstp://a/t/i\n", `xdstp name "xdstp://a/t/i\n": control character "\n" at offset 13`},
		{"xdstp://a/t/i%7F", `xdstp name "xdstp://a/t/i%7F": control character "%7F" at offset 13`},
		{"xdstp://a/t/i%C2%85", `xdstp name "xdstp://a/t/i%C2%85": control character "%C2%85" at offset 13`},

		// Parameters.
		{"xdstp://a/t/i?x=1&y=2&x=3", `xdstp name "xdstp://a/t/i?x=1&y=2&x=3": duplicate context parameter "x" (want each once) at offset 22`},
		{"xdstp://a/t/i?x=1&%78=1", `xdstp name "xdstp://a/t/i?x=1&%78=1": duplicate context parameter "%78" (want each once) at offset 18`},
		{"xdstp://a/t/i?e&d&l&h&i&a&f&g&c&k&j&b&a", `xdstp name "xdstp://a/t/i?e&d&l&h&i&a&f&g&c&k&j&b&a": duplicate context parameter "a" (want each once) at offset 38`},
		{"xdstp://a/t/i?x=1&&y=2", `xdstp name "xdstp://a/t/i?x=1&&y=2": empty context parameter (want key=value) at offset 18`},
		{"xdstp://a/t/i?x=1&", `xdstp name "xdstp://a/t/i?x=1&": empty context parameter (want key=value) at offset 18`},

		// What a URN is not.
		{"xdstp://a/t/i#entry=e", `xdstp name "xdstp://a/t/i#entry=e": directives on a resource name "#entry=e" (want none, or %23 for a # in the name) at offset 13`},
		{"xdstp://a/t/i#", `xdstp name "xdstp://a/t/i#": directives on a resource name "#" (want none, or %23 for a # in the name) at offset 13`},
		{"xdstp://a/t/i/*", `xdstp name "xdstp://a/t/i/*": glob in a URN "*" (want the name of one resource) at offset 14`},
		{"xdstp://a/t/*?x=1", `xdstp name "xdstp://a/t/*?x=1": glob in a URN "*" (want the name of one resource) at offset 12`},
		{"xdstp://a/t/i/%2a", `xdstp name "xdstp://a/t/i/%2a": glob in a URN "%2a" (want the name of one resource) at offset 14`},

		// Too long, and shown shortened.
		{long, `xdstp name "` + long[:maxQuoted] + `"...: name is too long (want at most 4096 bytes) at offset 4096`},
	}
	for _, tt := range tests {
		u, err := ParseURN(tt.in)
		if err == nil || err.Error() != tt.want {
			t.Errorf("ParseURN(%.40q) = %v\nwant %s", tt.in, err, tt.want)
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Name != tt.in || !strings.HasPrefix(tt.in[e.Offset:], e.Part) {
			t.Errorf("ParseURN(%.40q): the error is %#v, which is not about it", tt.in, err)
		}
		if u != (URN{}) {
			t.Errorf("ParseURN(%.40q) = %q with its error, want the zero URN", tt.in, u)
		}
	}
}

func TestMaxLengthHoldsForTheCanonicalSpellingToo(t *testing.T) {
	pad := strings.Repeat("i", MaxLength-len("xdstp://a/t/"))
	if _, err := ParseURN("xdstp://a/t/" + pad); err != nil {
		t.Errorf("a name of %d bytes: %v", MaxLength, err)
	}
	_, err := ParseURN("xdstp://a/t/" + pad[1:] + " ")
	const want = "name is too long in its escaped form (want at most 4096 bytes) at offset 4096"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("a name that gets longer than %d bytes: %v, want %s", MaxLength, err, want)
	}
}

func TestReturnedCollectionsBelongToTheCaller(t *testing.T) {
	const name = "xdstp://a/t/i/j?x=1"
	u, err := ParseURN(name)
	if err != nil {
		t.Fatal(err)
	}
	u.ID()[0] = "changed"
	u.Params()["x"] = "changed"
	if u.String() != name || u.ID()[0] != "i" || u.Params()["x"] != "1" {
		t.Errorf("the URN became %q", u)
	}
}

func TestZeroValuesNameNothing(t *testing.T) {
	var urn URN
	if urn.String() != "" || urn.Key() != (Key{}) || urn.ID() != nil || urn.Params() != nil {
		t.Errorf("the zero URN is %q", urn)
	}
	var url URL
	_, hasAlt := url.Alt()
	_, hasEntry := url.Entry()
	if url.String() != "" || url.Key() != (Key{}) || hasAlt || hasEntry {
		t.Errorf("the zero URL is %q", url)
	}
}
