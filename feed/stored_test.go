package feed

import (
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/failover"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/store"
)

// kept is a feed with a store in which a and the set * with m and n are. It has a server that says what the test says.
type kept struct {
	*Feed
	store *store.Store
	cache *cache.Cache
	link  *Link
	t     *testing.T
	wait  *atomic.Int64 // as in KeeperOptions
}

const (
	testWait  = 5 * time.Second
	testCP    = "cp:1"
	routeType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

var scope = cache.Scope{Authority: "cp", OldStyle: true, Partition: "edge"}

func entry(name string) cache.Key { return cache.Key{Scope: scope, TypeURL: routeType, Name: name} }

func wildcard() cache.Key { return entry(cache.Wildcard) }

func resource(name, version string) *cache.Resource {
	return cache.NewResource(cache.Spec{
		Name: name, Version: version, TypeURL: routeType, Value: append([]byte{0x0a, byte(len(name))}, name...),
	})
}

// versions returns what a set has, by the members' keys.
func versions(set *store.Set) map[string]string {
	all := map[string]string{}
	for _, r := range set.Members {
		all[r.Member] = r.Resource.Version()
	}
	return all
}

func openStore(t *testing.T, path string, c *cache.Cache) *store.Store {
	t.Helper()
	s, err := store.Open(path, store.Options{Contents: c.Contents, Watched: c.Has, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t *testing.T, s *store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// newKept returns a relay that has just been started.
func newKept(t *testing.T, path string) *kept {
	t.Helper()
	source := &lateSource{}
	c := cache.New(source, cache.Options{Linger: time.Hour, IdleEntries: 10})
	k := &kept{store: openStore(t, path, c), cache: c, t: t, wait: new(atomic.Int64)}
	k.wait.Store(int64(testWait))
	k.open(time.Now())
	source.Feed = k.Feed
	return k
}

// open opens the feed.
func (k *kept) open(started time.Time) {
	k.Feed = New(Options{
		Cache: k.cache, Reachability: NewReachability(), Log: slog.New(slog.DiscardHandler), Guard: noGuard, Store: k.store,
		StoreWaits: store.KeeperOptions{Started: started, Wait: func() time.Duration { return time.Duration(k.wait.Load()) }},
		Servers: Servers{Scope: scope, Names: []string{testCP}, Failover: failover.Options{Timeout: time.Hour}, Open: func(_ int, to *Link) Source {
			k.link = to
			return quietFeed{done: make(chan struct{})}
		}},
	})
}

func (k *kept) close() {
	k.cache.Close()
	k.Close()
	closeStore(k.t, k.store)
}

// Apply is what the server says.
func (k *kept) Apply(updates ...cache.Update) {
	k.link.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: updates}})
}

// watch has clients ask for names.
func (k *kept) watch(names ...string) {
	for _, name := range names {
		if entry(name).IsSet() {
			k.cache.WatchSet(entry(name), new(setWatch))
		} else {
			k.cache.Watch(entry(name), new(nameWatch))
		}
	}
}

// has returns the version that clients have under a name, with ~ before it if it is stale; "" for
// none, "error", or "absent".
func (k *kept) has(name string) string {
	e, _ := k.cache.Watch(entry(name), new(nameWatch))
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

func (k *kept) set() *cache.Set { return k.cache.WatchSet(wildcard(), new(setWatch)) }

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
		closeStore(t, k.store)
		k.store = openStore(t, filepath.Join(dir, "other"), k.cache)
		k.open(time.Now())
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
		closeStore(t, k.store)
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
		k.link.Recall(testCP, false)(wildcard(), func(string, *cache.Resource) {}) // looks into the store
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
				k.link.Recall(server, others)(entry(name), func(string, *cache.Resource) { n++ })
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

// If a control plane answers for names but not for their set, these answers count for the set's members.
func TestAStoredSetHasAnswersForItsNames(t *testing.T) {
	afterARestart(t, func(k *kept) {
		k.watch("m", "n", "new")
		set := k.set()
		expect := func(when, m, n string) {
			t.Helper()
			synctest.Wait()
			for name, want := range map[string]string{"m": m, "n": n, "new": ""} {
				got := ""
				if r := set.Member(name); r != nil {
					got = r.Version()
				}
				if got != want {
					t.Errorf("%s: %s has version %q, want %q", when, name, got, want)
				}
			}
		}
		recalled := map[string]string{}
		recall := func() {
			clear(recalled)
			k.link.Recall(testCP, false)(entry(cache.Wildcard), func(name string, r *cache.Resource) { recalled[name] = r.Version() })
		}
		recall()
		k.says(is("m", "3"), is("new", "1"), cache.Change{Name: "n", Gone: true})
		if recall(); len(recalled) != 1 || recalled["m"] != "3" {
			t.Errorf("the set is recalled as %v", recalled)
		}
		k.store.Flush(time.Minute) // so that the store has no such member when it is back
		k.says(is("n", "1"))
		expect("before the wait is over", "", "")
		<-time.After(testWait)
		expect("from the store", "3", "1")
		k.says(is("m", "4"), cache.Change{Name: "n", Gone: true})
		expect("later", "4", "")
		if !set.Stale() || !set.Incomplete() {
			t.Errorf("stale: %t, incomplete: %t, though the control plane has not answered", set.Stale(), set.Incomplete())
		}
	})
	afterARestart(t, func(k *kept) {
		k.watch("n")
		set := k.set()
		k.says(cache.Change{Name: "n", Gone: true})
		<-time.After(testWait)
		synctest.Wait()
		if set.Len() != 1 || set.Member("n") != nil {
			t.Errorf("the set has %d members, also one that is gone", set.Len())
		}
	})
}
