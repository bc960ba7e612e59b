package store

import (
	"bytes"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// exported returns the export of a store with these notes.
func exported(t testing.TB, key *Key, note func(*Notes)) string {
	t.Helper()
	o := (&fake{}).options()
	o.Key = key
	s := open(t, filepath.Join(t.TempDir(), "db"), o)
	defer closed(t, s)
	s.Note("other", note)
	s.Flush(time.Minute)
	var out bytes.Buffer
	if _, unreadable, err := s.Export(&out); unreadable > 0 || err != nil {
		t.Fatalf("%d cannot be read (%v)", unreadable, err)
	}
	return out.String()
}

// backwards returns an export with its records in the opposite order.
func backwards(export string) string {
	lines := strings.Split(strings.TrimSpace(export), "\n")
	slices.Reverse(lines[1:])
	return strings.Join(lines, "\n")
}

// A set that is complete in the export has exactly the imported members afterwards, in any order of records. Of an
// incomplete set, the export's members are added.
func TestAnImportedSetTakesThePlaceOfTheOneThatIsThere(t *testing.T) {
	members := func(whole bool, names ...string) func(*Notes) {
		return func(n *Notes) {
			for _, name := range names {
				n.Member(wildcard(), name, resource(name, "2"))
			}
			if whole {
				n.Whole(wildcard(), false)
			}
		}
	}
	for name, tt := range map[string]struct {
		before, imported func(*Notes)
		want             map[string]string
		whole            bool
	}{
		"whole":         {members(true, "a", "gone"), members(true, "a", "b"), map[string]string{"a": "2", "b": "2"}, true},
		"not whole":     {members(true, "a", "stays"), members(false, "b"), map[string]string{"a": "2", "stays": "2", "b": "2"}, true},
		"whole now":     {members(false, "a", "gone"), members(true, "b"), map[string]string{"b": "2"}, true},
		"never whole":   {members(false, "a"), members(false, "b"), map[string]string{"a": "2", "b": "2"}, false},
		"nothing in it": {members(true, "gone", "gone too"), members(true), map[string]string{}, true},
		"another set": {members(true, "a"), func(n *Notes) {
			n.Member(cache.Key{Scope: cache.Scope{Authority: "other"}, TypeURL: routeType, Name: cache.Wildcard}, "b", resource("b", "1"))
			n.Whole(cache.Key{Scope: cache.Scope{Authority: "other"}, TypeURL: routeType, Name: cache.Wildcard}, false)
		}, map[string]string{"a": "2"}, true},
	} {
		for of, key := range keysToTest(t) {
			for order, arrange := range map[string]func(string) string{"as exported": func(s string) string { return s }, "backwards": backwards} {
				t.Run(name+", "+of+", "+order, func(t *testing.T) {
					path, f := filepath.Join(t.TempDir(), "db"), &fake{}
					o := f.options()
					o.Key = key
					s := open(t, path, o)
					s.Note("cp", tt.before)
					s.Note("cp", func(n *Notes) { n.Entry(entry("name"), resource("name", "1")) })
					closed(t, s)
					if _, err := Import(path, key, strings.NewReader(arrange(exported(t, key, tt.imported))), o.Log); err != nil {
						t.Fatal(err)
					}
					s = open(t, path, o)
					defer closed(t, s)
					set := s.Set(wildcard())
					if got := versions(set); !maps.Equal(got, tt.want) || set.Whole() != tt.whole {
						t.Errorf("the set has %v, whole: %t; want %v, %t", got, set.Whole(), tt.want, tt.whole)
					}
					if s.Entry(entry("name")) == nil {
						t.Error("a name is gone")
					}
				})
			}
		}
	}
}

// An import that ends early leaves no set that is a mixture and counts as whole.
func TestAnImportThatEndsEarlyLeavesNoMixture(t *testing.T) {
	path, f := filepath.Join(t.TempDir(), "db"), &fake{}
	s := open(t, path, f.options())
	large := func(names ...string) func(*Notes) {
		return func(n *Notes) {
			for _, name := range names {
				n.Member(wildcard(), name, cache.NewResource(cache.Spec{
					Name: name, Version: "1", TypeURL: routeType, Value: append([]byte{0x0a, 1}, bytes.Repeat([]byte{0x0a, 1, 'x'}, batchBytes/3)...),
				}))
			}
			n.Whole(wildcard(), false)
		}
	}
	s.Note("cp", large("gone"))
	closed(t, s)
	lines := strings.SplitAfter(exported(t, nil, large("a", "b")), "\n")
	cut := strings.Join(lines[:2], "") + lines[2][:len(lines[2])/2]
	if done, err := Import(path, nil, strings.NewReader(cut), f.options().Log); done.Records != 1 || err == nil {
		t.Fatalf("%d records were imported (%v)", done.Records, err)
	}
	s = open(t, path, f.options())
	defer closed(t, s)
	if set := s.Set(wildcard()); set.Whole() || len(set.Members) != 2 {
		t.Errorf("the set has %d members, whole: %t", len(set.Members), set.Whole())
	}
}
