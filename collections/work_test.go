package collections

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/costs"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Things of which control planes can write any number: twice as many must cost twice the
// work, and not four times.

// workWorld is a cache with a resolver that works only in settle, and with leaf topics that
// are answered there.
type workWorld struct {
	*testing.T
	cache    *cache.Cache
	resolver *Resolver
	// says is what there is of each name, and members of each set.
	says    map[string]*cache.Resource
	members map[string][]*cache.Resource
	unread  []cache.Key
}

func newWorkWorld(t *testing.T, view ...string) *workWorld {
	w := &workWorld{T: t, says: map[string]*cache.Resource{}, members: map[string][]*cache.Resource{}}
	var v View
	for _, c := range view {
		u, err := urn.ParseURL(long(c))
		if err != nil {
			t.Fatal(err)
		}
		v.Collections = append(v.Collections, u)
	}
	w.cache = cache.New(w, cache.Options{IdleEntries: 1 << 20})
	t.Cleanup(w.cache.Close)
	w.resolver = newResolver(w.cache, deliverytest.Direct(w.cache), w, Options{Views: map[string]View{"view/0": v}, Log: slog.New(slog.DiscardHandler)})
	return w
}

func (w *workWorld) Start(k cache.Key) {
	if k.Scope.Derived != "" {
		w.resolver.Start(k)
	} else {
		w.unread = append(w.unread, k)
	}
}

func (w *workWorld) Refresh(cache.Key) {}

func (w *workWorld) Stop(k cache.Key) {
	if k.Scope.Derived != "" {
		w.resolver.Stop(k)
	}
}

func (w *workWorld) Key(typeURL, name string) (cache.Key, error) {
	k := keyOf(name)
	k.TypeURL = typeURL
	return k, nil
}

func (w *workWorld) Policy(string) Policy { return Policy{NotFound: true} }

func (w *workWorld) Unreachable(cache.Scope) (time.Time, bool) { return time.Time{}, false }

func (w *workWorld) PassesOver(cache.Key, time.Time) bool { return false }

// settle lets the resolver do all of its work.
func (w *workWorld) settle() {
	for {
		next, timed := w.resolver.runOnce(time.Now())
		for _, k := range w.unread {
			w.answer(k)
		}
		w.unread = nil
		if w.resolver.inbox.Empty() && (!timed || next > 0) {
			return
		}
	}
}

func (w *workWorld) answer(k cache.Key) {
	u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
	if k.IsSet() {
		set := cache.SetUpdate{Name: k.Name, Extent: cache.Whole}
		for _, r := range w.members[k.Name] {
			set.Changes = append(set.Changes, cache.Change{Name: r.Name(), Resource: r})
		}
		u.Sets = append(u.Sets, set)
	} else {
		u.Changes = append(u.Changes, cache.Change{Name: k.Name, Resource: w.says[k.Name], Gone: w.says[k.Name] == nil})
	}
	w.cache.Apply(u)
}

// say gives a name another state. The name need not be requested.
func (w *workWorld) say(name string, r *cache.Resource) {
	w.says[long(name)] = r
	w.answer(keyOf(long(name)))
}

func (w *workWorld) cluster(name, content string) *cache.Resource {
	return cache.NewResource(cache.Spec{Name: long(name), Version: content, TypeURL: clusterType, Value: clusterNamed(w, long(name), content)})
}

func (w *workWorld) redirect(name, to string) *cache.Resource {
	return cache.NewResource(cache.Spec{Name: long(name), TypeURL: xdstype.Locator, Value: mustMarshal(w, locator(w, long(to))), Redirect: long(to)})
}

// list is a list collection of n locators.
func (w *workWorld) list(n int, entry func(i int) string) *cache.Resource {
	var entries [][]byte
	for i := range n {
		entries = append(entries, locatorEntry(w, long(entry(i))))
	}
	return collection(long("a:l"), entries...)
}

// watch watches the view, and returns how many members it has when all is settled.
func (w *workWorld) watch() (members func() int) {
	s := &setSub{}
	set := w.cache.WatchSet(cache.Key{Scope: cache.Scope{Derived: "view/0"}, TypeURL: clusterType, Name: cache.Wildcard}, s)
	return func() int {
		w.settle()
		set.Since(&s.SetWatch, func(cache.Member) bool { return true })
		return set.Len()
	}
}

func (w *workWorld) want(got, want int) {
	w.Helper()
	if got != want {
		w.Fatalf("%d members, want %d", got, want)
	}
}

func TestWorkOfEqualEntries(t *testing.T) {
	for name, entry := range map[string]string{"members": "b/x", "alternatives": "b/x#alt=c/x", "lists": "b:l", "globs": "b/g/*"} {
		t.Run(name, func(t *testing.T) {
			costs.Linear(t, 1000, func(t *testing.T, n int) {
				w := newWorkWorld(t, "a:l")
				w.says[long("a:l")] = w.list(n, func(int) string { return entry })
				w.says[long("b/x")] = w.cluster("b/x", "one")
				w.says[long("b:l")] = collection(long("b:l"), locatorEntry(t, long("b/x")))
				w.members[long("b/g/*")] = []*cache.Resource{w.cluster("b/g/y", "one")}
				members := w.watch()
				w.want(members(), 1)
				w.say("a:l", w.list(2*n, func(int) string { return entry }))
				w.want(members(), 1)
			})
		})
	}
}

// Lists in which all entries change, repeatedly.
func TestWorkOfEntries(t *testing.T) {
	for name, entry := range map[string]string{"members": "b/%d", "alternatives": "b/n%d#alt=c/%[1]d", "globs": "b/%d/*", "lists": "b:%d"} {
		t.Run(name, func(t *testing.T) {
			costs.Linear(t, 200, func(t *testing.T, n int) { // both lists are not too many collections
				w := newWorkWorld(t, "a:l")
				first := func(i int) string { return fmt.Sprintf(entry, i) }
				w.says[long("a:l")] = w.list(n, first)
				for i := range 2 * n {
					b, c := fmt.Sprint("b/", i), fmt.Sprint("c/", i)
					w.says[long(b)], w.says[long(c)] = w.cluster(b, "one"), w.cluster(c, "one")
					w.members[long(b+"/*")] = []*cache.Resource{w.cluster(b+"/x", "one")}
					w.says[long(fmt.Sprint("b:", i))] = collection(long(fmt.Sprint("b:", i)), locatorEntry(t, long(b)))
				}
				members := w.watch()
				w.want(members(), n)
				w.say("a:l", w.list(n, func(i int) string { return first(n + i) }))
				w.want(members(), n)
				w.say("a:l", w.list(0, first))
				w.want(members(), 0)
			})
		})
	}
}

// Entries that all lead to one name, and change one after another.
func TestWorkOfEntriesOfOneName(t *testing.T) {
	inline := func(t *testing.T, version string) []byte {
		return inlineEntry(t, "e", version, cluster(t, "same"))
	}
	t.Run("in lists of their own", func(t *testing.T) {
		costs.Linear(t, 300, func(t *testing.T, n int) {
			w := newWorkWorld(t, "a:l")
			w.says[long("a:l")] = w.list(n, func(i int) string { return fmt.Sprintf("b:%d#entry=e", i) })
			for i := range n {
				name := fmt.Sprint("b:", i)
				w.says[long(name)] = collection(long(name), inline(t, fmt.Sprint(i)))
			}
			members := w.watch()
			w.want(members(), 1)
			for i := range n {
				name := fmt.Sprint("b:", i)
				w.say(name, collection(long(name), inline(t, "again")))
				w.want(members(), 1)
			}
			for i := range n {
				w.say(fmt.Sprint("b:", i), nil)
				members()
			}
			w.want(members(), 0)
		})
	})
	t.Run("in one list", func(t *testing.T) {
		costs.Linear(t, 400, func(t *testing.T, n int) {
			w := newWorkWorld(t, "a:l")
			list := func(version string) *cache.Resource {
				var entries [][]byte
				for i := range n {
					entries = append(entries, inlineEntry(t, "", fmt.Sprint(version, i), cluster(t, "same")))
				}
				return collection(long("a:l"), entries...)
			}
			w.says[long("a:l")] = list("first")
			members := w.watch()
			w.want(members(), 1)
			w.say("a:l", list("second"))
			w.want(members(), 1)
			w.say("a:l", collection(long("a:l")))
			w.want(members(), 0)
		})
	})
}

// Sources of a view that all have a member of one name, and change one after another.
func TestWorkOfSources(t *testing.T) {
	costs.Linear(t, 200, func(t *testing.T, n int) {
		var view []string
		for i := range n {
			view = append(view, fmt.Sprintf("a/%d/*", i))
		}
		w := newWorkWorld(t, view...)
		for i, glob := range view {
			w.members[long(glob)] = []*cache.Resource{w.cluster("a/same", fmt.Sprint(i)), w.cluster(fmt.Sprintf("a/%d/x", i), "one")}
		}
		members := w.watch()
		w.want(members(), n+1)
		for i, glob := range view {
			w.members[long(glob)] = []*cache.Resource{w.cluster("a/same", fmt.Sprint(n+i)), w.cluster(fmt.Sprintf("a/%d/x", i), "two")}
			w.answer(keyOf(long(glob)))
			w.want(members(), n+1)
		}
		for _, glob := range view {
			w.members[long(glob)] = nil
			w.answer(keyOf(long(glob)))
			members()
		}
		w.want(members(), 0)
	})
}

// Names that all lead to one name, which changes.
func TestWorkOfRedirectsToOneTarget(t *testing.T) {
	t.Run("of a glob", func(t *testing.T) {
		costs.Linear(t, 400, func(t *testing.T, n int) {
			w := newWorkWorld(t, "a/g/*")
			for i := range n {
				w.members[long("a/g/*")] = append(w.members[long("a/g/*")], w.redirect(fmt.Sprint("a/g/", i), "b/x"))
			}
			w.says[long("b/x")] = w.cluster("b/x", "one")
			members := w.watch()
			w.want(members(), n)
			w.say("b/x", w.cluster("b/x", "two"))
			w.want(members(), n)
			w.say("b/x", nil)
			w.want(members(), 0)
		})
	})
	t.Run("of names", func(t *testing.T) {
		costs.Linear(t, 400, func(t *testing.T, n int) {
			w := newWorkWorld(t)
			var subs []*wanted
			for i := range n {
				name := long(fmt.Sprint("a/", i))
				w.says[name] = w.redirect(fmt.Sprint("a/", i), "b/x")
				s := &wanted{}
				subs = append(subs, s)
				s.entry, _ = w.cache.Watch(derivedKey(name), s)
			}
			w.says[long("b/x")] = w.cluster("b/x", "one")
			w.settle()
			w.say("b/x", w.cluster("b/x", "two"))
			w.settle()
			for i, s := range subs {
				if st := s.entry.State(); st.Resource == nil || st.Resource.Version() == "one" {
					t.Fatalf("%d is %v", i, st)
				}
			}
		})
	})
}

// A view that is requested as a list, of lists in lists.
func TestWorkOfAViewThatIsAList(t *testing.T) {
	costs.Linear(t, 400, func(t *testing.T, n int) {
		w := newWorkWorld(t, "a:l")
		w.says[long("a:l")] = w.list(n, func(i int) string { return fmt.Sprint("b:", i) })
		for i := range n {
			name := fmt.Sprint("b:", i)
			w.says[long(name)] = collection(long(name), locatorEntry(t, long(fmt.Sprint("b/", i))), inlineEntry(t, "same", "1", cluster(t, fmt.Sprint(i))))
		}
		s := &wanted{}
		s.entry, _ = w.cache.Watch(cache.Key{Scope: cache.Scope{Derived: "view/0"}, TypeURL: collectionType, Name: long("d:all")}, s)
		w.settle()
		st := s.entry.State()
		if st.Resource == nil {
			t.Fatalf("the list is %v", st)
		}
		if got := len(parseList(st.Resource).entries); got != 2*n {
			t.Fatalf("%d entries, want %d", got, 2*n)
		}
	})
}
