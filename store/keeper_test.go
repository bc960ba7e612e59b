package store

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// scopeSource is the source of a test's cache: it begins topics at the keeper.
type scopeSource struct{ keeper *Keeper }

func (s *scopeSource) Start(k cache.Key) { s.keeper.Start(k) }
func (s *scopeSource) Refresh(cache.Key) {}
func (s *scopeSource) Stop(k cache.Key)  { s.keeper.Stop(k) }

// kept is a keeper before a cache, with a store in which a and the set * with m and n are.
type kept struct {
	*Keeper
	store *Store
	cache *cache.Cache
	t     *testing.T
	wait  *atomic.Int64 // as in KeeperOptions
}

const (
	testWait = 5 * time.Second
	testCP   = "cp:1"
)

// newKept returns a relay that has just been started.
func newKept(t *testing.T, path string) *kept {
	t.Helper()
	source := &scopeSource{}
	c := cache.New(source, cache.Options{Linger: time.Hour, IdleEntries: 10})
	o := (&fake{}).options()
	o.Contents, o.Watched = c.Contents, c.Has
	s := open(t, path, o)
	wait := new(atomic.Int64)
	wait.Store(int64(testWait))
	k := NewKeeper(s, scope, c, KeeperOptions{Started: time.Now(), Wait: func() time.Duration { return time.Duration(wait.Load()) }})
	source.keeper = k
	return &kept{k, s, c, t, wait}
}

func (k *kept) close() {
	k.cache.Close()
	k.Close()
	closed(k.t, k.store)
}

type watcher struct{ cache.Watch }

func (*watcher) Changed() cache.Waker { return nil }

type setWatcher struct{ cache.SetWatch }

func (*setWatcher) Changed() cache.Waker { return nil }

// watch has clients ask for names.
func (k *kept) watch(names ...string) {
	for _, name := range names {
		if entry(name).IsSet() {
			k.cache.WatchSet(entry(name), new(setWatcher))
		} else {
			k.cache.Watch(entry(name), new(watcher))
		}
	}
}

// has returns the version that clients have under a name, with ~ before it if it is stale; "" for
// none, "error", or "absent".
func (k *kept) has(name string) string {
	e, _ := k.cache.Watch(entry(name), new(watcher))
	switch st := e.State(); st.Status {
	case cache.Present:
		if st.Stale {
			return "~" + st.Resource.Version()
		}
		return st.Resource.Version()
	case cache.Absent:
		return "absent"
	case cache.Failed:
		return "error"
	case cache.Requested:
	}
	return ""
}

func (k *kept) set() *cache.Set { return k.cache.WatchSet(wildcard(), new(setWatcher)) }

func (k *kept) says(changes ...cache.Change) {
	k.Apply(cache.Update{Scope: scope, TypeURL: routeType, Changes: changes, Server: testCP})
}

func is(name, version string) cache.Change {
	return cache.Change{Name: name, Resource: resource(name, version)}
}

var errAway = &cache.Error{Code: codes.Unavailable, Message: "connection refused", Outage: new(cache.Outage)}

// fails says of names that the control plane cannot be reached.
func (k *kept) fails(names ...string) {
	var changes []cache.Change
	for _, name := range names {
		changes = append(changes, cache.Change{Name: name, Err: errAway})
	}
	k.Apply(cache.Update{Scope: scope, TypeURL: routeType, Changes: changes})
}

func (k *kept) expect(when string, want map[string]string) {
	k.t.Helper()
	synctest.Wait()
	for name, want := range want {
		if got := k.has(name); got != want {
			k.t.Errorf("%s: clients have %q under %s, want %q", when, got, name, want)
		}
	}
}

// afterARestart runs a test with a keeper whose store has what an earlier relay accepted.
func afterARestart(t *testing.T, test func(*kept)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "db")
		before := newKept(t, path)
		before.watch("a", "b", "gone", cache.Wildcard)
		before.says(is("a", "1"), is("b", "1"), is("gone", "1"))
		before.says(cache.Change{Name: "gone", Gone: true})
		before.Apply(cache.Update{Scope: scope, TypeURL: routeType, Server: testCP, Sets: []cache.SetUpdate{{
			Name: cache.Wildcard, Extent: cache.Whole, Changes: []cache.Change{is("m", "1"), is("n", "1"), is("o", "1")},
		}}})
		before.Apply(cache.Update{Scope: scope, TypeURL: routeType, Server: testCP, Sets: []cache.SetUpdate{{
			Name: cache.Wildcard, Extent: cache.Whole, Changes: []cache.Change{is("m", "2"), is("n", "1")},
		}}})
		before.close()
		k := newKept(t, path)
		defer k.close()
		test(k)
	})
}

func TestAControlPlanesOwnWordComesFirst(t *testing.T) {
	afterARestart(t, func(k *kept) {
		k.watch("a", "b")
		<-time.After(testWait - time.Millisecond)
		k.expect("before wait has passed", map[string]string{"a": "", "b": ""})
		k.says(is("a", "2"))
		<-time.After(2 * time.Millisecond)
		k.expect("when it has", map[string]string{"a": "2", "b": "~1"})
		if k.Stale() != 1 {
			t.Errorf("%d topics are stale, want 1", k.Stale())
		}
		k.says(is("b", "1"))
		k.expect("when the control plane has said that it is so", map[string]string{"b": "1"})
		if k.Stale() != 0 {
			t.Errorf("%d topics are stale, want none", k.Stale())
		}
	})
}

func TestErrorsOfWhatIsStoredWait(t *testing.T) {
	afterARestart(t, func(k *kept) {
		k.watch("a", "gone", "never")
		k.fails("a", "gone", "never")
		k.expect("at once", map[string]string{"a": "", "gone": "error", "never": "error"})
		<-time.After(testWait)
		k.expect("when wait has passed", map[string]string{"a": "~1", "gone": "error", "never": "error"})
		k.fails("a")
		k.expect("after the next attempt", map[string]string{"a": "~1"})
		// Who comes later need not wait: it is known that the control plane is away.
		k.watch("b")
		k.expect("later", map[string]string{"b": "~1"})
		k.says(cache.Change{Name: "a", Gone: true})
		k.expect("when the control plane is back", map[string]string{"a": "absent"})
	})
}

func TestAnErrorOfTheControlPlanesOwnIsNotReplaced(t *testing.T) {
	afterARestart(t, func(k *kept) {
		k.watch("a")
		k.says(cache.Change{Name: "a", Err: &cache.Error{Code: codes.PermissionDenied}})
		<-time.After(2 * testWait)
		k.expect("when wait has passed", map[string]string{"a": "error"})
	})
}

func TestATopicThatBeginsWhileTheControlPlaneIsThereWaitsToo(t *testing.T) {
	afterARestart(t, func(k *kept) {
		k.watch("b")
		k.says(is("b", "2"))
		<-time.After(time.Hour)
		k.watch("a")
		<-time.After(testWait - time.Millisecond)
		k.expect("before wait has passed", map[string]string{"a": ""})
		<-time.After(2 * time.Millisecond)
		k.expect("when it has", map[string]string{"a": "~1"})
	})
}

func TestAnotherWaitHoldsForTopicsThatWait(t *testing.T) {
	afterARestart(t, func(k *kept) {
		k.watch("a")
		<-time.After(testWait - time.Millisecond)
		k.wait.Store(int64(time.Hour))
		k.Wake()
		<-time.After(time.Minute)
		k.expect("with a longer wait", map[string]string{"a": ""})
		k.wait.Store(int64(time.Minute))
		k.Wake()
		k.expect("with a shorter one", map[string]string{"a": "~1"})
	})
}

// What was stored of a set removes nothing from clients that come back.
// What the cache had from before the store is stored with the first answers, though they change nothing.
func TestWhatTheCacheHadBeforeIsStored(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		k := newKept(t, filepath.Join(dir, "db"))
		wildcard := cache.Update{Scope: scope, TypeURL: routeType, Server: testCP, Sets: []cache.SetUpdate{{
			Name: cache.Wildcard, Extent: cache.Whole, Changes: []cache.Change{is("m", "1"), is("n", "1")},
		}}}
		k.watch("a", "b", cache.Wildcard)
		k.says(is("a", "1"), is("b", "1"))
		k.Apply(wildcard)
		// Another store, and another keeper over the same topics, as after a reload.
		k.Close()
		closed(t, k.store)
		o := (&fake{}).options()
		o.Contents, o.Watched = k.cache.Contents, k.cache.Has
		k.store = open(t, filepath.Join(dir, "other"), o)
		k.Keeper = NewKeeper(k.store, scope, k.cache, k.opts)
		for _, name := range []string{"a", "b", cache.Wildcard} {
			k.Start(entry(name))
		}
		k.says(is("a", "1"))
		k.store.Flush(time.Minute)
		if k.store.Entry(entry("a")) == nil || k.store.Entry(entry("b")) != nil || k.store.Set(entry(cache.Wildcard)).Record != nil {
			t.Error("what is stored is not what was answered")
		}
		// The first part of an answer: the cache has the rest from before.
		first := wildcard
		first.Sets = []cache.SetUpdate{{Name: cache.Wildcard, Extent: cache.Begins, Changes: []cache.Change{is("m", "1")}}}
		k.Apply(first)
		k.store.Flush(time.Minute)
		if set := k.store.Set(entry(cache.Wildcard)); !set.Whole() || len(set.Members) != 2 {
			t.Errorf("%d members are stored, whole: %t", len(set.Members), set.Whole())
		}
		k.Apply(cache.Update{Scope: scope, TypeURL: routeType, Server: testCP, Sets: []cache.SetUpdate{{Name: cache.Wildcard, Extent: cache.Whole, Changes: []cache.Change{is("m", "1")}}}})
		k.store.Flush(time.Minute)
		if set := k.store.Set(entry(cache.Wildcard)); !set.Whole() || len(set.Members) != 1 {
			t.Errorf("%d members are stored after a removal, whole: %t", len(set.Members), set.Whole())
		}
		written := k.store.Stats().Written
		k.says(is("a", "1"))
		k.Apply(wildcard)
		k.Apply(wildcard)
		k.store.Flush(time.Minute)
		if got := k.store.Stats().Written; got != written+1 { // n, once
			t.Errorf("%d records were written for answers of which one was new", got-written)
		}
		k.cache.Close()
		k.Close()
		closed(t, k.store)
	})
}

func TestAStoredSetIsServedAndIsNotAll(t *testing.T) {
	afterARestart(t, func(k *kept) {
		set := k.set()
		<-time.After(testWait)
		synctest.Wait()
		if set.Len() != 2 || set.Member("m").Version() != "2" || set.Member("o") != nil || !set.Stale() || !set.Incomplete() {
			t.Errorf("the set has %d members; stale: %t, incomplete: %t", set.Len(), set.Stale(), set.Incomplete())
		}
		k.Apply(cache.Update{Scope: scope, TypeURL: routeType, Server: testCP, Sets: []cache.SetUpdate{{
			Name: cache.Wildcard, Extent: cache.Whole, Changes: []cache.Change{is("m", "2")},
		}}})
		if set.Len() != 1 || set.Stale() || set.Incomplete() {
			t.Errorf("then it has %d members; stale: %t, incomplete: %t", set.Len(), set.Stale(), set.Incomplete())
		}
		<-time.After(time.Second)
		if got := versions(k.store.Set(wildcard())); len(got) != 1 {
			t.Errorf("stored are %v", got)
		}
	})
}

// What a control plane has said of a name counts for a stored set that has it, also if it is not
// written yet when a client requests the set.
func TestAStoredSetHasEarlierChangesOfItsNames(t *testing.T) {
	afterARestart(t, func(k *kept) {
		k.watch("m")
		k.says(is("m", "3"))
		set := k.set()
		k.Recall(testCP, false)(wildcard(), func(string, *cache.Resource) {}) // looks into the store
		<-time.After(testWait)
		synctest.Wait()
		if got := set.Member("m").Version(); got != "3" {
			t.Errorf("the set has m in version %q, want 3", got)
		}
	})
}

// Versions are those of the server that gave them.
func TestWhatIsRecalledIsOfTheSameServer(t *testing.T) {
	afterARestart(t, func(k *kept) {
		k.watch("a", cache.Wildcard)
		recalled := func(server string, others bool) (n int) {
			for _, name := range []string{"a", cache.Wildcard} {
				k.Recall(server, others)(entry(name), func(string, *cache.Resource) { n++ })
			}
			return n
		}
		if n := recalled(testCP, false); n != 3 {
			t.Errorf("%d resources are recalled of the server, want 3", n)
		}
		if n := recalled("other:1", false); n != 0 {
			t.Errorf("%d resources are recalled of another server, want none", n)
		}
		if n := recalled("other:1", true); n != 3 {
			t.Errorf("%d resources are recalled of another server with the same versions, want 3", n)
		}
	})
}
