package urn

import "testing"

func TestTargetIsOneResourceOfTheType(t *testing.T) {
	for name, want := range map[string]string{
		"xdstp://a/t/x":                                     "",
		"xdstp://b/t/foo/x?k=v":                             "",
		"xdstp://a/t/x#alt=xdstp://b/t/y":                   "",
		"xdstp://a/tCollection/x#entry=e":                   "",
		"xdstp://a/tCollection/x#alt=xdstp://b/t/y,entry=e": "",
		"xdstp://a/t/*":                                     `xdstp name "xdstp://a/t/*": glob as the target of a redirect "*" (want the name of one resource) at offset 12`,
		"xdstp://a/other/x":                                 `xdstp name "xdstp://a/other/x": wrong type "other" (want t) at offset 10`,
		"xdstp://a/t/x#entry=e":                             `xdstp name "xdstp://a/t/x#entry=e": wrong type "t" (want tCollection) at offset 10`,
		"xdstp://a/tCollection/x":                           `xdstp name "xdstp://a/tCollection/x": wrong type "tCollection" (want t) at offset 10`,
		"xdstp://a/t/x#alt=xdstp://b/t/*":                   `xdstp name "xdstp://a/t/x#alt=xdstp://b/t/*": bad alt at offset 14: xdstp name "xdstp://b/t/*": glob as the target of a redirect "*" (want the name of one resource) at offset 12`,
		"xdstp://a/t/x#alt=xdstp://b/other/foo":             `xdstp name "xdstp://a/t/x#alt=xdstp://b/other/foo": bad alt at offset 14: xdstp name "xdstp://b/other/foo": wrong type "other" (want t) at offset 10`,
	} {
		u, err := ParseURL(name)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := u.CheckTarget("t"); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}
