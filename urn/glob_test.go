package urn

import "testing"

func TestGlobOfANameIsItsDirectoryWithItsParameters(t *testing.T) {
	for name, want := range map[string]string{
		"xdstp://a/t/x":             "xdstp://a/t/*",
		"xdstp://a/t/foo/x":         "xdstp://a/t/foo/*",
		"xdstp://a/t/foo/bar/x":     "xdstp://a/t/foo/bar/*",
		"xdstp:///t/foo/x":          "xdstp:///t/foo/*",
		"xdstp://a/t/foo/x?b=1&c=2": "xdstp://a/t/foo/*?b=1&c=2",
		"xdstp://a/t/foo/x?c=2&b=1": "xdstp://a/t/foo/*?b=1&c=2",
		"xdstp://a/t/foo/x?b=%2Fy":  "xdstp://a/t/foo/*?b=/y",
		"xdstp://a/t/foo%2Fx":       "xdstp://a/t/*",
		"xdstp://a/t/foo/":          "xdstp://a/t/foo/*",
		"xdstp://a/t//x":            "xdstp://a/t//*",
		"xdstp://a/t/":              "",
		"xdstp://a/t":               "",
		"xdstp://a/t/?b=1":          "",
		"xdstp://a/t/foo/*":         "",
		"xdstp://a/t/foo/*?b=1":     "",
		"foo/x":                     "",
		"*":                         "",
	} {
		key, err := KeyOf(name)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := GlobOf(key.Name)
		if appended, is := AppendGlobOf([]byte("before "), key.Name); is != ok || string(appended) != "before "+got {
			t.Errorf("AppendGlobOf(%q) = %q, %v, want what GlobOf returns: %q, %v", key.Name, appended, is, got, ok)
		}
		if got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", name, got, ok, want)
		}
		if !ok {
			continue
		}
		if glob, err := KeyOf(got); err != nil || !glob.Glob || glob.Name != got || glob.Authority != key.Authority || glob.Type != key.Type {
			t.Errorf("%s: the glob %s has the key %+v, %v", name, got, glob, err)
		}
	}
}
