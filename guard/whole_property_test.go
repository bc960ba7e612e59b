package guard_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/delivery"
)

// wholeStep is a step of a property test: what a source says of some Clusters and ClusterLoadAssignments.
type wholeStep struct {
	wait   time.Duration
	answer cache.Answer
	// clusters are 0 for gone, or the number of the ClusterLoadAssignment to which the Cluster refers. endpoints are how
	// many there are, -1 for gone.
	clusters, endpoints map[int]int
	apart               bool // in two deliveries
	leaves              int  // the name from which a client unsubscribes before, and to which it subscribes again; -1 for none
}

// TestWhatIsHeldStaysUsable: for any updates of a source, a Cluster that clients have and the source has not keeps the
// endpoints that it had when the source lost it, or a moment before in the same first answers. Once the last hold is over,
// clients have what the source has. They come and go meanwhile, and one of them requests a resource without a name.
func TestWhatIsHeldStaysUsable(t *testing.T) {
	const most = 6
	of := func(first int, values *rapid.Generator[int]) *rapid.Generator[map[int]int] {
		return rapid.MapOfN(rapid.IntRange(first, most), values, 0, most)
	}
	rapid.Check(t, func(rt *rapid.T) {
		o := &guard.Options{
			Ratio: rapid.Float64Range(0.1, 1).Draw(rt, "ratio"), Least: rapid.IntRange(1, most).Draw(rt, "least"), Hold: 30 * time.Second,
			Always: rapid.Bool().Draw(rt, "always"),
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) wholeStep {
			return wholeStep{
				wait:      time.Duration(rapid.IntRange(0, 20).Draw(rt, "wait")) * time.Second,
				answer:    rapid.SampledFrom([]cache.Answer{cache.FirstAnswer, cache.LaterAnswer}).Draw(rt, "answer"),
				clusters:  of(1, rapid.IntRange(0, most)).Draw(rt, "clusters"),
				endpoints: of(0, rapid.IntRange(-1, 2)).Draw(rt, "endpoints"),
				apart:     rapid.Bool().Draw(rt, "apart"),
				leaves:    max(-1, rapid.IntRange(-most, most).Draw(rt, "leaves")),
			}
		}), 1, 12).Draw(rt, "steps")
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = playWhole(t, o, steps) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// wholeModel is what a source says, and what the Clusters that it has lost need.
type wholeModel struct {
	clusters, endpoints map[int]int
	needs               map[int]int       // by Cluster that clients still have: the ClusterLoadAssignment that had endpoints then
	went                map[int]time.Time // when ClusterLoadAssignments with endpoints were removed in a guarded answer
}

func playWhole(t *testing.T, o *guard.Options, steps []wholeStep) string {
	p := newWholePlayer(o)
	defer p.end()
	p.watch(wholeKey("cluster", "*"), true)
	name := func(n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprintf("c%d", n)
	}
	for n := range 7 {
		p.watch(wholeKey("endpoints", name(n)), true)
	}
	m := wholeModel{map[int]int{}, map[int]int{}, map[int]int{}, map[int]time.Time{}}
	has := func() map[string]string {
		all := map[string]string{}
		for _, word := range []string{"cluster", "endpoints"} {
			for k := range p.watched {
				if k.TypeURL == wholeTypes[word] {
					p.cache.Contents(k, func(name string, r *cache.Resource) { all[word+" "+name] = string(r.Value()) })
				}
			}
		}
		return all
	}
	usable := func(n int) bool {
		r, ok := has()["endpoints "+name(n)]
		return ok && r != string(changeOf(t, "endpoints", name(n), []string{"0"}).Resource.Value())
	}
	for i, s := range steps {
		time.Sleep(s.wait)
		synctest.Wait()
		if s.leaves >= 0 {
			k := wholeKey("endpoints", name(s.leaves))
			p.watch(k, false)
			synctest.Wait()
			if !p.cache.Has(k) { // the topic begins anew, without what there was
				delete(m.endpoints, s.leaves)
				delete(m.went, s.leaves)
				maps.DeleteFunc(m.needs, func(_, needs int) bool { return needs == s.leaves })
			}
			p.watch(k, true)
		}
		clusters := cache.Update{Scope: testScope, TypeURL: wholeTypes["cluster"], Sets: []cache.SetUpdate{{Name: "*", Answer: s.answer}}}
		for _, n := range slices.Sorted(maps.Keys(s.clusters)) {
			c := cache.Change{Name: name(n), Gone: true}
			if to := s.clusters[n]; to > 0 {
				c = changeOf(t, "cluster", name(n), []string{"eds=" + name(to)})
				m.clusters[n] = to
				delete(m.needs, n)
			} else if to, had := m.clusters[n]; had {
				said, says := s.endpoints[to]
				at, went := m.went[to]
				lately := went && time.Since(at) < 10*time.Second && (s.apart || !says || said < 0)
				if usable(to) || lately {
					m.needs[n] = to
				}
				delete(m.clusters, n)
			}
			clusters.Sets[0].Changes = append(clusters.Sets[0].Changes, c)
		}
		endpoints := cache.Update{Scope: testScope, TypeURL: wholeTypes["endpoints"]}
		for _, n := range slices.Sorted(maps.Keys(s.endpoints)) {
			c := cache.Change{Name: name(n), Gone: true}
			if has := s.endpoints[n]; has >= 0 {
				c = changeOf(t, "endpoints", name(n), []string{fmt.Sprint(has)})
			}
			c.Answer = s.answer
			m.endpoints[n] = s.endpoints[n]
			switch {
			case !c.Gone || !guards(o, s.answer):
				delete(m.went, n)
			case usable(n):
				m.went[n] = time.Now()
			}
			endpoints.Changes = append(endpoints.Changes, c)
		}
		updates := []cache.Update{clusters, endpoints}
		if s.apart {
			p.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: updates[:1]}})
			updates = updates[1:]
		}
		p.to.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: updates}})
		there := has()
		maps.DeleteFunc(m.went, func(n int, _ time.Time) bool { return usable(n) })
		for n, to := range m.needs {
			switch _, held := there["cluster "+name(n)]; {
			case !held:
				delete(m.needs, n)
			case !usable(to):
				return fmt.Sprintf("after step %d: Cluster %d is held, and its endpoints %d are not", i, n, to)
			}
		}
		sum := 0
		for _, h := range p.Held() {
			sum += h.Members
		}
		if n := p.stats.Held.Load(); n != int64(sum) {
			return fmt.Sprintf("after step %d: the metric says %d, and %d are listed", i, n, sum)
		}
	}
	time.Sleep(o.Hold + time.Second)
	synctest.Wait()
	want := map[string]string{}
	for n, to := range m.clusters {
		want["cluster "+name(n)] = string(changeOf(t, "cluster", name(n), []string{"eds=" + name(to)}).Resource.Value())
	}
	for n, has := range m.endpoints {
		if has >= 0 {
			want["endpoints "+name(n)] = string(changeOf(t, "endpoints", name(n), []string{fmt.Sprint(has)}).Resource.Value())
		}
	}
	if got := has(); !maps.Equal(got, want) {
		return fmt.Sprintf("in the end clients have %q, and the source has %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	if n := p.stats.Held.Load(); n != 0 {
		return fmt.Sprintf("in the end %d are held", n)
	}
	return ""
}
