package downstream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

// subscribedUpstream is a source that knows which names it gives. It is called with the topics of their scope locked.
type subscribedUpstream struct{ names map[string]bool }

func (u *subscribedUpstream) Start(k cache.Key) { u.names[k.Name] = true }
func (u *subscribedUpstream) Refresh(cache.Key) {}
func (u *subscribedUpstream) Stop(k cache.Key)  { delete(u.names, k.Name) }

// settle ends the linger time of all topics: of the topics that no one watches, the cache keeps the last one only.
func (u *subscribedUpstream) settle(c *cache.Cache) {
	k := cache.Key{Scope: cache.Scope{Authority: "another"}, TypeURL: endpointType, Name: "the last"}
	w := &cache.Watch{Group: &cache.WatchGroup{}}
	c.WatchInGroup(k, w)
	c.Unwatch(w)
	delete(u.names, k.Name)
}

// TestAGroupIsSubscribedToWhatItsClientsAre: whatever the clients of groups unsubscribe from, one by one or together,
// whoever leaves or comes, and whatever becomes of the names: once nothing lingers, the relay is subscribed upstream to
// the names to which a client subscribes, and to no others.
func TestAGroupIsSubscribedToWhatItsClientsAre(t *testing.T) {
	shared, dropped := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		up := &subscribedUpstream{names: map[string]bool{}}
		c := newTestCache(up, 1)
		defer c.Close()
		server, _ := newTestServer(c, DefaultMaxResponseBytes)
		names := []string{"a", "b", "c", "d"}
		var clients []*groupClient
		defer func() {
			for _, cl := range clients {
				cl.close()
			}
		}()
		one := func(t *rapid.T) *groupClient {
			if len(clients) == 0 {
				t.Skip("there is no client")
			}
			return rapid.SampledFrom(clients).Draw(t, "client")
		}
		some := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, len(names), rapid.ID[string])
		drop := func(t *rapid.T, cl *groupClient, drop []string) {
			drop = slices.DeleteFunc(slices.Clone(drop), func(name string) bool { return !slices.Contains(cl.names, name) })
			if len(drop) > 0 && (cl.st.form == deltaForm.name || len(drop) < len(cl.names)) {
				cl.asks(t, nil, drop)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"comes": func(t *rapid.T) {
				cl := newGroupClient(server, rapid.SampledFrom([]string{deltaForm.name, deltaForm.name, sotwForm.name}).Draw(t, "form"))
				cl.asks(t, names, nil)
				clients = append(clients, cl)
			},
			"leaves": func(t *rapid.T) {
				cl := one(t)
				cl.close()
				clients = slices.DeleteFunc(clients, func(o *groupClient) bool { return o == cl })
			},
			"unsubscribes": func(t *rapid.T) { drop(t, one(t), some.Draw(t, "names")) },
			"all unsubscribe": func(t *rapid.T) {
				gone := some.Draw(t, "names")
				for _, cl := range rapid.Permutation(clients).Draw(t, "order") {
					drop(t, cl, gone)
				}
			},
			"subscribes again": func(t *rapid.T) { one(t).asks(t, some.Draw(t, "names"), nil) },
			"changes": func(t *rapid.T) {
				n := rapid.SampledFrom(names).Draw(t, "name")
				change := cache.Change{Name: n, Gone: true}
				if rapid.Bool().Draw(t, "exists") {
					change = cache.Change{Name: n, Resource: newTestResource(endpointType, n, "", rapid.SampledFrom([]string{"x", "y"}).Draw(t, "content"))}
				}
				c.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType, Changes: []cache.Change{change}})
			},
			"all read": func(t *rapid.T) {
				for _, cl := range clients {
					cl.reads(t, false)
				}
			},
			"": func(t *rapid.T) {
				up.settle(c)
				want := map[string]bool{}
				for _, cl := range clients {
					for _, name := range cl.names {
						want[name] = true
					}
					if cl.shares() {
						shared++
					}
				}
				if len(clients) > 0 && len(want) < len(names) {
					dropped++
				}
				if !maps.Equal(up.names, want) {
					t.Fatalf("the relay is subscribed upstream to %v, and its clients to %v",
						slices.Sorted(maps.Keys(up.names)), slices.Sorted(maps.Keys(want)))
				}
			},
		})
	})
	if shared == 0 || dropped == 0 {
		t.Errorf("clients were in a group %d times, and a name was given up %d times, want some of both", shared, dropped)
	}
}

// wantCounts is a Prefetcher with one audience. It counts who wants each name.
type wantCounts struct{ names map[string]int }

func (w *wantCounts) Join(Names, []cache.Key, []cache.Scope) PrefetchAudience { return w }
func (w *wantCounts) Follows(string) bool                                     { return true }
func (w *wantCounts) Leave()                                                  {}
func (w *wantCounts) Want(k cache.Key)                                        { w.names[k.Name]++ }
func (w *wantCounts) Unwant(k cache.Key) {
	if w.names[k.Name]--; w.names[k.Name] == 0 {
		delete(w.names, k.Name)
	}
}

// TestWhatAGroupGaveUpIsNotPrefetched: what refers to other resources is not followed when no client of the group
// subscribes to it any more.
func TestWhatAGroupGaveUpIsNotPrefetched(t *testing.T) {
	c := newTestCache(silentSource{}, 1000)
	defer c.Close()
	server, _ := newTestServer(c, DefaultMaxResponseBytes)
	counts := &wantCounts{names: map[string]int{}}
	server.options.Prefetcher = counts
	come := func() *groupClient {
		cl := newGroupClient(server, deltaForm.name)
		cl.st.prefetch = &streamPrefetch{wants: map[cache.Key]int{}, groups: map[*watchGroup]struct{}{}, audience: counts}
		cl.asks(t, []string{"a", "b", "c"}, nil)
		return cl
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(counts.names)); !slices.Equal(got, want) {
			t.Errorf("%s: %v are followed, want %v", when, counts.names, want)
		}
	}
	come().close() // its list is known from the second time on
	one, two := come(), come()
	expect("two clients", "a", "b", "c")
	one.asks(t, nil, []string{"b", "c"})
	expect("one has unsubscribed from b and c", "a", "b", "c")
	two.asks(t, nil, []string{"b"})
	expect("both have unsubscribed from b", "a", "c")
	three := come()
	if !three.shares() {
		t.Fatal("the third client is in no group")
	}
	expect("a third client", "a", "b", "c")
	three.close()
	expect("it has left", "a", "c")
	two.close()
	expect("the second has left", "a")
	one.close()
	expect("all have left")
}

// TestClientsOfAGroupUnsubscribeAtOnce: clients come, unsubscribe, subscribe again and leave at the same time, while the
// resources change. In the end each client has what there is, and the relay is subscribed upstream to what clients are.
func TestClientsOfAGroupUnsubscribeAtOnce(t *testing.T) {
	const clients, steps = 6, 150
	up := &subscribedUpstream{names: map[string]bool{}}
	c := newTestCache(up, 1)
	defer c.Close()
	server, _ := newTestServer(c, DefaultMaxResponseBytes)
	names := []string{"a", "b", "c"}
	put := func(content string, names ...string) {
		u := cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType}
		for _, name := range names {
			u.Changes = append(u.Changes, cache.Change{Name: name, Resource: newTestResource(endpointType, name, "", content)})
		}
		c.Apply(u)
	}
	var all [clients]*groupClient
	var running sync.WaitGroup
	for i := range all {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		come := func() {
			all[i] = newGroupClient(server, deltaForm.name)
			all[i].missed = minLog // it does not see what it misses
			all[i].asks(t, names, nil)
		}
		come()
		running.Go(func() {
			for step := range steps {
				cl, name := all[i], names[rng.IntN(len(names))]
				switch rng.IntN(8) {
				case 0:
					cl.close()
					come()
				case 1:
					cl.asks(t, []string{name}, nil)
				case 2:
					put(fmt.Sprint(i, " ", step), name)
				case 3:
					cl.Wake() // an update may be stored already, and not have woken the client yet
					cl.reads(t, false)
					cl.missed = minLog
				default:
					if slices.Contains(cl.names, name) && len(cl.names) > 1 {
						cl.asks(t, nil, []string{name})
					}
				}
			}
		})
	}
	running.Wait()
	put("the last", names...)
	up.settle(c)
	want := map[string]bool{}
	for _, cl := range all {
		defer cl.close()
		cl.reads(t, false)
		for _, name := range cl.names {
			want[name] = true
			if !strings.HasPrefix(cl.has[name], "the last") {
				t.Errorf("a client has %q of %s", cl.has[name], name)
			}
		}
	}
	if !maps.Equal(up.names, want) {
		t.Errorf("the relay is subscribed upstream to %v, and its clients to %v", up.names, want)
	}
}
