package cache

import (
	"slices"
	"testing"
)

// Members from another server stay until the first answer of the new server is complete.
func TestFirstAnswerOfAnotherServer(t *testing.T) {
	type update struct {
		full, incomplete, complete bool
		has, gone                  []string
	}
	tests := map[string]struct {
		updates []update
		want    []string
	}{
		"a complete answer removes what it does not have": {
			[]update{{full: true, has: []string{"c"}}}, []string{"c"},
		},
		"an incomplete one does not": {
			[]update{{full: true, incomplete: true, has: []string{"c"}}}, []string{"a", "b", "c"},
		},
		"what is removed goes": {
			[]update{{full: true, incomplete: true}, {gone: []string{"a"}}}, []string{"b"},
		},
		"once it is complete, the rest goes": {
			[]update{{full: true, incomplete: true, has: []string{"c"}}, {has: []string{"a"}}, {complete: true}}, []string{"a", "c"},
		},
		"an update in between ends nothing": {
			[]update{{full: true, incomplete: true}, {has: []string{"c"}}}, []string{"a", "b", "c"},
		},
		"a whole state ends it": {
			[]update{{full: true, incomplete: true}, {full: true, has: []string{"b"}}, {complete: true}}, []string{"b"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, set, _ := newWatchedSet(t)
			apply := func(u update) {
				su := SetUpdate{Full: u.full, Incomplete: u.incomplete, Complete: u.complete}
				for _, name := range u.has {
					su.Changes = append(su.Changes, put(name, name))
				}
				for _, name := range u.gone {
					su.Changes = append(su.Changes, gone(name))
				}
				c.Apply(setUpdate(su))
			}
			apply(update{full: true, has: []string{"a", "b"}})
			for _, u := range test.updates {
				apply(u)
			}
			var got []string
			set.Names(func(name string) { got = append(got, name) })
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("the set has %v, want %v", got, test.want)
			}
		})
	}
}
