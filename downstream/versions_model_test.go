package downstream

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

// What the model's origin calls its states, and what clients may conclude from a version.

// originVersions are the versions of an origin.
type originVersions struct {
	names map[string]*cache.OriginVersion // the newest of names, by type
	sent  map[versioned]cache.Change      // what was sent last for a name, or for a member
	// states are, by version, the contents by name.
	states map[string]map[string]string
	// seen are the contents that clients had with a version that is not the origin's.
	seen map[versioned]string
}

type versioned struct{ of, typeURL, name string }

func newOriginVersions() *originVersions {
	return &originVersions{
		names: map[string]*cache.OriginVersion{}, sent: map[versioned]cache.Change{},
		states: map[string]map[string]string{}, seen: map[versioned]string{},
	}
}

// stamp gives an update versions: its names none, one of their own, or the one that all sent
// names have; and a part of a set none, or one of its own.
func (o *modelOrigin) stamp(t *rapid.T, u *cache.Update) {
	v := o.versions
	if len(u.Changes) > 0 {
		o.counter++
		version := "n" + strconv.Itoa(o.counter)
		var origin *cache.OriginVersion
		switch rapid.IntRange(0, 2).Draw(t, "version of names") {
		case 0:
		case 1:
			origin = cache.NewOriginVersion(o, version)
			v.names[u.TypeURL] = origin
		case 2:
			for _, name := range modelNames {
				c, wasSent := v.sent[versioned{"names", u.TypeURL, name}]
				known := o.answered[cache.Key{Scope: u.Scope, TypeURL: u.TypeURL, Name: name}]
				if wasSent && known && c.Resource != nil && !slices.ContainsFunc(u.Changes, func(c cache.Change) bool { return c.Name == name }) {
					u.Changes = append(u.Changes, c)
				}
			}
			if origin = v.names[u.TypeURL]; origin == nil || !v.allIn(u, origin) {
				origin = cache.NewOriginVersion(o, "")
				v.names[u.TypeURL] = origin
			}
			origin.Set(version)
		}
		for i := range u.Changes {
			if u.Changes[i].Err == nil {
				u.Changes[i].Origin = origin
			}
			v.noteSent("names", u.TypeURL, u.Changes[i])
		}
		v.states[version] = map[string]string{}
		if origin != nil {
			v.note(version, u.Changes)
		}
	}
	for i := range u.Sets {
		set := &u.Sets[i]
		if set.Err != nil {
			continue
		}
		if set.Extent.Full() {
			for _, name := range modelNames {
				v.noteSent("members", u.TypeURL, cache.Change{Name: name})
			}
		} else if rapid.Bool().Draw(t, "version of a part") {
			o.counter++
			set.Origin = cache.NewOriginVersion(o, "s"+strconv.Itoa(o.counter))
		}
		for _, c := range set.Changes {
			v.noteSent("members", u.TypeURL, c)
		}
		var all []cache.Change
		for _, name := range modelNames {
			all = append(all, v.sent[versioned{"members", u.TypeURL, name}])
		}
		v.states[set.Origin.Latest()] = map[string]string{}
		v.note(set.Origin.Latest(), all)
	}
	delete(v.states, "")
}

// allIn reports whether an update has all names that were last sent with that version. Otherwise those that it lacks keep
// the version: see the hasAll of upstream/session.
func (v *originVersions) allIn(u *cache.Update, origin *cache.OriginVersion) bool {
	for _, name := range modelNames {
		last := v.sent[versioned{"names", u.TypeURL, name}]
		if last.Resource == nil || last.Origin != origin {
			continue
		}
		if !slices.ContainsFunc(u.Changes, func(c cache.Change) bool { return c.Name == name && c.Err == nil }) {
			return false
		}
	}
	return true
}

func (v *originVersions) noteSent(of, typeURL string, c cache.Change) {
	if c.Err == nil {
		v.sent[versioned{of, typeURL, c.Name}] = c
	}
}

func (v *originVersions) note(version string, changes []cache.Change) {
	for _, c := range changes {
		if c.Resource != nil {
			_, content := decodeContent(c.Resource.Value())
			v.states[version][c.Name] = content
		}
	}
}

// checkVersion holds what a SotW client has after a response against its version: one of the
// origin's stands for its state, and any other for one content of what the client asks for.
func (c *modelClient) checkVersion(t *rapid.T, m *modelType, r *sentToModel) {
	held := map[string]string{}
	for name, h := range m.held {
		if r.full || m.named[name] && !m.resumed[name] && !m.byState[name] {
			held[name] = h.content
		}
	}
	if m.unnoticed || m.wild && !r.full {
		return // it asks for something else by now
	}
	if state, ok := c.origin.versions.states[r.version]; ok {
		c.origin.shown++
		for name, content := range held {
			if is, there := state[name]; !there || is != content {
				t.Fatalf("%s holds %s = %s with version %s, which has %v:\n%s", c.id, name, abbreviate(content), r.version, state, r)
			}
		}
		return
	}
	for name, content := range held {
		asked := append(slices.Sorted(maps.Keys(m.named)), strconv.FormatBool(m.wild))
		at := versioned{strings.Join(asked, " ") + " " + r.version, r.typeURL, name}
		if was, before := c.origin.versions.seen[at]; before && was != content {
			t.Fatalf("%s holds %s = %s with version %s, which was %s before:\n%s", c.id, name, abbreviate(content), r.version, abbreviate(was), r)
		}
		c.origin.versions.seen[at] = content
	}
}

// The rule is of use only if the origin's versions come to be seen.
func requireShown(t *testing.T, n int) {
	t.Helper()
	if n == 0 {
		t.Error("no client has seen a version of the origin")
	}
}
