package cache

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// For a watcher that has received everything up to a change, Earlier returns the version of a member at that change,
// or that it is not known. It never returns a wrong one.
func TestASetKnowsEarlierVersionsOfMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSet(&table{of: &scopeTopics{}}, Key{TypeURL: xdstype.ClusterV3, Name: Wildcard}, Tombstones{})
		type state struct {
			version string
			none    bool
		}
		keys := []string{"a", "b", "c"}
		at := map[uint64]map[string]state{0: {}} // by change
		now := map[string]state{}
		for n := range rapid.IntRange(1, 150).Draw(t, "updates") {
			s.replaced.noted = 0
			for _, key := range keys {
				var r *Resource
				switch rapid.IntRange(0, 3).Draw(t, "what") {
				case 0:
					continue
				case 1:
				default:
					version := fmt.Sprint(n)
					r = NewResource(Spec{Name: key, Version: version, TypeURL: xdstype.ClusterV3, Value: []byte("\x0a\x01" + version)})
				}
				before := s.seq
				if s.put(key, r); s.seq == before {
					continue
				}
				if now[key] = (state{none: true}); r != nil {
					now[key] = state{version: r.Version()}
				}
				at[s.seq] = map[string]state{}
				for k, v := range now {
					at[s.seq][k] = v
				}
			}
		}
		known := 0
		for upTo, then := range at {
			for _, key := range keys {
				m, ok := s.Earlier(key, upTo)
				if !ok {
					continue
				}
				known++
				if want, had := then[key]; !had || m.None != want.none || !m.None && m.Version != want.version {
					t.Fatalf("at change %d, %s was %+v (%v), and %+v is shown", upTo, key, want, had, m)
				}
			}
		}
		if len(s.replaced.all) > maxReplaced || known == 0 && len(s.replaced.all) > 0 {
			t.Fatalf("of %d, %d are known", len(s.replaced.all), known)
		}
	})
}

// An entry knows the content before the newest one. Another version of the same content does not count.
func TestAnEntryKnowsItsEarlierVersion(t *testing.T) {
	e := newEntry(&table{of: &scopeTopics{}}, Key{TypeURL: xdstype.ClusterV3, Name: "a"})
	resource := func(version, content string) *Resource {
		return NewResource(Spec{Name: "a", Version: version, TypeURL: xdstype.ClusterV3, Value: []byte("\x0a\x01" + content)})
	}
	var last *Resource
	for _, c := range []struct{ version, content, want string }{{"1", "x", ""}, {"2", "y", "1"}, {"3", "y", "1"}, {"4", "z", "3"}} {
		r := resource(c.version, c.content)
		e.set(State{Status: Present, Resource: r}, nil)
		is := e.State().Earlier
		switch {
		case c.want == "" && is != nil, c.want != "" && (is == nil || is.Version != c.want):
			t.Errorf("before version %s it had %+v, want %q", c.version, is, c.want)
		case c.version == "4" && (!is.Has(last.Hash()) || is.Has(r.Hash())):
			t.Error("the earlier content is another one")
		}
		last = r
	}
}
