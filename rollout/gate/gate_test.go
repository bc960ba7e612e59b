package gate

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/rollout"
)

const testType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// sourceless is the source of a cache to which the test writes.
type sourceless struct{ c *Controller }

func (s *sourceless) Start(k cache.Key) {
	if k.Scope.New {
		s.c.Start(k)
	}
}
func (s *sourceless) Refresh(cache.Key) {}
func (s *sourceless) Stop(k cache.Key) {
	if k.Scope.New {
		s.c.Stop(k)
	}
}

// direct is a feed that has nothing below the gates but the cache.
type direct struct {
	sync.Mutex
	*cache.Cache
}

func (d *direct) Accept(updates []cache.Update)                        { d.Apply(updates...) }
func (*direct) Accepted(cache.Key, func(string, *cache.Resource)) bool { return false }

// through is the way of updates through the gates.
type through struct {
	c     *Controller
	below *direct
	of    *Options
}

func (t through) Apply(updates ...cache.Update) {
	t.below.Lock()
	defer t.below.Unlock()
	for i := range updates {
		for j := range updates[i].Sets {
			t.resolve(cache.Key{Scope: updates[i].Scope, TypeURL: updates[i].TypeURL, Name: updates[i].Sets[j].Name}, &updates[i].Sets[j])
		}
	}
	t.c.Apply(t.below, t.of, updates)
}

// resolve names what an update removes, as a feed does.
func (t through) resolve(k cache.Key, u *cache.SetUpdate) {
	if u.Extent != cache.Whole {
		return
	}
	gone := map[string]bool{}
	t.below.Contents(k, func(name string, _ *cache.Resource) { gone[name] = true })
	t.c.Added(k, func(name string) { gone[name] = true })
	for i := range u.Changes {
		delete(gone, u.Changes[i].Name)
	}
	for name := range gone {
		u.Changes = append(u.Changes, cache.Change{Name: name, Gone: true})
	}
	u.Explicit = true
}

type watcher struct{ cache.SetWatch }

func (*watcher) Changed() cache.Waker { return nil }

// fixture is a gate before a cache. The test plays the gate's goroutine.
type fixture struct {
	*rapid.T
	cache  *cache.Cache
	gate   *gate
	sink   through
	scope  cache.Scope
	set    *cache.Set // accepted
	newSet *cache.Set
	entry  *cache.Entry
	newOne *cache.Entry
	// source is the source's state, and accepted the accepted state.
	source, accepted map[string]string
	one, acceptedOne string
	version          int
	origin           *cache.OriginVersion
	settings         *Options // the newest
	typeURL          string
}

const oneName = "one"

func newFixture(t *rapid.T) *fixture { return newFixtureOf(t, testType) }

func newFixtureOf(t *rapid.T, typeURL string) *fixture {
	src := &sourceless{}
	c := cache.New(src, cache.Options{Linger: time.Hour, IdleEntries: 1000})
	o := &Options{
		Options:  rollout.Options{First: 1, Steps: []float64{0.5}, Soak: rollout.Time(time.Hour), Rejections: 1, Deaths: 1},
		RollsOut: func(string) bool { return true }, Grow: 1000,
	}
	f := &fixture{T: t, cache: c, scope: cache.Scope{Authority: "a", OldStyle: true}, origin: cache.NewOriginVersion("server", ""), source: map[string]string{}, accepted: map[string]string{}, settings: o, typeURL: typeURL}
	src.c = NewController(c, func(cache.Scope) *Options { return f.settings }, func(a string) string { return a }, slog.New(slog.DiscardHandler))
	src.c.Opened(f.scope, o)
	f.gate, f.sink = src.c.gates[f.scope], through{src.c, &direct{Cache: c}, o}
	close(f.gate.stop) // the test plays the goroutine
	<-f.gate.done
	set, one := cache.Key{Scope: f.scope, TypeURL: typeURL, Name: cache.Wildcard}, cache.Key{Scope: f.scope, TypeURL: typeURL, Name: oneName}
	f.set = c.WatchSet(set, &watcher{})
	f.entry, _ = c.Watch(one, &watcher{})
	set.Scope.New, one.Scope.New = true, true
	f.newSet = c.WatchSet(set, &watcher{})
	f.newOne, _ = c.Watch(one, &watcher{})
	return f
}

func (f *fixture) step() {
	_, after := f.gate.step()
	for _, do := range after {
		do()
	}
}

func resourceOf(name, content string) *cache.Resource {
	return cache.NewResource(cache.Spec{TypeURL: testType, Name: name, Version: content, Value: []byte(content)})
}

// send makes the source send its state, completely or in part.
func (f *fixture) send(full bool, changed ...string) {
	f.version++
	f.origin.Set(fmt.Sprint(f.version))
	u := cache.Update{Scope: f.scope, TypeURL: f.typeURL, Origin: f.origin}
	set := cache.SetUpdate{Name: cache.Wildcard, Extent: cache.WholeIf(full), Origin: f.origin}
	if full {
		changed = slices.Collect(maps.Keys(f.source))
	}
	for _, name := range changed {
		if content, ok := f.source[name]; ok {
			set.Changes = append(set.Changes, cache.Change{Name: name, Resource: resourceOf(name, content)})
		} else {
			set.Changes = append(set.Changes, cache.Change{Name: name, Gone: true})
		}
	}
	u.Sets = []cache.SetUpdate{set}
	one := cache.Change{Name: oneName, Gone: f.one == "", Origin: f.origin}
	if f.one != "" {
		one.Resource = resourceOf(oneName, f.one)
	}
	u.Changes = []cache.Change{one}
	f.sink.Apply(u)
	f.step()
}

func membersOf(s *cache.Set, c *cache.Cache) map[string]string {
	all := map[string]string{}
	c.Contents(s.Key(), func(key string, r *cache.Resource) { all[key] = r.Version() })
	return all
}

func contentOf(e *cache.Entry) string {
	if r := e.State().Resource; r != nil && e.State().Status == cache.Present {
		return r.Version()
	}
	return ""
}

func (f *fixture) check(accepted bool) {
	if accepted {
		f.accepted, f.acceptedOne = maps.Clone(f.source), f.one
	}
	if is := membersOf(f.set, f.cache); !maps.Equal(is, f.accepted) {
		f.Fatalf("accepted is %v, want %v", is, f.accepted)
	}
	if is := contentOf(f.entry); is != f.acceptedOne {
		f.Fatalf("accepted is %q, want %q", is, f.acceptedOne)
	}
	stays := xdstype.Of(f.typeURL).Referenced
	// The new side has the source's state, and removed resources of types to which others refer.
	want := maps.Clone(f.accepted)
	maps.Copy(want, f.source)
	if !stays {
		want = f.source
	}
	is := membersOf(f.newSet, f.cache)
	for name, content := range f.source {
		if is[name] != content {
			f.Fatalf("new is %v, the source has %v", is, f.source)
		}
	}
	for name := range is {
		if want[name] == "" {
			f.Fatalf("new is %v, the source has %v and accepted is %v", is, f.source, f.accepted)
		}
	}
	for name := range f.accepted {
		if stays && is[name] == "" {
			f.Fatalf("%s has gone from the new side before all are there", name)
		}
	}
	if one := contentOf(f.newOne); (f.one != "" || !stays) && one != f.one {
		f.Fatalf("new is %q, the source has %q", one, f.one)
	}
	// A version stands for one content.
	if v := f.set.Origin().String(); v != "" && !maps.Equal(f.accepted, f.source) && v == fmt.Sprint(f.version) {
		f.Fatalf("accepted is said to be version %s, which it is not", v)
	}
	pending := len(f.gate.pending.changes) > 0
	if same := maps.Equal(f.accepted, f.source) && f.acceptedOne == f.one; same == pending {
		f.Fatalf("pending is %v; the source has %v %q, accepted is %v %q", f.gate.pending.changes, f.source, f.one, f.accepted, f.acceptedOne)
	}
	if content, _ := f.gate.pending.content(); (content != "") != pending {
		f.Fatalf("the content is %q of %d changes", content, len(f.gate.pending.changes))
	}
}

// TestBothSidesHaveTheirStates: for any updates of the source, accepted topics have the accepted state, and new
// topics have the source's state, with the removed resources of types to which others refer.
func TestBothSidesHaveTheirStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFixtureOf(t, rapid.SampledFrom([]string{testType, xdstype.ClusterV3}).Draw(t, "type"))
		f.source["a"], f.source["b"], f.one = "1", "1", "1"
		f.send(true)
		f.check(true)
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		content := rapid.SampledFrom([]string{"1", "2", "3", ""})
		set := func(t *rapid.T) string {
			n := name.Draw(t, "name")
			if c := content.Draw(t, "content"); c == "" {
				delete(f.source, n)
			} else {
				f.source[n] = c
			}
			f.one = content.Draw(t, "one")
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"part": func(t *rapid.T) {
				f.send(false, set(t), set(t))
				f.check(false)
			},
			"full": func(t *rapid.T) {
				set(t)
				f.send(true)
				f.check(false)
			},
			"approve": func(t *rapid.T) {
				if f.gate.controller.Approve(Which{}) > 0 {
					f.step()
					f.check(true)
				}
			},
			"reject": func(t *rapid.T) {
				f.gate.controller.Reject(Which{}, "no")
				f.step()
				f.check(false)
			},
			"fill": func(*rapid.T) { // what a topic of the new side begins with
				for k, topic := range maps.Clone(f.gate.topics) {
					delete(f.gate.topics, k)
					f.cache.Unwatch(topic)
					f.gate.fill(k)
				}
				f.check(false)
			},
			"error": func(t *rapid.T) {
				f.sink.Apply(cache.Update{Scope: f.scope, TypeURL: f.typeURL, Changes: []cache.Change{{Name: oneName, Err: &cache.Error{Message: "away"}}}, Sets: []cache.SetUpdate{{Name: cache.Wildcard, Err: &cache.Error{Message: "away"}}}})
				f.step()
				f.check(false)
			},
		})
	})
}
