package cache

import (
	"slices"
	"testing"
)

// Members from another server stay until the first answer of the new server is complete.
func TestFirstAnswerOfAnotherServer(t *testing.T) {
	type update struct {
		extent    Extent
		has, gone []string
	}
	tests := map[string]struct {
		updates []update
		want    []string
	}{
		"a complete answer removes what it does not have": {
			[]update{{extent: Whole, has: []string{"c"}}}, []string{"c"},
		},
		"an incomplete one does not": {
			[]update{{extent: Begins, has: []string{"c"}}}, []string{"a", "b", "c"},
		},
		"what is removed goes": {
			[]update{{extent: Begins}, {gone: []string{"a"}}}, []string{"b"},
		},
		"once it is complete, the rest goes": {
			[]update{{extent: Begins, has: []string{"c"}}, {has: []string{"a"}}, {extent: Ends}}, []string{"a", "c"},
		},
		"an update in between ends nothing": {
			[]update{{extent: Begins}, {has: []string{"c"}}}, []string{"a", "b", "c"},
		},
		"a whole state ends it": {
			[]update{{extent: Begins}, {extent: Whole, has: []string{"b"}}, {extent: Ends}}, []string{"b"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, set, _ := newWatchedSet(t)
			apply := func(u update) {
				su := SetUpdate{Extent: u.extent}
				for _, name := range u.has {
					su.Changes = append(su.Changes, put(name, name))
				}
				for _, name := range u.gone {
					su.Changes = append(su.Changes, gone(name))
				}
				c.Apply(setUpdate(su))
			}
			apply(update{extent: Whole, has: []string{"a", "b"}})
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
