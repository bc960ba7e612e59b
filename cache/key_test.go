package cache_test

import (
	"testing"

	"github.com/xds-relay/xds-relay/cache"
)

func TestKeyOfAWildcardOrGlobIsASet(t *testing.T) {
	for _, tt := range []struct {
		name     string
		oldStyle bool
		want     bool
	}{
		{"*", true, true},
		{"*", false, true},
		{"foo/*", true, false},
		{"xdstp://a/T/foo/*", false, true},
		{"xdstp://a/T/*", false, true},
		{"xdstp://a/T/foo/*?x=1%2F*", false, true},
		{"xdstp://a/T/foo/*#alt=xdstp://b/T/bar/*", false, true},
		{"xdstp://a/T/foo/bar?x=/*", false, false},
		{"xdstp://a/T/foo/bar*", false, false},
		{"xdstp://a/T/foo#alt=xdstp://b/T/bar/*", false, false},
		{"xdstp://a/T/foo", false, false},
	} {
		k := cache.Key{Scope: cache.Scope{OldStyle: tt.oldStyle}, Name: tt.name}
		if got := k.IsSet(); got != tt.want {
			t.Errorf("%q (old-style %t): got %t, want %t", tt.name, tt.oldStyle, got, tt.want)
		}
	}
}
