package downstream

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// outlivesACollection checks that a value which clients have just shared is kept though Go collects garbage, so that no
// client follows a weak pointer (see package recent), and that it goes when no client uses it any more.
func outlivesACollection[T any](t *testing.T, shared func() *T) {
	t.Helper()
	is := weak.Make(shared())
	runtime.GC()
	runtime.GC()
	if is.Value() == nil {
		t.Error("it has gone in a collection, while clients receive it")
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	runtime.GC()
	if is.Value() != nil {
		t.Error("it is still there a minute later")
	}
}

func TestNewsOfAGroupOutliveACollection(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topics := cache.New(silentSource{}, cache.Options{})
				defer topics.Close()
				server, _ := newTestServer(topics, DefaultMaxResponseBytes)
				for range 2 {
					c := newGroupClient(server, form)
					defer c.close()
					c.asks(t, []string{"a", "b"}, nil)
				}
				topics.Apply(cache.Update{TypeURL: endpointType, Scope: oldStyleScope(""), Changes: []cache.Change{
					{Name: "a", Resource: newTestResource(endpointType, "a", "1", "one")}, {Name: "b", Resource: newTestResource(endpointType, "b", "1", "one")},
				}})
				g := onlyGroup(t, server)
				outlivesACollection(t, func() *session.News {
					n := g.NewsSince(session.Position{}, false)
					if len(n.Names) != 2 {
						t.Fatalf("%d names are new", len(n.Names))
					}
					return n
				})
			})
		})
	}
}

// Clients that wait for an answer were sent everything up to different changes. What is news to them is still put together
// once for all that wait at one.
func TestClientsThatWaitShareTheirNews(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			topics := newTestCache(silentSource{}, 1<<20)
			defer topics.Close()
			server, _ := newTestServer(topics, DefaultMaxResponseBytes)
			for range 2 {
				c := newGroupClient(server, form)
				defer c.close()
				c.asks(t, []string{"a", "b"}, nil)
			}
			g := onlyGroup(t, server)
			var waiting []session.Position
			for round := range 3 {
				waiting = append(waiting, g.Newest(false))
				topics.Apply(cache.Update{TypeURL: endpointType, Scope: oldStyleScope(""), Changes: []cache.Change{
					{Name: "a", Resource: newTestResource(endpointType, "a", "1", fmt.Sprint(round))},
				}})
			}
			seen := map[session.Position]*session.News{}
			for range 3 {
				for _, at := range waiting {
					n := g.NewsSince(at, false)
					if before := seen[at]; before != nil && before != n {
						t.Errorf("the news since %v were put together twice", at)
					}
					seen[at] = n
				}
			}
		})
	}
}

// onlyGroup returns the server's group.
func onlyGroup(t *testing.T, server *Server) *watchGroup {
	t.Helper()
	for _, known := range server.lists.known {
		if list := known.Value(); list != nil && len(list.groups) > 0 {
			return list.groups[0]
		}
	}
	t.Fatal("the clients are no group")
	return nil
}

func TestBatchesOutliveACollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j batches
		parts := session.Parts{}
		size := 0
		for _, name := range []string{"a", "b"} {
			size += parts.Add(newTestResource(endpointType, name, "1", "one"), 0, true)
		}
		outlivesACollection(t, func() (is *batch) {
			for range 2 {
				j.Join(parts, true, size)
			}
			j.mu.Lock()
			defer j.mu.Unlock()
			for _, v := range j.sent {
				is = v.Get()
			}
			if is == nil {
				t.Fatal("the resources are not joined")
			}
			return is
		})
	})
}
