package cache

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/internal/wire"
)

// newWatchedSet returns a set that is fed by the test and has one watcher.
func newWatchedSet(t testing.TB) (*Cache, *Set, *setCounter) {
	t.Helper()
	c := New(newFeeds(), Options{Linger: time.Hour})
	t.Cleanup(c.Close)
	w := &setCounter{}
	return c, c.WatchSet(testKey(Wildcard), w), w
}

// put and gone are changes of a member.
func put(name, content string) Change {
	return Change{Name: name, Resource: res(name, "", content)}
}

func gone(name string) Change { return Change{Name: name} }

// delta and full apply changes to the wildcard set.
func delta(c *Cache, changes ...Change) { c.Apply(setUpdate(SetUpdate{Changes: changes})) }

func full(c *Cache, version string, changes ...Change) {
	c.Apply(setUpdate(SetUpdate{Changes: changes, Extent: Whole, Origin: NewOriginVersion(nil, version)}))
}

// since reads at most n changes, all if n is negative, printed.
func since(s *Set, w *SetWatch, n int) (changes []string, all bool) {
	all = s.Since(w, func(m Member) bool {
		if n == 0 {
			return false
		}
		n--
		what := map[News]string{Changed: "+", Removed: "-", TTLRenewed: "=", TTLChanged: "~"}[m.News]
		if m.Err != nil {
			what += "!"
		}
		changes = append(changes, what+m.Name)
		return true
	})
	return changes, all
}

func expectSince(t *testing.T, s *Set, w *SetWatch, want ...string) {
	t.Helper()
	if got, all := since(s, w, -1); !all || !slices.Equal(got, want) {
		t.Errorf("since then %v (all: %v), want %v", got, all, want)
	}
}

func TestSetIsPresentOnceItsMembersAreKnown(t *testing.T) {
	c, s, w := newWatchedSet(t)
	expect := func(what string, status Status, err *Error, notified int) {
		t.Helper()
		if gotStatus, gotErr := s.Status(); gotStatus != status || (gotErr == nil) != (err == nil) || err != nil && *gotErr != *err {
			t.Errorf("%s: %v %v, want %v %v", what, gotStatus, gotErr, status, err)
		}
		if w.notified != notified || w.woken != notified {
			t.Errorf("%s: notified %d times and woken %d times, want %d", what, w.notified, w.woken, notified)
		}
	}
	expect("at first", Requested, nil, 0)
	fail := func(e Error) { c.Apply(setUpdate(SetUpdate{Err: &e})) }
	fail(*unavailable)
	expect("failed", Failed, unavailable, 1)
	fail(*unavailable)
	expect("failed in the same way", Failed, unavailable, 1)
	fail(*notFound)
	expect("failed in another way", Failed, notFound, 2)
	full(c, "1")
	expect("empty", Present, nil, 3)
	full(c, "2")
	expect("empty again", Present, nil, 3)
	fail(*unavailable)
	expect("failed after it was known", Present, nil, 3)
}

func TestSetIsWhatTheUpdatesSay(t *testing.T) {
	c, s, w := newWatchedSet(t)
	full(c, "1", put("a", "1"), put("b", "1"), put("c", "1"))
	expectSince(t, s, &w.SetWatch, "+a", "+b", "+c")
	full(c, "2", put("c", "1"), put("b", "2"))
	expectSince(t, s, &w.SetWatch, "-a", "+b")
	delta(c, put("d", "1"), gone("c"), gone("never there"))
	expectSince(t, s, &w.SetWatch, "+d", "-c")
	if s.Len() != 2 || s.Member("b") == nil || s.Member("c") != nil || s.Member("none") != nil {
		t.Errorf("%d members", s.Len())
	}
	w.notified = 0
	full(c, "3", put("d", "1"), Change{Name: "b", Resource: res("b", "another", "2")})
	if got := s.Member("b").Version(); got != "another" {
		t.Errorf("version %s of a member that came under another one", got)
	}
	delta(c, put("d", "1"), gone("a"))
	if w.notified > 0 {
		t.Errorf("notified %d times of nothing", w.notified)
	}
	expectSince(t, s, &w.SetWatch)
}

// Invariant: clients never lose a resource because it could not be fetched again.
func TestMemberThatCouldNotBeHadStays(t *testing.T) {
	c, s, w := newWatchedSet(t)
	full(c, "1", put("a", "1"), put("b", "1"))
	expectSince(t, s, &w.SetWatch, "+a", "+b")
	full(c, "2", Change{Name: "a", Err: unavailable}, put("b", "1"))
	delta(c, Change{Name: "b", Err: unavailable})
	expectSince(t, s, &w.SetWatch, "!a", "!b")
	if s.Len() != 2 {
		t.Errorf("%d members, want 2", s.Len())
	}
	// The same again is nothing new, and what comes after it is, though it is the
	// same as before.
	delta(c, Change{Name: "b", Err: unavailable})
	expectSince(t, s, &w.SetWatch)
	delta(c, put("b", "1"))
	expectSince(t, s, &w.SetWatch, "+b")
}

// xDS: "TTL": heartbeats are reported as such, except for a member that the watcher has just received whole.
func TestHeartbeatsOfMembers(t *testing.T) {
	c, s, w := newWatchedSet(t)
	withTTL := func(name, content string, ttl time.Duration) Change {
		change := put(name, content)
		change.Resource = change.Resource.WithTTL(ttl)
		return change
	}
	full(c, "1", withTTL("a", "1", time.Minute), put("b", "1"))
	delta(c, withTTL("a", "1", time.Minute))
	expectSince(t, s, &w.SetWatch, "+a", "+b")
	delta(c, withTTL("a", "1", time.Minute), put("b", "2"))
	if changes, _, beats := s.Pending(&w.SetWatch, WithTTL); !changes || !beats {
		t.Errorf("changes %v, beats %v are due, want both", changes, beats)
	}
	expectSince(t, s, &w.SetWatch, "+b", "=a")
	delta(c, put("a", "1"))
	if changes, _, _ := s.Pending(&w.SetWatch, WithTTL); !changes {
		t.Error("the end of the TTL is not due")
	}
	expectSince(t, s, &w.SetWatch, "~a")
	delta(c, withTTL("a", "1", time.Minute))
	delta(c, withTTL("a", "2", time.Minute))
	expectSince(t, s, &w.SetWatch, "+a")
	delta(c, withTTL("a", "2", time.Minute))
	delta(c, gone("a"))
	expectSince(t, s, &w.SetWatch, "-a")
	// Who does not know of TTLs is notified of none of that.
	delta(c, withTTL("a", "3", time.Minute))
	expectSince(t, s, &w.SetWatch, "+a")
	delta(c, withTTL("a", "3", time.Minute))
	if changes, removals, beats := s.Pending(&w.SetWatch, 0); changes || removals || beats {
		t.Errorf("%v, %v, %v: something is due of a heartbeat", changes, removals, beats)
	}
}

// A member that is gone stays gone if the authority gives an error as the reason.
func TestMemberThatIsGoneWithAnErrorIsGone(t *testing.T) {
	c, s, w := newWatchedSet(t)
	full(c, "1", put("a", "1"), put("b", "1"))
	expectSince(t, s, &w.SetWatch, "+a", "+b")
	delta(c, Change{Name: "a", Err: notFound, Gone: true})
	expectSince(t, s, &w.SetWatch, "-a")
	full(c, "2", Change{Name: "b", Err: notFound, Gone: true})
	expectSince(t, s, &w.SetWatch, "-b")
}

func TestWatcherDoesNotReceiveMembersThatCameAndWent(t *testing.T) {
	c, s, w := newWatchedSet(t)
	delta(c, put("a", "1"))
	expectSince(t, s, &w.SetWatch, "+a")
	delta(c, put("b", "1"))
	delta(c, put("c", "1"))
	delta(c, gone("b"))
	expectSince(t, s, &w.SetWatch, "+c")
}

func TestNewWatcherBeginsWithAllThatIsThere(t *testing.T) {
	c, s, _ := newWatchedSet(t)
	delta(c, put("a", "1"), put("b", "1"), gone("a"), put("c", "1"), put("b", "2"))
	w := &setCounter{}
	c.WatchSet(testKey(Wildcard), w)
	expectSince(t, s, &w.SetWatch, "+c", "+b")
}

func TestCutReadingGoesOnWhereItEnded(t *testing.T) {
	c, s, w := newWatchedSet(t)
	delta(c, put("a", "1"), put("b", "1"), put("c", "1"), put("d", "1"))
	if got, all := since(s, &w.SetWatch, 2); all || !slices.Equal(got, []string{"+a", "+b"}) {
		t.Fatalf("%v %v", got, all)
	}
	delta(c, put("a", "2"), put("c", "2"), gone("b"), put("b", "3"))
	if got, all := since(s, &w.SetWatch, 0); all || got != nil {
		t.Fatalf("%v %v", got, all)
	}
	expectSince(t, s, &w.SetWatch, "+d", "+a", "+c", "+b")
}

// The set may no longer have the change at a watcher's position, nor any of the changes since.
func TestForgottenPlaceIsFoundAgain(t *testing.T) {
	c, s, w := newWatchedSet(t)
	sweep := func() {
		s.sweepAt = 0 // as if many had come and gone
		delta(c, put("short-lived", "1"), gone("short-lived"))
	}
	delta(c, put("a", "1"), put("b", "1"), put("c", "1"))
	expectSince(t, s, &w.SetWatch, "+a", "+b", "+c")
	delta(c, gone("c"))
	expectSince(t, s, &w.SetWatch, "-c")
	sweep()
	if s.members.Len() != 2 {
		t.Fatalf("%d members are kept, want 2", s.members.Len())
	}
	expectSince(t, s, &w.SetWatch)
	sweep()
	delta(c, put("d", "1"), put("a", "2"))
	expectSince(t, s, &w.SetWatch, "+d", "+a")
}

func TestFullIsEverythingAndMovesPastIt(t *testing.T) {
	c, s, w := newWatchedSet(t)
	delta(c, put("a", "1"), put("b", "1"), gone("a"), put("c", "2"))
	f := s.Full(&w.SetWatch, 0, nil, func(Member) {}, noLook)
	var response discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(f.Resources.ReadOnlyData(), &response); err != nil {
		t.Fatal(err)
	}
	if len(response.Resources) != 2 || f.Len != 2 {
		t.Fatalf("%d resources, said to be %d", len(response.Resources), f.Len)
	}
	for i, name := range []string{"b", "c"} {
		if a := response.Resources[i]; a.TypeUrl != testType || string(a.Value) != string(s.Member(name).Value()) {
			t.Errorf("resource %d is %v", i, a)
		}
	}
	expectSince(t, s, &w.SetWatch)
	if other := s.Full(&SetWatch{}, 0, nil, func(Member) {}, noLook); &other.Resources.ReadOnlyData()[0] != &f.Resources.ReadOnlyData()[0] {
		t.Error("the same state was encoded twice")
	}
	delta(c, put("c", "2"))
	if other := s.Full(&SetWatch{}, 0, nil, func(Member) {}, noLook); &other.Resources.ReadOnlyData()[0] != &f.Resources.ReadOnlyData()[0] {
		t.Error("the unchanged state was encoded again")
	}
	delta(c, gone("b"), gone("c"))
	if f := s.Full(&w.SetWatch, 0, nil, func(Member) {}, noLook); f.Len != 0 || f.Resources.Len() != 0 {
		t.Errorf("of an empty set: %d resources, %d bytes", f.Len, f.Resources.Len())
	}
	delta(c, put("d", "1"))
	expectSince(t, s, &w.SetWatch, "+d")
}

// versionOf is the version_info of a set: the origin's, or a hash.
func versionOf(s *Set) string {
	f := s.Full(&SetWatch{}, 0, nil, func(Member) {}, noLook)
	return cmp.Or(f.Origin.String(), f.Version)
}

// Invariant: versions mean the same everywhere.
func TestSetVersionIsTheOriginsOrAHash(t *testing.T) {
	c, s, _ := newWatchedSet(t)
	a, b := put("a", "1"), put("b", "1")
	expect := func(what, want string) {
		t.Helper()
		if got := versionOf(s); got != want {
			t.Errorf("%s: version %s, want %s", what, got, want)
		}
	}
	hashOf := func(changes ...Change) string {
		c, s, _ := newWatchedSet(t)
		delta(c, changes...)
		return versionOf(s)
	}
	full(c, "7", a, b)
	expect("the origin's state", "7")
	full(c, "8", b, a)
	expect("the same under another version", "8")
	delta(c, a)
	expect("nothing changed", "8")
	delta(c, put("b", "2"))
	expect("a part changed", hashOf(put("b", "2"), a))
	delta(c, b)
	expect("as before, but not as the origin gave it", hashOf(a, b))
	c.Apply(setUpdate(SetUpdate{Origin: NewOriginVersion(nil, "8.1"), Changes: []Change{a}}))
	expect("a newer version of the same, in delta", "8.1")
	c.Apply(setUpdate(SetUpdate{Origin: NewOriginVersion(nil, "8.2"), Changes: []Change{{Name: "a", Err: &Error{Message: "bad"}}}}))
	expect("a version of which something could not be had", hashOf(a, b))
	full(c, "9", a)
	expect("the origin's state again", "9")
	full(c, "", a, b)
	expect("an origin without a version", hashOf(a, b))
	full(c, "", a, put("b", "2"))
	expect("an origin without a version, changed", hashOf(a, put("b", "2")))
	nameless := func(name, content string) Change {
		return Change{Name: name, Resource: NewResource(Spec{Name: name, TypeURL: testType, Value: wire.AppendString(nil, 2, content)})}
	}
	if hashOf(nameless("a", "1"), nameless("b", "2")) == hashOf(nameless("a", "2"), nameless("b", "1")) {
		t.Error("sets in which the names are changed round have the same version")
	}
	if hashOf(a) == hashOf(b) || hashOf(a) == hashOf(a, b) || hashOf(a) == hashOf() || hashOf(a) == hashOf(put("a", "2")) {
		t.Error("different sets have the same version")
	}
}

// An older replica and one that has just started report the same version.
func TestSetVersionFollowsFromTheMembersAlone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, s, _ := newWatchedSet(t)
		key := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		changes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Change {
			k := key.Draw(t, "key")
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				return gone(k)
			}
			// The same content may come under another spelling of the name.
			r := NewResource(Spec{
				Name:    rapid.SampledFrom([]string{k, "xdstp:" + k}).Draw(t, "spelling"),
				TypeURL: testType, Value: message("inside", rapid.StringMatching("[xy]").Draw(t, "content")),
			})
			return Change{Name: k, Resource: r}
		}), 0, 20).Draw(rt, "changes")
		for _, change := range changes {
			delta(c, change)
		}
		fresh, freshSet, _ := newWatchedSet(t)
		var now []Change
		s.Since(&SetWatch{}, func(m Member) bool {
			name, r := content(m)
			// What is served: the member under the name that it came with.
			now = append(now, Change{Name: name, Resource: NewResource(Spec{Name: name, TypeURL: testType, Value: r.Value()})})
			return true
		})
		slices.SortFunc(now, func(a, b Change) int { return rapid.IntRange(-1, 1).Draw(rt, "order") })
		delta(fresh, now...)
		if got, want := versionOf(s), versionOf(freshSet); got != want {
			rt.Fatalf("version %s, of a new set with the same members %s", got, want)
		}
	})
}

// For a watcher that does not read, the set keeps at most the members that the watcher knows: it
// forgets members that come and go after that.
func TestStuckWatcherDoesNotMakeTheSetGrow(t *testing.T) {
	for known, churn := range map[int]int{10: 100_000, 3000: 10_000} {
		c, s, w := newWatchedSet(t)
		for i := range known {
			delta(c, put(fmt.Sprint("known ", i), "x"))
		}
		since(s, &w.SetWatch, -1)
		reader := &setCounter{}
		c.WatchSet(testKey(Wildcard), reader)
		most := 0
		for i := range churn {
			delta(c, put(fmt.Sprint(i), "x"))
			if i%1000 == 0 {
				since(s, &reader.SetWatch, -1)
			}
			delta(c, gone(fmt.Sprint(i)))
			if i < known {
				delta(c, gone(fmt.Sprint("known ", i)))
			}
			most = max(most, s.members.Len())
		}
		if limit := 2*(known+1) + minSweep + 2; most > limit {
			t.Errorf("knowing %d: up to %d members are kept, want at most %d", known, most, limit)
		}
		removals := map[string]bool{}
		s.Since(&w.SetWatch, func(m Member) bool {
			name, r := content(m)
			if r == nil {
				removals[name] = true
			}
			return true
		})
		for i := range known {
			if !removals[fmt.Sprint("known ", i)] {
				t.Fatalf("knowing %d: not notified of the removal of %d", known, i)
			}
		}
		if len(removals) > known+1 {
			t.Errorf("knowing %d: notified of %d removals", known, len(removals))
		}
	}
}
