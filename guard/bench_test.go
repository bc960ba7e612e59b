package guard_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/guard"
)

// BenchmarkUpdate is what an update of a wildcard costs: of one member in a later answer, and of all in
// a first one of which nothing is held. `through=cache` is without a guard.
func BenchmarkUpdate(b *testing.B) {
	for _, members := range []int{100, 100_000} {
		var all []cache.Change
		for i := range members {
			all = append(all, cache.Change{Name: fmt.Sprintf("cluster-%d", i), Resource: member(fmt.Sprintf("cluster-%d", i), "content", 0)})
		}
		whole := update(cache.SetUpdate{Name: cache.Wildcard, Extent: cache.Whole, Answer: cache.FirstAnswer, Changes: all})
		for _, what := range []string{"later", "first"} {
			for _, through := range []string{"cache", "guard"} {
				b.Run(fmt.Sprintf("answer=%s/members=%d/through=%s", what, members, through), func(b *testing.B) {
					p := newPlayer(testType, &guard.Options{Ratio: 0.5, Least: 10, Hold: time.Minute}, nil)
					defer p.end()
					apply := p.cache.Apply
					if through == "guard" {
						apply = p.Apply
					}
					apply(whole)
					one := [2]cache.Update{}
					for i := range one {
						c := cache.Change{Name: "cluster-0", Resource: member("cluster-0", fmt.Sprint("content ", i), 0)}
						one[i] = update(cache.SetUpdate{Name: cache.Wildcard, Answer: cache.LaterAnswer, Changes: []cache.Change{c}})
					}
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						if what == "first" {
							apply(whole)
						} else {
							apply(one[i%2])
						}
					}
				})
			}
		}
	}
}

func update(set cache.SetUpdate) cache.Update {
	return cache.Update{Scope: testScope, TypeURL: testType, Sets: []cache.SetUpdate{set}}
}
