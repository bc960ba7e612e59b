package cache

import (
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// newcomer is a watcher that begins with nothing, and reads a set in chunks until it has
// everything.
type newcomer struct {
	dirty
	complete bool
	most     int // bytes of a run
	runs     int
	held     map[string]string // versions by name
}

func (n *newcomer) read(t *rapid.T, s *Set, f Form, atMost int) {
	t.Helper()
	member := func(m Member) bool {
		if atMost--; atMost < 0 {
			return false
		}
		switch m.News {
		case Removed:
			delete(n.held, m.Name) // which it may never have been notified of
		case Changed, TTLChanged:
			n.held[m.Name] = m.Resource.Version()
		}
		return true
	}
	runs := &ChunkOptions{Form: f, MaxBytes: n.most, Yield: func(r *EncodedChunk) bool {
		if atMost--; atMost < 0 {
			return false
		}
		var msg discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(mem.BufferSlice{r.Delta()}.Materialize(), &msg); err != nil || r.Delta().Len() > n.most {
			t.Fatalf("%d bytes: %v", r.Delta().Len(), err)
		}
		if len(msg.Resources) != len(r.Resources) {
			t.Fatalf("%d resources, said to be %d", len(msg.Resources), len(r.Resources))
		}
		for i, got := range msg.Resources {
			if r.Resources[i].Name() != got.Name || i < len(r.Names) && r.Names[i] != got.Name {
				t.Fatalf("%q is said to be %q", got.Name, r.Resources[i].Name())
			}
			if got.Ttl != nil {
				t.Fatalf("%q has a TTL", got.Name)
			}
			n.held[got.Name] = got.Version
		}
		n.runs++
		return true
	}}
	if n.complete {
		runs = nil
	}
	n.complete = s.SinceInChunks(&n.SetWatch, runs, member) || n.complete
}

// However a set changes while newcomers read it in chunks: once they have read everything, they have
// exactly its members, each in its current state.
func TestNewcomersWhoReadInChunksHaveEverything(t *testing.T) {
	inRuns := 0
	rapid.Check(t, func(rt *rapid.T) {
		c, s, _ := newWatchedSet(t)
		names := rapid.SampledFrom([]int{5, 50, 600}).Draw(rt, "names")
		special := rapid.Bool().Draw(rt, "special")
		model, version := map[string]*Resource{}, 0
		change := func() Change {
			name := fmt.Sprint(rapid.IntRange(1, names).Draw(rt, "name"))
			if rapid.IntRange(0, 5).Draw(rt, "gone") == 0 {
				delete(model, name)
				return Change{Name: name}
			}
			version++
			content := rapid.SampledFrom([]string{"x", "y", strings.Repeat("z", 300)}).Draw(rt, "content")
			spec := Spec{Name: name, Version: fmt.Sprint(version), TypeURL: testType, Value: message(name, content)}
			if special {
				switch rapid.IntRange(0, 50).Draw(rt, "special") {
				case 0:
					spec.TTL = time.Hour
				case 1:
					spec.Name = "spelled " + name
				}
			}
			was := model[name]
			r := NewResource(spec)
			if was != nil && was.Hash() == r.Hash() && was.Name() != r.Name() {
				return Change{Name: name, Resource: was}
			}
			model[name] = r
			return Change{Name: name, Resource: r}
		}
		var all []Change
		for i := range names {
			name := fmt.Sprint(i + 1)
			model[name] = res(name, "0", "x")
			all = append(all, Change{Name: name, Resource: model[name]})
		}
		full(c, "", all...)
		var newcomers []*newcomer
		rt.Repeat(map[string]func(*rapid.T){
			"comes": func(*rapid.T) {
				n := &newcomer{held: map[string]string{}, most: rapid.SampledFrom([]int{2000, 1 << 20}).Draw(rt, "most")}
				c.WatchSet(testKey(Wildcard), n)
				newcomers = append(newcomers, n)
			},
			"comes and reads all": func(*rapid.T) {
				n := &newcomer{held: map[string]string{}, most: 1 << 20}
				c.WatchSet(testKey(Wildcard), n)
				n.read(rt, s, 0, 1<<20)
				want := map[string]string{}
				for key := range model {
					r := s.Member(key)
					want[r.Name()] = r.Version()
				}
				if !maps.Equal(n.held, want) {
					rt.Fatalf("has %v, want %v", n.held, want)
				}
				newcomers = append(newcomers, n)
			},
			"change": func(*rapid.T) {
				var changes []Change
				for range rapid.SampledFrom([]int{1, 1, 3, 100}).Draw(rt, "changes") {
					changes = append(changes, change())
				}
				c.Apply(setUpdate(SetUpdate{Changes: changes}))
			},
			"reads": func(*rapid.T) {
				if len(newcomers) > 0 {
					n := rapid.SampledFrom(newcomers).Draw(rt, "newcomer")
					n.read(rt, s, 0, rapid.IntRange(0, 10).Draw(rt, "atMost"))
				}
			},
			"garbage": func(*rapid.T) {
				if rapid.IntRange(0, 20).Draw(rt, "collect") == 0 {
					runtime.GC()
				}
			},
		})
		for i, n := range newcomers {
			n.read(rt, s, 0, 1<<20)
			inRuns += n.runs
			for key, r := range model {
				got, ok := n.held[r.Name()]
				// Of the same content an older version may have been reported.
				if !ok || got != r.Version() && s.Member(key).Hash() != r.Hash() {
					rt.Fatalf("newcomer %d: %q is %q (%t), want %q", i, r.Name(), got, ok, r.Version())
				}
			}
			if len(n.held) != len(model) && !special { // a member with a new spelling is not reported as gone
				rt.Fatalf("newcomer %d has %d, want %d: %v", i, len(n.held), len(model), maps.Keys(n.held))
			}
		}
	})
	if inRuns == 0 {
		t.Error("nothing was reported in a run")
	}
}

// Encoded chunks are kept while new watchers use them, though Go collects garbage, and not for much longer.
func TestEncodedChunksOutliveACollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(&noteSource{}, Options{})
		defer c.Close()
		n := &newcomer{most: 1 << 20, held: map[string]string{}}
		s := c.WatchSet(testKey(Wildcard), n)
		var changes []Change
		for _, name := range []string{"a", "b"} {
			changes = append(changes, Change{Name: name, Resource: NewResource(Spec{Name: name, Version: "1", TypeURL: testType, Value: message(name, "x")})})
		}
		c.Apply(setUpdate(SetUpdate{Extent: Whole, Changes: changes}))
		chunk := func() (is weak.Pointer[EncodedChunk]) {
			s.SinceInChunks(&SetWatch{}, &ChunkOptions{MaxBytes: 1 << 20, Yield: func(e *EncodedChunk) bool {
				is = weak.Make(e)
				return true
			}}, func(Member) bool { return true })
			return is
		}
		is := chunk()
		if is == (weak.Pointer[EncodedChunk]{}) {
			t.Fatal("there is no chunk")
		}
		runtime.GC()
		runtime.GC()
		if chunk() != is {
			t.Error("the chunk has gone in a collection, while new watchers use it")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		runtime.GC()
		if is.Value() != nil {
			t.Error("the chunk is still there a minute later")
		}
	})
}

func TestRunsAreOfWhatIsTheSameForAll(t *testing.T) {
	spec := func(name string) Spec {
		return Spec{Name: name, Version: "1", TypeURL: testType, Value: message(name, "x")}
	}
	ttl, withheld, redirect := spec("c"), spec("c"), spec("c")
	ttl.TTL, withheld.DoNotCache, redirect.Redirect = time.Hour, true, "xdstp://b/t/c"
	for _, tt := range []struct {
		what string
		form Form
		most int
		had  bool // it had them before
		more Spec
		runs int
	}{
		{"all that there is", 0, 1000, false, spec("c"), 1},
		{"who knows of TTLs", WithTTL, 1000, false, spec("c"), 1},
		{"with a TTL, who does not know of them", 0, 1000, false, ttl, 1},
		{"with a TTL", WithTTL, 1000, false, ttl, 0},
		{"not for newcomers", 0, 1000, false, withheld, 0},
		{"a redirect", 0, 1000, false, redirect, 0},
		{"by locators", ByLocator, 1000, false, spec("c"), 0},
		{"too long", 0, 100, false, spec("c"), 0},
		{"once more", 0, 1000, true, spec("c"), 0},
	} {
		c, s, w := newWatchedSet(t)
		full(c, "", Change{Name: "a", Resource: NewResource(spec("a"))}, Change{Name: "b", Resource: NewResource(spec("b"))}, Change{Name: "c", Resource: NewResource(tt.more)})
		if tt.had {
			s.Since(&w.SetWatch, func(Member) bool { return true })
			s.Rewind(&w.SetWatch)
		}
		runs, members := 0, 0
		s.SinceInChunks(&w.SetWatch, &ChunkOptions{Form: tt.form, MaxBytes: tt.most, Yield: func(r *EncodedChunk) bool { runs++; return true }}, func(Member) bool { members++; return true })
		if runs != tt.runs || members != 3-3*tt.runs {
			t.Errorf("%s: %d runs and %d members by themselves, want %d runs", tt.what, runs, members, tt.runs)
		}
	}
}
