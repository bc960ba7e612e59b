package urn

import (
	"slices"
	"strings"
	"testing"
)

func TestWithParamsKeepsWhatItIsGiven(t *testing.T) {
	const bare = "xdstp://a/t/x"
	for _, tt := range []struct {
		name  string
		drop  []string
		want  string
		among []string // the keys before
	}{
		{bare, []string{"a"}, bare, nil},
		{bare + "?a=1", nil, bare + "?a=1", []string{"a"}},
		{bare + "?a=1", []string{"a"}, bare, []string{"a"}},
		{bare + "?c=3&b=2&a=1", []string{"b"}, bare + "?a=1&c=3", []string{"a", "b", "c"}},
		{bare + "?c=3&b=2&a=1", []string{"a", "c", "z"}, bare + "?b=2", []string{"a", "b", "c"}},
		{bare + "?a%26b=%3D&c=?", []string{"c"}, bare + "?a%26b=%3D", []string{"a&b", "c"}}, // what is escaped stays so
		{bare + "?a%26b=1&c=?", []string{"a&b"}, bare + "?c=?", []string{"a&b", "c"}},
		{bare + "/%3Fa=1", []string{"a"}, bare + "/%3Fa=1", nil},
		{bare + "/*?a=1&b=2", []string{"a"}, bare + "/*?b=2", []string{"a", "b"}},
		{"old?a=1", []string{"a"}, "old?a=1", nil},
	} {
		key, err := KeyOf(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Collect(key.ParamKeys()); !slices.Equal(got, tt.among) {
			t.Errorf("%s has the parameters %q, want %q", tt.name, got, tt.among)
		}
		got := key.WithParams(func(key string) bool { return !slices.Contains(tt.drop, key) })
		want, err := KeyOf(tt.want)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s without %q is %+v, want %+v", tt.name, tt.drop, got, want)
		}
		if key.Name == tt.want {
			n := testing.AllocsPerRun(100, func() { key.WithParams(func(key string) bool { return !slices.Contains(tt.drop, key) }) })
			if n != 0 && !strings.Contains(tt.name, "%") {
				t.Errorf("%s: nothing is dropped, which allocates %v times", tt.name, n)
			}
		}
	}
}

// The result of dropping parameters is the key of the name with only the others: dropping twice is the same
// as dropping once, in any order, for any spelling.
func FuzzWithParams(f *testing.F) {
	for _, seed := range fuzzSeeds {
		f.Add(seed, "a", "b")
	}
	f.Add("xdstp://a/t/x?b=2&a=1&c=%26", "a", "c")
	f.Fuzz(func(t *testing.T, name, drop1, drop2 string) {
		key, err := KeyOf(name)
		if err != nil {
			return
		}
		without := func(k Key, drop ...string) Key {
			return k.WithParams(func(key string) bool { return !slices.Contains(drop, key) })
		}
		one := without(key, drop1)
		if again := without(one, drop1); again != one {
			t.Fatalf("%q without %q is %+v, and again %+v", name, drop1, one, again)
		}
		both := without(key, drop1, drop2)
		if a, b := without(one, drop2), without(without(key, drop2), drop1); a != both || b != both {
			t.Fatalf("%q without %q and %q is %+v, %+v or %+v", name, drop1, drop2, both, a, b)
		}
		if read, err := KeyOf(both.Name); err != nil || read != both {
			t.Fatalf("%q without %q and %q is %+v, which reads as %+v, %v", name, drop1, drop2, both, read, err)
		}
		var left []string
		for key := range key.ParamKeys() {
			if key != drop1 && key != drop2 {
				left = append(left, key)
			}
		}
		if got := slices.Collect(both.ParamKeys()); !slices.Equal(got, left) {
			t.Fatalf("%q without %q and %q has the parameters %q, want %q", name, drop1, drop2, got, left)
		}
	})
}
