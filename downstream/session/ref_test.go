package session

import "testing"

func TestAGlobIsOneInAnySpelling(t *testing.T) {
	for name, want := range map[string]bool{
		"*":                                     false,
		"a/*":                                   false,
		"xdstp://a/t/dir/*":                     true,
		"xdstp://a/t/dir/%2A":                   true,
		"xdstp://a/t/dir/%2a":                   true,
		"xdstp://a/t/%64ir/*":                   true,
		"xdstp://a/t/dir/%2A?k=%2F":             true,
		"xdstp://a/t/dir/*?k=v":                 true,
		"xdstp://a/t/dir/*#alt=xdstp://b/t/x/*": true,
		"xdstp://a/t/dir/x#alt=xdstp://b/t/x/*": false,
		"xdstp://a/t/dir/*%23alt=xdstp:%2F%2Fb%2Ft%2Fdir%2F*": true,
		"xdstp://a/t/dir/x%23alt=xdstp:%2F%2Fb%2Ft%2Fdir%2F*": false,
		"xdstp://a/t/dir/x":      false,
		"xdstp://a/t/dir/x?k=/*": false,
		"xdstp://a/t/dir/%zz":    false,
		"xdstp://a/t/dir/%zz/*":  true, // what comes close to one counts
	} {
		if got := isGlob(name); got != want {
			t.Errorf("isGlob(%q) = %t, want %t", name, got, want)
		}
	}
}
