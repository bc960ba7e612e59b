package feed

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// corridorStep is a step of the property test.
type corridorStep struct {
	kind, server, wait int
	names              []int // of a delivery: those that are there, or change
	gone               []int
	extent             cache.Extent
}

// TestClientsHaveWhatAServerSaid: for any deliveries of two servers, failures and restarts, with every stage on, clients
// never have what no active server said, nor what only a closed link said; nothing is served from the store after a
// server's complete answer; no update has a type before one that it refers to; and in the end clients have exactly what
// the active server has, which says only then what it has not said before.
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
		rollsOut := rapid.Bool().Draw(rt, "rolls out")
		runs++
		path := filepath.Join(dir, fmt.Sprint(runs))
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = newCorridor(t, path, rollsOut).play(steps) })
		_ = os.Remove(path)
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// corridor is a world with a model of what the servers have.
type corridor struct {
	t        *testing.T
	path     string
	rollsOut bool
	*everyWorld
	version int
	// has is what each server has, and known whether it has said all of it on its link.
	has   [2]map[string]string
	known [2]bool
	begun [2]map[string]bool // what the beginning of an answer has not named yet
	said  map[string]bool    // name and version that open links of active servers said
	// answered: an active server has given a complete answer since the start.
	answered bool
	stored   map[string]string // what clients had of clusters before the restart
	wrong    string
	turn     sync.Mutex // see after
}

// after orders what a timer does after what the test has done before it waited. Bubbles do so, but the race detector
// does not know it.
func (c *corridor) after() {
	c.turn.Lock()
	defer c.turn.Unlock()
}

// restating is a source that says everything that its server has said, once more.
type restating struct {
	quietFeed
	restate func()
}

// Resend implements Source.
func (s restating) Resend() { go s.restate() }

func newCorridor(t *testing.T, path string, rollsOut bool) *corridor {
	c := &corridor{t: t, path: path, rollsOut: rollsOut, said: map[string]bool{}, has: [2]map[string]string{{}, {}}}
	c.start()
	return c
}

// orderedCache checks the order of types.
type orderedCache struct {
	*cache.Cache
	of *corridor
}

func (c orderedCache) Apply(updates ...cache.Update) {
	c.of.after()
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
	c.known, c.begun, c.answered = [2]bool{}, [2]map[string]bool{}, false
	if !c.rollsOut {
		c.Rollout = nil
	}
	open := c.Servers.Open
	c.Servers.Open = func(i int, to *Link) Source {
		return restating{open(i, to).(quietFeed), func() { c.restate(to, i) }}
	}
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
	mentioned := map[string]bool{}
	has := maps.Clone(c.has[server])
	for _, n := range s.names {
		name := fmt.Sprint("r", n)
		c.version++
		version := fmt.Sprint(c.version)
		if v := has[name]; v != "" && n%2 == 0 {
			version = v // it is as it was
		}
		has[name], mentioned[name] = version, true
		changes = append(changes, func(typeURL string) cache.Change {
			return named(name, version, typeURL)
		})
	}
	for _, n := range s.gone {
		if name := fmt.Sprint("r", n); !mentioned[name] && !s.extent.Full() && has[name] != "" {
			delete(has, name)
			changes = append(changes, func(string) cache.Change { return cache.Change{Name: name, Gone: true} })
			mentioned[name] = true
		}
	}
	for name := range mentioned {
		delete(c.begun[server], name)
	}
	switch s.extent {
	case cache.Whole:
		maps.DeleteFunc(has, func(name, _ string) bool { return !mentioned[name] })
		c.begun[server] = nil
	case cache.Begins:
		c.begun[server] = map[string]bool{}
		for name := range has {
			if !mentioned[name] {
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
	if open {
		c.has[server] = has
	}
	c.say(link, server, s.extent, answer, open, changes)
	synctest.Wait()
}

// say delivers changes of both types.
func (c *corridor) say(link *Link, server int, extent cache.Extent, answer cache.Answer, open bool, changes []func(typeURL string) cache.Change) {
	var types []cache.Update
	for _, typ := range []string{"listener", "cluster"} {
		u := cache.Update{Scope: someScope, TypeURL: everyTypes[typ], Server: serverNames[server]}
		set := cache.SetUpdate{Name: cache.Wildcard, Extent: extent, Answer: answer}
		for _, change := range changes {
			set.Changes = append(set.Changes, change(u.TypeURL))
		}
		u.Sets = []cache.SetUpdate{set}
		types = append(types, u)
	}
	cache.InOrder(types)
	if open && c.isActive(server) {
		for name, version := range c.has[server] {
			c.said[name+" "+version] = true
		}
		c.answered = c.answered || extent.Completes()
	}
	link.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: types}})
}

// restate says everything that a server has said on its stream, once more.
func (c *corridor) restate(link *Link, server int) {
	c.after()
	if !c.known[server] {
		return
	}
	extent := cache.Whole
	if c.begun[server] != nil {
		extent = cache.Begins
	}
	var changes []func(typeURL string) cache.Change
	for _, name := range slices.Sorted(maps.Keys(c.has[server])) {
		if version := c.has[server][name]; !c.begun[server][name] {
			changes = append(changes, func(typeURL string) cache.Change { return named(name, version, typeURL) })
		}
	}
	c.say(link, server, extent, cache.FirstAnswer, true, changes)
}

// named is a change of a resource.
func named(name, version, typeURL string) cache.Change {
	return cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{
		Name: name, Version: version, TypeURL: typeURL, Value: []byte("\x0a\x02" + name + "\x12\x01" + version),
	})}
}

// compare checks what clients of a known set have right after an answer of the active server: with a rollout, what they
// had before. Without one, at least half of it if it is a first answer, as the guard holds the rest.
func (c *corridor) compare(before, after map[string]string, first bool) {
	gone := 0
	for name := range before {
		if after[name] == "" {
			gone++
		}
	}
	switch {
	case c.rollsOut && !first && !maps.Equal(before, after):
		c.wrong = fmt.Sprintf("a change from %q to %q is not rolled out", printed(before), printed(after))
	case first && gone >= 2 && 2*gone >= len(before):
		c.wrong = fmt.Sprintf("after a first answer, %q is left of %q", printed(after), printed(before))
	}
}

func (c *corridor) isActive(server int) bool {
	for _, s := range c.Sources() {
		if s.Server == server {
			return s.Active
		}
	}
	return false
}

func (c *corridor) play(steps []corridorStep) string {
	defer func() { c.stop() }()
	for i, s := range steps {
		c.after()
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
			c.watch(every("cluster", fmt.Sprint("missing", i))) // otherwise no other server is needed
			link.Deliver(delivery.Event{Kind: delivery.Failed, Reason: "failed"})
			c.known[s.server], c.begun[s.server] = false, nil
		case 2:
			if c.member.Showing() != 0 {
				c.member.Sent(c.member.Showing())
				c.member.Acked(c.member.Showing())
			}
		case 3: // a restart
			if c.answered {
				c.stored = c.content(every("cluster", cache.Wildcard))
			}
			c.stop()
			c.start()
			if closed := link; closed != nil {
				c.deliver(closed, s.server, s, false) // of a closed epoch
			}
			c.known = [2]bool{}
		default:
			link.Deliver(delivery.Event{Kind: delivery.Responded})
			synctest.Wait()
			before, first := c.content(every("cluster", cache.Wildcard)), !c.known[s.server]
			known, counts := c.answered, c.isActive(s.server) && len(c.Held()) == 0 // what is held may be released now
			c.deliver(c.link(serverNames[s.server]), s.server, s, true)
			switch after := c.content(every("cluster", cache.Wildcard)); {
			case !counts:
			case known && before["*"] == "":
				c.compare(before, after, first)
			case !known && c.answered && first:
				c.compare(c.stored, after, true)
			}
		}
		synctest.Wait()
		if c.wrong != "" {
			return fmt.Sprintf("after step %d: %s", i, c.wrong)
		}
		for typ := range everyTypes {
			for name, version := range c.content(every(typ, cache.Wildcard)) {
				switch {
				case name == "*" && version == "stale" && c.answered:
					return fmt.Sprintf("after step %d: clients have what is stored, after an answer", i)
				case name != "*" && !c.said[name+" "+version]:
					return fmt.Sprintf("after step %d: clients have %s %s, which no active server said", i, name, version)
				}
			}
		}
	}
	// The first server is back. It says what it has not said yet.
	link := c.link("a")
	link.Deliver(delivery.Event{Kind: delivery.Responded})
	c.after()
	<-time.After(10 * time.Second)
	synctest.Wait()
	switch link = c.link("a"); {
	case !c.known[0]:
		c.deliver(link, 0, corridorStep{names: []int{0, 2, 4}, extent: cache.Whole}, true)
	case c.begun[0] != nil:
		c.deliver(link, 0, corridorStep{extent: cache.Ends}, true)
	}
	for range 6 {
		c.after()
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
