package upstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

// Whatever clients request and give up, however the control plane ends streams, and whichever names it ends them for:
// what is requested of it is what is watched or was until a linger time ago, and what is watched and not bad is there
// within seconds.

// askedFor are the names of a type that are requested on one stream.
type askedFor map[string]map[string]bool

func TestNothingIsRequestedThatNobodyWants(t *testing.T) {
	for _, protocol := range []Protocol{Delta, SotW} {
		for _, aggregated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/aggregated=%t", protocol, aggregated), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					steps := rapid.SliceOfN(rapid.IntRange(0, 1<<16), 1, 30).Draw(rt, "steps")
					var found []string
					onePlane(t, Options{Protocol: protocol}, aggregated, func(f *aFeed, p *touchyPlane) {
						found = requestedByNobody(f, p, steps)
					})
					for _, what := range found {
						rt.Error(what)
					}
				})
			})
		}
	}
}

// requestedByNobody makes random steps, and returns what is wrong.
func requestedByNobody(f *aFeed, p *touchyPlane, steps []int) (found []string) {
	names := []string{"a", "b", "c", "bad", "worse", cache.Wildcard}
	codesOf := []codes.Code{codes.InvalidArgument, codes.PermissionDenied, codes.NotFound, codes.Unauthenticated, codes.Internal}
	type watched struct {
		stop  func()
		entry *cache.Entry // nil for a wildcard
		left  time.Time
	}
	watches := map[cache.Key]*watched{}
	check := func(step int) {
		synctest.Wait()
		for _, asked := range p.asks() {
			for typeURL, of := range asked {
				for name := range of {
					k := cache.Key{Scope: testScope, TypeURL: typeURL, Name: name}
					w := watches[k]
					if w == nil || w.stop == nil && time.Since(w.left) > time.Minute+2*time.Second {
						found = append(found, fmt.Sprintf("step %d: %s is requested, and nobody has watched it for more than the linger time", step, name))
					}
				}
			}
		}
	}
	for i, step := range steps {
		typ, name := []string{"cds", "eds"}[step%2], names[step/2%len(names)]
		if typ == "eds" && name == cache.Wildcard {
			name = "a"
		}
		k := key(typ, name)
		w := watches[k]
		switch step / 16 % 8 {
		case 0, 1, 2:
			if w != nil && w.stop != nil {
				continue
			}
			w = &watched{}
			watches[k] = w
			if name == cache.Wildcard {
				by := &setWatcher{}
				f.cache.WatchSet(k, by)
				w.stop = func() { f.cache.Unwatch(by) }
			} else {
				by := &watcher{}
				w.entry = entryOf(f.cache.Watch(k, by))
				w.stop = func() { f.cache.Unwatch(by) }
			}
		case 3, 4:
			if w == nil || w.stop == nil {
				continue
			}
			w.stop()
			w.stop, w.left = nil, time.Now()
		case 5:
			p.mu.Lock()
			if p.ends == nil {
				p.ends = map[string]codes.Code{}
			}
			for bad, code := range map[string]int{"bad": step, "worse": step / 8} {
				p.ends[bad] = codesOf[code%len(codesOf)]
			}
			p.mu.Unlock()
		case 6:
			p.forgive()
		case 7:
			p.endAll(status.Error(codes.Unavailable, "restarting"))
		}
		pass([]time.Duration{0, 100 * time.Millisecond, 3 * time.Second, 70 * time.Second}[step/128%4])
		check(i)
	}
	pass(40 * time.Second)
	check(len(steps))
	for _, k := range slices.SortedFunc(maps.Keys(watches), compareKeys) {
		w := watches[k]
		if w.stop == nil || w.entry == nil {
			continue
		}
		if _, bad := p.refuses(k.Name); !bad && w.entry.State().Resource == nil {
			found = append(found, fmt.Sprintf("%s is watched, and is %s", k.Name, w.entry.State().Status))
		}
		w.stop()
		w.stop = nil
	}
	for _, w := range watches {
		if w.stop != nil {
			w.stop()
		}
	}
	pass(3 * time.Minute)
	if n := f.quarantined(); n > 0 {
		found = append(found, fmt.Sprintf("%d are in quarantine, and nobody watches anything", n))
	}
	if n := len(p.asks()); n > 0 {
		found = append(found, fmt.Sprintf("%d streams are open, and nobody watches anything", n))
	}
	return found
}
