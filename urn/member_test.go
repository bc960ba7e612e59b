package urn

import "testing"

func TestMembersHaveTheGlobsDirectoryAndParameters(t *testing.T) {
	for _, tt := range []struct{ glob, name, want string }{
		{"xdstp://f/T/all/*", "xdstp://a/T/x/y/z", "xdstp://f/T/all/z"},
		{"xdstp://f/T/*", "xdstp://a/T/z?k=a/b", "xdstp://f/T/z"},
		{"xdstp://f/T/all/*?k=v", "xdstp://a/T/x%2Fy?z=1", "xdstp://f/T/all/x%2Fy?k=v"},
		{"xdstp://f/T/all/*", "plain", "xdstp://f/T/all/plain"},
		{"xdstp://f/T/all/*", "outbound|80||a/b?c", "xdstp://f/T/all/b%3Fc"},
		{"xdstp://f/T/all/*", "xdstp://a/T/", "xdstp://f/T/all/"},
		{"xdstp://f/T/all/*", "xdstp://a/TCollection/x?k=v#entry=b/c:d", "xdstp://f/T/all/c:d"},
		{"xdstp://f/T/all/*", "xdstp://a/TCollection/x#3", "xdstp://f/T/all/3"},
	} {
		got := MemberOf(tt.glob, tt.name)
		if got != tt.want {
			t.Errorf("%s in %s: got %s, want %s", tt.name, tt.glob, got, tt.want)
		}
		if key, err := KeyOf(got); err != nil || key.Name != got {
			t.Errorf("%s: %v, %v", got, key, err)
		}
	}
}
