package feed

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/delivery"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// corridorStep is a step of the property test.
type corridorStep struct {
	kind, server, wait int
	names              []int // of a delivery: those that are there, or change
	gone               []int
	extent             cache.Extent
}

// TestClientsHaveWhatAServerSaid: for any deliveries of two servers, failures, reloads and restarts, with every stage on,
// clients never have what no server said, nor what only a closed link said; what a server has and clients had stays; no
// update has a type before one that it refers to; and in the end clients have exactly what the server has.
func TestClientsHaveWhatAServerSaid(t *testing.T) {
	numbers := rapid.SliceOfNDistinct(rapid.IntRange(0, 5), 0, 6, rapid.ID[int])
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) corridorStep {
			return corridorStep{
				kind: rapid.IntRange(0, 9).Draw(rt, "kind"), server: rapid.IntRange(0, 1).Draw(rt, "server"),
				wait:  rapid.SampledFrom([]int{0, 0, 1, 7, 30, 70}).Draw(rt, "wait"),
				names: numbers.Draw(rt, "names"), gone: numbers.Draw(rt, "gone"),
				extent: rapid.SampledFrom([]cache.Extent{cache.Some, cache.Whole, cache.Begins, cache.Ends}).Draw(rt, "extent"),
			}
		}), 1, 15).Draw(rt, "steps")
		runs++
		path := filepath.Join(dir, fmt.Sprint(runs))
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = newCorridor(t, path).play(steps) })
		_ = os.Remove(path)
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// corridor is a world with a model of what the servers have.
type corridor struct {
	t    *testing.T
	path string
	*everyWorld
	version int
	// has is what each server has, and known whether it has said all of it on its link.
	has   [2]map[string]string
	known [2]bool
	begun [2]map[string]bool // what the beginning of an answer has not named yet
	said  map[string]bool    // name and version that open links said
	wrong string
}

func newCorridor(t *testing.T, path string) *corridor {
	c := &corridor{t: t, path: path, said: map[string]bool{}, has: [2]map[string]string{{}, {}}}
	c.start()
	return c
}

// orderedCache checks the order of types.
type orderedCache struct {
	*cache.Cache
	of *corridor
}

func (c orderedCache) Apply(updates ...cache.Update) {
	last := ""
	for i := range updates {
		if updates[i].TypeURL < last { // clusters before listeners
			c.of.wrong = "a listener before a cluster"
		}
		last = updates[i].TypeURL
	}
	c.Cache.Apply(updates...)
}

func (c *corridor) start() {
	c.everyWorld = newEveryWorld(c.t, c.path, slog.New(slog.DiscardHandler), 0, func(in Cache) Cache { return orderedCache{in.(*cache.Cache), c} })
	c.known, c.begun = [2]bool{}, [2]map[string]bool{}
	for typ := range everyTypes {
		c.watch(every(typ, cache.Wildcard))
	}
	c.member, _ = c.gates.Join(someScope, gate.Client{
		Node: "client", Cohort: "all", Who: "client", Eligible: true, Wake: func() {}, CohortNow: func(cache.Scope) string { return "all" },
	})
	c.member.Settled()
	synctest.Wait()
}

func (c *corridor) stop() {
	c.cache.Close()
	c.Feed.Close()
	c.gates.Closed(someScope)
	c.gates.Close()
	closeStore(c.t, c.store)
}

var serverNames = [2]string{"a", "b"}

// deliver is a delivery of a server, of two types.
func (c *corridor) deliver(link *Link, server int, s corridorStep, open bool) {
	answer := cache.LaterAnswer
	if !c.known[server] {
		answer, c.known[server] = cache.FirstAnswer, true
		if s.extent == cache.Some || s.extent == cache.Ends {
			s.extent = cache.Whole
		}
	}
	if s.extent == cache.Ends && c.begun[server] == nil {
		s.extent = cache.Some
	}
	var changes []func(typeURL string) cache.Change
	named := map[string]bool{}
	has := maps.Clone(c.has[server])
	for _, n := range s.names {
		name := fmt.Sprint("r", n)
		c.version++
		version := fmt.Sprint(c.version)
		if v := has[name]; v != "" && n%2 == 0 {
			version = v // it is as it was
		}
		has[name], named[name] = version, true
		changes = append(changes, func(typeURL string) cache.Change {
			return cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: version, TypeURL: typeURL, Value: []byte("\x0a\x02" + name + "\x12\x01" + version)})}
		})
	}
	for _, n := range s.gone {
		if name := fmt.Sprint("r", n); !named[name] && !s.extent.Full() && has[name] != "" {
			delete(has, name)
			changes = append(changes, func(string) cache.Change { return cache.Change{Name: name, Gone: true} })
			named[name] = true
		}
	}
	for name := range named {
		delete(c.begun[server], name)
	}
	switch s.extent {
	case cache.Whole:
		maps.DeleteFunc(has, func(name, _ string) bool { return !named[name] })
		c.begun[server] = nil
	case cache.Begins:
		c.begun[server] = map[string]bool{}
		for name := range has {
			if !named[name] {
				c.begun[server][name] = true
			}
		}
	case cache.Ends:
		for name := range c.begun[server] {
			delete(has, name)
		}
		c.begun[server] = nil
	case cache.Some:
	}
	var types []cache.Update
	for _, typ := range []string{"listener", "cluster"} {
		u := cache.Update{Scope: someScope, TypeURL: everyTypes[typ], Server: serverNames[server]}
		set := cache.SetUpdate{Name: cache.Wildcard, Extent: s.extent, Answer: answer}
		for _, change := range changes {
			set.Changes = append(set.Changes, change(u.TypeURL))
		}
		u.Sets = []cache.SetUpdate{set}
		types = append(types, u)
	}
	cache.InOrder(types)
	if open {
		c.has[server] = has
		for name, version := range has {
			c.said[name+" "+version] = true
		}
	}
	link.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: types}})
	synctest.Wait()
}

func (c *corridor) play(steps []corridorStep) string {
	defer func() { c.stop() }()
	for i, s := range steps {
		<-time.After(time.Duration(s.wait) * time.Second)
		synctest.Wait()
		link := c.link(serverNames[s.server])
		if link == nil {
			s.server, link = 0, c.link("a")
		}
		switch s.kind {
		case 0:
			link.Deliver(delivery.Event{Kind: delivery.Lost, Reason: "lost"})
			c.known[s.server], c.begun[s.server] = false, nil
		case 1:
			link.Deliver(delivery.Event{Kind: delivery.Failed, Reason: "failed"})
			c.known[s.server], c.begun[s.server] = false, nil
		case 2:
			if c.member.Showing() != 0 {
				c.member.Sent(c.member.Showing())
				c.member.Acked(c.member.Showing())
			}
		case 3: // a restart
			c.stop()
			c.start()
			if closed := link; closed != nil {
				c.deliver(closed, s.server, s, false) // of a closed epoch
			}
			c.known = [2]bool{}
		default:
			link.Deliver(delivery.Event{Kind: delivery.Responded})
			c.deliver(c.link(serverNames[s.server]), s.server, s, true)
		}
		synctest.Wait()
		if c.wrong != "" {
			return fmt.Sprintf("after step %d: %s", i, c.wrong)
		}
		for typ := range everyTypes {
			for name, version := range c.content(every(typ, cache.Wildcard)) {
				if name != "*" && !c.said[name+" "+version] {
					return fmt.Sprintf("after step %d: clients have %s %s, which no server said", i, name, version)
				}
			}
		}
	}
	// The first server is back, and says everything.
	link := c.link("a")
	link.Deliver(delivery.Event{Kind: delivery.Responded})
	<-time.After(10 * time.Second)
	synctest.Wait()
	c.known[0] = false
	c.deliver(c.link("a"), 0, corridorStep{names: []int{0, 2, 4}, extent: cache.Whole}, true)
	for range 6 {
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if c.member.Showing() != 0 {
			c.member.Sent(c.member.Showing())
			c.member.Acked(c.member.Showing())
		}
		synctest.Wait()
	}
	for typ := range everyTypes {
		if got, want := printed(c.content(every(typ, cache.Wildcard))), printed(c.has[0]); got != want {
			return fmt.Sprintf("in the end clients have %q of %s, and the server has %q", got, typ, want)
		}
	}
	return ""
}
