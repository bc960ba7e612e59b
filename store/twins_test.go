package store

import (
	"path/filepath"
	"testing"

	"github.com/xds-relay/xds-relay/cache"
)

const inDirectory = "xdstp://cp/envoy.config.route.v3.RouteConfiguration/dir/a"

// A change of a name counts for the member that is the same resource, and the other way round, whichever of the two
// clients had requested.
func TestANameAndAMemberAreOneResource(t *testing.T) {
	const name, set = true, false
	type said struct {
		ofName  bool
		version string // "": that it is gone
	}
	for _, test := range []struct {
		what            string
		name            string
		batches         [][]said
		asName, inOfSet string
	}{
		{"the name is newer", inDirectory, [][]said{{{name, "1"}, {set, "1"}}, {{name, "2"}}}, "2", "2"},
		{"the member is newer", inDirectory, [][]said{{{name, "1"}, {set, "1"}}, {{set, "2"}}}, "2", "2"},
		{"the name is newer in one batch", inDirectory, [][]said{{{set, "1"}, {name, "2"}}}, "2", "2"},
		{"the member is newer in one batch", inDirectory, [][]said{{{name, "1"}, {set, "2"}}}, "2", "2"},
		{"the name is gone", inDirectory, [][]said{{{name, "1"}, {set, "1"}}, {{name, ""}}}, "", ""},
		{"the member is gone", inDirectory, [][]said{{{name, "1"}, {set, "1"}}, {{set, ""}}}, "", ""},
		{"nobody requested the set", inDirectory, [][]said{{{name, "1"}}, {{name, "2"}}}, "2", ""},
		{"nobody requested the name", inDirectory, [][]said{{{set, "1"}}, {{set, "2"}}}, "", "2"},
		{"a name of the wildcard is newer", "a", [][]said{{{name, "1"}, {set, "1"}}, {{name, "2"}}}, "2", "2"},
		{"a member of the wildcard is newer", "a", [][]said{{{name, "1"}, {set, "1"}}, {{set, "2"}}}, "2", "2"},
		{"a wildcard lacks what can be had by name", "a", [][]said{{{name, "1"}, {set, "1"}}, {{set, ""}}}, "1", ""},
		{"a wildcard lacks it in one batch", "a", [][]said{{{name, "1"}, {set, ""}}}, "1", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			path, f := filepath.Join(t.TempDir(), "db"), &fake{}
			key := entry(test.name)
			if test.name == inDirectory {
				key.Scope = cache.Scope{Authority: "cp"}
			}
			for _, batch := range test.batches {
				s := open(t, path, f.options())
				for _, said := range batch {
					var r *cache.Resource
					if said.version != "" {
						r = resource(test.name, said.version)
					}
					s.Note("cp", func(n *Notes) {
						if said.ofName {
							n.Entry(key, r)
							return
						}
						n.Member(setOf(key), test.name, r)
						n.Member(setOf(key), "other", resource("other", "1"))
						n.Whole(setOf(key), false)
					})
				}
				closed(t, s)
			}
			s := open(t, path, f.options())
			defer closed(t, s)
			got := ""
			if r := s.Entry(key); r != nil {
				got = r.Resource.Version()
			}
			if got != test.asName {
				t.Errorf("the name is stored with version %q, want %q", got, test.asName)
			}
			if got := versions(s.Set(setOf(key)))[test.name]; got != test.inOfSet {
				t.Errorf("the member is stored with version %q, want %q", got, test.inOfSet)
			}
		})
	}
}
