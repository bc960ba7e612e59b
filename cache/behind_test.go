package cache

import (
	"testing"
	"time"
)

const (
	memberA = "xdstp://a/t/dir/a"
	memberB = "xdstp://a/t/dir/b"
	dirGlob = "xdstp://a/t/dir/*"
)

// If a glob is behind an entry of its directory, the glob's member gets the entry's resource: a client that subscribes
// to both is not sent an older one after it unsubscribes from the entry. This adds no members and no answer to the set.
func TestAMemberFollowsItsName(t *testing.T) {
	c := New(newFeeds(), Options{Linger: time.Hour})
	t.Cleanup(c.Close)
	w := &setCounter{}
	s := c.WatchSet(testKey(dirGlob), w)
	name := func(name, version string, member bool) Change {
		return Change{Name: name, Resource: res(name, version, version), Member: member}
	}
	apply := func(sets []SetUpdate, changes ...Change) {
		u := setUpdate(SetUpdate{})
		u.Changes, u.Sets = changes, sets
		c.Apply(u)
	}
	expect := func(when, a, b string) {
		t.Helper()
		for key, want := range map[string]string{memberA: a, memberB: b} {
			got := ""
			if r := s.Member(key); r != nil {
				got = r.Version()
			}
			if got != want {
				t.Errorf("%s: %s has version %q, want %q", when, key, got, want)
			}
		}
	}
	apply(nil, name(memberA, "1", true))
	if status, _ := s.Status(); status != Requested || w.notified != 0 {
		t.Errorf("a name is an answer for its set: %v, notified %d times", status, w.notified)
	}
	apply([]SetUpdate{{Name: dirGlob, Extent: Whole, Changes: []Change{name(memberA, "1", false)}, Partial: true, Origin: NewOriginVersion(nil, "1")}})
	expect("with an answer", "1", "")
	notified := w.notified
	apply(nil, name(memberA, "2", false))
	expect("a name that the set does not follow", "1", "")
	apply(nil, name(memberA, "2", true), name(memberB, "2", true))
	expect("names that the set is behind", "2", "")
	if w.notified != notified+1 {
		t.Errorf("the watcher is notified %d times of a member that follows its name", w.notified-notified)
	}
	if !s.Partial() {
		t.Error("the set is complete because of a name")
	}
	apply([]SetUpdate{{Name: dirGlob, Changes: []Change{name(memberA, "4", false)}}}, name(memberA, "3", true))
	expect("the source speaks of the set itself", "4", "")
	apply(nil, Change{Name: memberA, Gone: true, Member: true})
	expect("a name that is gone", "4", "")
	if s.Awaits(memberA) || !s.Awaits(memberB) {
		t.Error("the set does not await just the name that it does not have")
	}
	notified = w.notified
	apply([]SetUpdate{{Name: dirGlob, Extent: Whole, Changes: []Change{name(memberA, "4", false)}}})
	if s.Awaits(memberB) || w.notified != notified+1 {
		t.Errorf("after its answer, the set awaits %s, and has notified the watcher %d times", memberB, w.notified-notified)
	}
}
