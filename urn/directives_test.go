package urn

import (
	"errors"
	"strings"
	"testing"
)

func TestURLIsANameAndDirectives(t *testing.T) {
	tests := []struct {
		in        string
		key       string
		glob      bool
		alt       string
		entry     string
		canonical string // if not in
	}{
		{in: "xdstp://a/t/i", key: "xdstp://a/t/i"},
		{in: "xdstp://a/t/i/*", key: "xdstp://a/t/i/*", glob: true},
		{in: "xdstp://a/t/i#entry=bar", key: "xdstp://a/t/i", entry: "bar"},
		{in: "xdstp://a/t/i#entry=aZ9_-./~:", key: "xdstp://a/t/i", entry: "aZ9_-./~:"},
		{in: "xdstp://a/t/i#entry=%62ar%2F", key: "xdstp://a/t/i", entry: "bar/", canonical: "xdstp://a/t/i#entry=bar/"},
		{in: "xdstp://a/t?x=1#entry=bar", key: "xdstp://a/t/?x=1", entry: "bar", canonical: "xdstp://a/t/?x=1#entry=bar"},
		{
			in:  "xdstp://cloud/T/foo#alt=xdstp://onprem/T/bar",
			key: "xdstp://cloud/T/foo", alt: "xdstp://onprem/T/bar",
		},
		{
			in:  "xdstp://cloud/T/foo/*?x=1#alt=xdstp://onprem/T/bar/*?y=2&z=3",
			key: "xdstp://cloud/T/foo/*?x=1", glob: true, alt: "xdstp://onprem/T/bar/*?y=2&z=3",
		},
		{
			in:  "xdstp://a/t/i#entry=e,alt=xdstp://b/t/j",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j", entry: "e",
			canonical: "xdstp://a/t/i#alt=xdstp://b/t/j,entry=e",
		},
		// All of the alt may be escaped; what must be is kept so.
		{
			in:  "xdstp://a/t/i#alt=xdstp%3A%2F%2Fb%2Ft%2Fj%3Fx%3D1",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j?x=1",
			canonical: "xdstp://a/t/i#alt=xdstp://b/t/j?x=1",
		},
		{
			in:  "xdstp://a/t/i#alt=xdstp://b/t/x%2Cy,entry=e",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/x,y", entry: "e",
		},
		{
			in:  "xdstp://a/t/i#alt=xdstp://%5B::1%5D/t/x%252Fy",
			key: "xdstp://a/t/i", alt: "xdstp://[::1]/t/x%2Fy",
		},
		// The name in the alt is made canonical too.
		{
			in:  "xdstp://a/t/i#alt=xdstp://b/t/j%3A%253a?z=1%26y=2",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j::?y=2&z=1",
			canonical: "xdstp://a/t/i#alt=xdstp://b/t/j::?y=2&z=1",
		},
		// Directives within directives.
		{
			in:  "xdstp://a/t/i#alt=xdstp://b/t/j%23alt=xdstp://c/t/k%2Centry=e",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j#alt=xdstp://c/t/k,entry=e",
		},
		{
			in:  "xdstp://a/t/i#alt=xdstp://b/t/j%23alt=xdstp://c/t/k%2523alt=xdstp://d/t/l%2525252Fm",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j#alt=xdstp://c/t/k%23alt=xdstp://d/t/l%25252Fm",
		},
		// Their # may be bare, as at Envoy. What follows a comma is not theirs.
		{
			in:  "xdstp://a/t/i#alt=xdstp://b/t/j#alt=xdstp://c/t/k",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j#alt=xdstp://c/t/k",
			canonical: "xdstp://a/t/i#alt=xdstp://b/t/j%23alt=xdstp://c/t/k",
		},
		{
			in:  "xdstp://a/t/i#alt=xdstp://b/t/j#alt=xdstp://c/t/k#alt=xdstp://d/t/l%2525252Fm",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j#alt=xdstp://c/t/k%23alt=xdstp://d/t/l%25252Fm",
			canonical: "xdstp://a/t/i#alt=xdstp://b/t/j%23alt=xdstp://c/t/k%2523alt=xdstp://d/t/l%2525252Fm",
		},
		{
			in:  "xdstp://a/t/i#alt=xdstp://b/t/j#entry=e",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j#entry=e",
			canonical: "xdstp://a/t/i#alt=xdstp://b/t/j%23entry=e",
		},
		{
			in:  "xdstp://a/t/i#alt=xdstp://b/t/j#alt=xdstp://c/t/k,entry=e",
			key: "xdstp://a/t/i", alt: "xdstp://b/t/j#alt=xdstp://c/t/k", entry: "e",
			canonical: "xdstp://a/t/i#alt=xdstp://b/t/j%23alt=xdstp://c/t/k,entry=e",
		},
	}
	for _, tt := range tests {
		u, err := ParseURL(tt.in)
		if err != nil {
			t.Errorf("ParseURL(%q): %v", tt.in, err)
			continue
		}
		want := tt.canonical
		if want == "" {
			want = tt.in
		}
		if u.String() != want {
			t.Errorf("ParseURL(%q) prints %q, want %q", tt.in, u, want)
		}
		if again, err := ParseURL(u.String()); err != nil || again != u {
			t.Errorf("ParseURL(%q) = %q, %v; want itself", u, again, err)
		}
		if key, err := KeyOf(tt.key); err != nil || u.Key() != key || key.Glob != tt.glob {
			t.Errorf("ParseURL(%q).Key() = %+v, want %+v (%v)", tt.in, u.Key(), key, err)
		}
		if urn, ok := u.URN(); ok == tt.glob || ok && urn.String() != tt.key {
			t.Errorf("ParseURL(%q).URN() = %q, %v, want %q, %v", tt.in, urn, ok, tt.key, !tt.glob)
		}
		if alt, ok := u.Alt(); ok != (tt.alt != "") || alt.String() != tt.alt {
			t.Errorf("ParseURL(%q).Alt() = %q, %v, want %q", tt.in, alt, ok, tt.alt)
		}
		if entry, ok := u.Entry(); ok != (tt.entry != "") || entry != tt.entry {
			t.Errorf("ParseURL(%q).Entry() = %q, %v, want %q", tt.in, entry, ok, tt.entry)
		}
	}
}

func TestBadDirectivesSayWhatAndWhere(t *testing.T) {
	tests := []struct{ in, want string }{
		{"xdstp://a/t/i#", `unknown directive (want alt or entry, and %2C for a comma within a value) at offset 14`},
		{"xdstp://a/t/i#entry=e,", `unknown directive (want alt or entry, and %2C for a comma within a value) at offset 22`},
		{"xdstp://a/t/i#foo=e", `unknown directive "foo" (want alt or entry, and %2C for a comma within a value) at offset 14`},
		{"xdstp://a/t/i#Alt=xdstp://b/t/j", `unknown directive "Alt" (want alt or entry, and %2C for a comma within a value) at offset 14`},
		{"xdstp://a/t/i#alt=xdstp://b/t/x,y", `unknown directive "y" (want alt or entry, and %2C for a comma within a value) at offset 32`},
		{"xdstp://a/t/i#entry", `directive without a value "entry" (want entry=value) at offset 14`},

		{"xdstp://a/t/i#entry=e,entry=f", `duplicate directive "entry" (want each once) at offset 22`},
		{"xdstp://a/t/i#entry=e,entry=e", `duplicate directive "entry" (want each once) at offset 22`},
		{"xdstp://a/t/i#alt=xdstp://b/t/j,entry=e,alt=xdstp://c/t/j", `duplicate directive "alt" (want each once) at offset 40`},

		{"xdstp://a/t/i#entry=", `bad entry name (want one or more of [a-zA-Z0-9_-./~:]) at offset 20`},
		{"xdstp://a/t/i#entry=a b", `bad entry name "a b" (want one or more of [a-zA-Z0-9_-./~:]) at offset 20`},
		{"xdstp://a/t/i#entry=a=b", `bad entry name "a=b" (want one or more of [a-zA-Z0-9_-./~:]) at offset 20`},
		{"xdstp://a/t/i#entry=a#alt=b", `bad entry name "a#alt=b" (want one or more of [a-zA-Z0-9_-./~:]) at offset 20`},
		{"xdstp://a/t/i#alt=xdstp://b/t/j#k", `bad alt "xdstp://b/t/j#k" at offset 18: xdstp name "xdstp://b/t/j#k": unknown directive "k" (want alt or entry, and %2C for a comma within a value) at offset 14`},
		{"xdstp://a/t/i#entry=a%2Cb", `bad entry name "a%2Cb" (want one or more of [a-zA-Z0-9_-./~:]) at offset 20`},
		{"xdstp://a/t/i#entry=\u00e9", `bad entry name "é" (want one or more of [a-zA-Z0-9_-./~:]) at offset 20`},
		{"xdstp://a/t/i#entry=e%4", `bad escape "%4" (want % and two hexadecimal digits, or %25 for the character) at offset 21`},
		{"xdstp://a/t/i#alt=xdstp://b/t/%zz", `bad escape "%zz" (want % and two hexadecimal digits, or %25 for the character) at offset 30`},

		{"xdstp://a/t/i#alt=", `bad alt at offset 18: xdstp name "": not an xdstp name (want xdstp://authority/type/id) at offset 0`},
		{"xdstp://a/t/i#alt=http://b/t/j", `bad alt "http://b/t/j" at offset 18: xdstp name "http://b/t/j": not an xdstp name (want xdstp://authority/type/id) at offset 0`},
		{"xdstp://a/t/i#alt=xdstp://b", `bad alt "xdstp://b" at offset 18: xdstp name "xdstp://b": no resource type (want xdstp://authority/type/id) at offset 9`},
		{"xdstp://a/t/i#alt=xdstp://b/t/%25zz", `bad alt "xdstp://b/t/%25zz" at offset 18: xdstp name "xdstp://b/t/%zz": bad escape "%zz" (want % and two hexadecimal digits, or %25 for the character) at offset 12`},
		{"xdstp://a/t/i#alt=xdstp://b/t/%FF", `bad alt "xdstp://b/t/%FF" at offset 18: xdstp name "xdstp://b/t/\xff": invalid UTF-8 "\xff" at offset 12`},
		// Of a chain, the outermost and the innermost.
		{
			"xdstp://a/t/i#alt=xdstp://b/t/j%23alt=xdstp://c/t/k%2523entry=",
			`bad alt "xdstp://b/t/j%23alt=xdstp://c/t/k%2523entry=" at offset 18: xdstp name "xdstp://c/t/k#entry=": bad entry name (want one or more of [a-zA-Z0-9_-./~:]) at offset 20`,
		},
		// Where the URN part is bad, URLs say so as URNs do.
		{"xdstp://a/#entry=e", `no resource type (want xdstp://authority/type/id) at offset 10`},
		{"xdstp://a/t/i?x=1&x=2#entry=e", `duplicate context parameter "x" (want each once) at offset 18`},
	}
	for _, tt := range tests {
		u, err := ParseURL(tt.in)
		want := `xdstp name "` + tt.in + `": ` + tt.want
		if err == nil || err.Error() != want {
			t.Errorf("ParseURL(%q) = %v\nwant %s", tt.in, err, want)
			continue
		}
		if inner := errors.Unwrap(err); strings.Contains(want, "bad alt") != (inner != nil) {
			t.Errorf("ParseURL(%q): the error unwraps to %v", tt.in, inner)
		}
		for e := (*Error)(nil); errors.As(err, &e); err = errors.Unwrap(e) {
			if !strings.HasPrefix(e.Name[e.Offset:], e.Part) {
				t.Errorf("ParseURL(%q): %q is not at offset %d of %q", tt.in, e.Part, e.Offset, e.Name)
			}
		}
		if u != (URL{}) {
			t.Errorf("ParseURL(%q) = %q with its error, want the zero URL", tt.in, u)
		}
	}
}

func TestLongChainsOfAltsAreBoundedByMaxLength(t *testing.T) {
	url, links := "xdstp://a/t/", 0
	for {
		u, err := ParseURL("xdstp://a/t/#alt=" + string(escape(nil, url, inDirective)))
		if err != nil {
			if !strings.Contains(err.Error(), "too long") || len(err.Error()) > 4*maxQuoted {
				t.Errorf("after %d links: %v", links, err)
			}
			break
		}
		url, links = u.String(), links+1
	}
	if links < 10 {
		t.Errorf("only %d links fit into %d bytes", links, MaxLength)
	}
}

func BenchmarkParseURL(b *testing.B) {
	const name = "xdstp://cloud.example.com/envoy.config.cluster.v3.Cluster/checkout" +
		"#alt=xdstp://onprem/envoy.config.cluster.v3.Cluster/checkout?zone=eu"
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseURL(name); err != nil {
			b.Fatal(err)
		}
	}
}

func TestMapReplacesAllNames(t *testing.T) {
	short := func(k Key) Key { return k.WithParams(func(string) bool { return false }) }
	for _, c := range []struct{ url, want string }{
		{"xdstp://a/T/x?y=1", "xdstp://a/T/x"},
		{"xdstp://a/T/x", "xdstp://a/T/x"},
		{"xdstp://a/TCollection/x?y=1#entry=e", "xdstp://a/TCollection/x#entry=e"},
		{
			"xdstp://a/TCollection/x?y=1#alt=xdstp://b/TCollection/x?y=2%23entry=f%2Calt=xdstp://c/T/z?y=3,entry=e",
			"xdstp://a/TCollection/x#alt=xdstp://b/TCollection/x%23alt=xdstp://c/T/z%2Centry=f,entry=e",
		},
	} {
		if got := mustURL(t, c.url).Map(short).String(); got != c.want {
			t.Errorf("%s becomes %s, want %s", c.url, got, c.want)
		}
		if u := mustURL(t, c.url); u.Map(func(k Key) Key { return k }) != u {
			t.Errorf("%s becomes another although its names stay", c.url)
		}
	}
}
