package urn

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// envoyName returns the name that Envoy requests to subscribe to a URL: it decodes the URL
// as a URN and encodes it again.
func envoyName(name string, added ...string) string {
	rest := strings.TrimPrefix(name, "xdstp://")
	authority, path, _ := strings.Cut(rest, "/")
	path, query, _ := strings.Cut(path, "?")
	typ, id, _ := strings.Cut(path, "/")
	unescape := func(s string) string {
		s, err := url.PathUnescape(s)
		if err != nil {
			panic(err)
		}
		return s
	}
	encode := func(s, special string) string {
		var b strings.Builder
		for i := range len(s) {
			if strings.IndexByte(special, s[i]) >= 0 {
				b.Write([]byte{'%', upperHex[s[i]>>4], upperHex[s[i]&15]})
			} else {
				b.WriteByte(s[i])
			}
		}
		return b.String()
	}
	var params []string
	for _, pair := range append(pairs(query), added...) {
		key, value, _ := strings.Cut(pair, "=")
		params = append(params, encode(unescape(key), "%#[]&=")+"="+encode(unescape(value), "%#[]&="))
	}
	slices.Sort(params)
	name = "xdstp://" + authority + "/" + typ + "/" + encode(unescape(id), "%:?#[]")
	if len(params) > 0 {
		name += "?" + strings.Join(params, "&")
	}
	return name
}

func TestWhatEnvoyMakesOfDirectives(t *testing.T) {
	for _, c := range []struct {
		url, envoy, unfolded string
		added                []string
	}{
		{
			url:   "xdstp://a/T/foo#alt=xdstp://b/T/bar",
			envoy: "xdstp://a/T/foo%23alt=xdstp%3A//b/T/bar",
		},
		{
			url:   "xdstp://a/TCollection/foo#entry=x:y",
			envoy: "xdstp://a/TCollection/foo%23entry=x%3Ay",
		},
		{
			url:   "xdstp://a/TCollection/foo?p=1#entry=x",
			envoy: "xdstp://a/TCollection/foo?p=1%23entry%3Dx",
		},
		{ // the parameters of the primary
			url:   "xdstp://a/T/foo?x=1&z=2#alt=xdstp://b/T/bar",
			envoy: "xdstp://a/T/foo?x=1&z=2%23alt%3Dxdstp://b/T/bar",
		},
		{ // of the alternative
			url:   "xdstp://a/T/foo#alt=xdstp://b/T/bar?y=2",
			envoy: "xdstp://a/T/foo%23alt=xdstp%3A//b/T/bar?y=2",
		},
		{ // of both
			url:   "xdstp://a/T/foo?x=1#alt=xdstp://b/T/bar?y=2",
			envoy: "xdstp://a/T/foo?x=1%23alt%3Dxdstp://b/T/bar?y%3D2",
		},
		{ // several of both: the parameters after an & cannot be recognized as the alternative's
			url:      "xdstp://a/T/foo?x=1#alt=xdstp://b/T/bar?y=2&z=3",
			envoy:    "xdstp://a/T/foo?x=1%23alt%3Dxdstp://b/T/bar?y%3D2&z=3",
			unfolded: "xdstp://a/T/foo?x=1&z=3#alt=xdstp://b/T/bar?y=2",
		},
		{ // those of the Node are for all
			url:      "xdstp://a/T/foo#alt=xdstp://b/T/bar?y=2",
			added:    []string{"xds.node.id=n"},
			envoy:    "xdstp://a/T/foo%23alt=xdstp%3A//b/T/bar?xds.node.id=n&y=2",
			unfolded: "xdstp://a/T/foo?xds.node.id=n#alt=xdstp://b/T/bar?xds.node.id=n&y=2",
		},
		{
			url:      "xdstp://a/T/foo?x=1#alt=xdstp://b/T/bar",
			added:    []string{"xds.node.id=n"},
			envoy:    "xdstp://a/T/foo?x=1%23alt%3Dxdstp://b/T/bar&xds.node.id=n",
			unfolded: "xdstp://a/T/foo?x=1&xds.node.id=n#alt=xdstp://b/T/bar?xds.node.id=n",
		},
		{
			url:      "xdstp://a/TCollection/foo?p=1#entry=e",
			added:    []string{"xds.node.id=n"},
			envoy:    "xdstp://a/TCollection/foo?p=1%23entry%3De&xds.node.id=n",
			unfolded: "xdstp://a/TCollection/foo?p=1&xds.node.id=n#entry=e",
		},
		{ // nested
			url:   "xdstp://a/T/foo#alt=xdstp://b/T/bar%23alt=xdstp://c/T/baz",
			envoy: "xdstp://a/T/foo%23alt=xdstp%3A//b/T/bar%23alt=xdstp%3A//c/T/baz",
		},
		{ // nested, with parameters of the last, and of that in the middle
			url:   "xdstp://a/T/foo#alt=xdstp://b/T/bar%23alt=xdstp://c/T/baz?z=1",
			envoy: "xdstp://a/T/foo%23alt=xdstp%3A//b/T/bar%23alt=xdstp%3A//c/T/baz?z=1",
		},
		{
			url:   "xdstp://a/T/foo#alt=xdstp://b/T/bar?y=1%23alt=xdstp://c/T/baz",
			envoy: "xdstp://a/T/foo%23alt=xdstp%3A//b/T/bar?y=1%23alt%3Dxdstp://c/T/baz",
		},
		{ // both directives, in either order
			url:   "xdstp://a/TCollection/foo#alt=xdstp://b/TCollection/bar%23entry=y,entry=x",
			envoy: "xdstp://a/TCollection/foo%23alt=xdstp%3A//b/TCollection/bar%23entry=y,entry=x",
			// It is one of the alternative's directives then, which has two.
			unfolded: "xdstp://a/TCollection/foo%23alt=xdstp://b/TCollection/bar%23entry=y,entry=x",
		},
		{
			url:      "xdstp://a/TCollection/foo#entry=x,alt=xdstp://b/TCollection/bar%23entry=y",
			envoy:    "xdstp://a/TCollection/foo%23entry=x,alt=xdstp%3A//b/TCollection/bar%23entry=y",
			unfolded: "xdstp://a/TCollection/foo#alt=xdstp://b/TCollection/bar%23entry=y,entry=x",
		},
		{
			url:   "xdstp://a/TCollection/foo#alt=xdstp://b/T/bar,entry=x",
			envoy: "xdstp://a/TCollection/foo%23alt=xdstp%3A//b/T/bar,entry=x",
		},
		{ // a # in the names too
			url:   "xdstp://a/T/f%23oo#alt=xdstp://b/T/b%2523ar",
			envoy: "xdstp://a/T/f%23oo%23alt=xdstp%3A//b/T/b%2523ar",
		},
	} {
		envoy := envoyName(c.url, c.added...)
		if envoy != c.envoy {
			t.Errorf("%s: Envoy asks for %s, want %s", c.url, envoy, c.envoy)
		}
		want := c.unfolded
		if want == "" {
			want = mustURL(t, c.url).String()
		}
		got, err := Unfold(c.envoy)
		if err != nil || got.String() != want {
			t.Errorf("%s is unfolded to %s (%v), want %s", c.envoy, got, err, want)
		}
		if again, err := Unfold(got.String()); err != nil || again != got {
			t.Errorf("unfolded, %s is unfolded again to %s (%v)", got, again, err)
		}
	}
}

// Text that cannot be directives is a part of the name.
func TestNamesThatOnlyLookFolded(t *testing.T) {
	for _, name := range []string{
		"xdstp://a/T/foo%23bar?x=%23",
		"xdstp://a/T/foo%23",
		"xdstp://a/T/foo%23alt",
		"xdstp://a/T/foo%23alt=",
		"xdstp://a/T/foo%23alt=bar",
		"xdstp://a/T/foo%23alt=xdstp:%2F%2Fb",
		"xdstp://a/T/foo%23alt=xdstp:%2F%2Fb%2FOther%2Fbar", // of another type
		"xdstp://a/T/foo%23entry=x",                         // not in a list collection
		"xdstp://a/TCollection/foo%23entry=",
		"xdstp://a/TCollection/foo%23entry=x%20y",
		"xdstp://a/TCollection/foo%23entry=x,alt=y",
		"xdstp://a/TCollection/foo%23entry=x,alt=xdstp:%2F%2Fb%2FTCollection%2Fy", // a collection for a member
		"xdstp://a/T/foo%23other=x",
		"xdstp://a/T/foo?x=%23entry=x",
		"xdstp://a/T/foo%23alt%25=x",
		// With directives of its own it is as it is.
		"xdstp://a/T/foo%23alt=xdstp:%2F%2Fb%2FT%2Fbar#alt=xdstp://c/T/baz",
	} {
		want := mustURL(t, name)
		if got, err := Unfold(name); err != nil || got != want {
			t.Errorf("%s is unfolded to %s (%v), want %s", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "foo", "xdstp://a", "xdstp://a/T/x#alt=y", "xdstp://a/T/x%2"} {
		if got, err := Unfold(bad); err == nil {
			t.Errorf("%q is unfolded to %s, want an error", bad, got)
		}
	}
}

func mustURL(t testing.TB, name string) URL {
	t.Helper()
	u, err := ParseURL(name)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// For any URL, the name that Envoy requests means the same, unless an alternative contains an &:
// then it is unknown to which URL the following parameters belong.
func TestUnfoldedIsWhatWasFolded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const alphabet = `[a-z#%:,= ?+]`
		segment := func(label string) string {
			s := rapid.StringMatching(alphabet+`{0,3}x`).Draw(t, label)
			return string(escape(nil, s, inSegment))
		}
		n := rapid.IntRange(1, 4).Draw(t, "urls")
		name := ""
		for i := n; i > 0; i-- {
			u := "xdstp://" + segment("authority") + "/T/" + segment("id")
			if rapid.Bool().Draw(t, "parameters") {
				u += "?" + string(escape(nil, rapid.StringMatching(`[a-z]{1,2}`).Draw(t, "key"), inParam)) +
					"=" + string(escape(nil, rapid.StringMatching(`[a-z#%:,= ]{0,3}x`).Draw(t, "value"), inParam))
			}
			if name != "" {
				u += "#alt=" + string(escape(nil, name, inDirective))
			}
			name = u
		}
		want, err := ParseURL(name)
		if err != nil {
			t.Fatal(err)
		}
		envoy := envoyName(want.String())
		got, err := Unfold(envoy)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("%s is asked for as %s, which is unfolded to %s", want, envoy, got)
		}
	})
}

func FuzzUnfold(f *testing.F) {
	for _, seed := range []string{
		"xdstp://a/T/foo%23alt=xdstp%3A//b/T/bar%23alt=xdstp%3A//c/T/baz?z=1",
		"xdstp://a/T/foo?x=1%23alt%3Dxdstp://b/T/bar?y%3D2&xds.node.id=n",
		"xdstp://a/TCollection/foo%23entry=x,alt=xdstp%3A//b/TCollection/bar%23entry=y",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := Unfold(name)
		plain, plainErr := ParseURL(name)
		if (err == nil) != (plainErr == nil) {
			t.Fatalf("unfolding %q: %v, parsing it: %v", name, err, plainErr)
		}
		if err != nil {
			return
		}
		if got.key.Authority != plain.key.Authority || got.key.Type != plain.key.Type {
			t.Errorf("%q is unfolded to %s, which is elsewhere", name, got)
		}
		if again, err := Unfold(got.String()); err != nil || again.key.Authority != got.key.Authority {
			t.Errorf("%q is unfolded to %s, and that to %s (%v)", name, got, again, err)
		}
	})
}
