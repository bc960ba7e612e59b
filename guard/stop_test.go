package guard_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

type noSource struct{}

func (noSource) Start(cache.Key)   {}
func (noSource) Refresh(cache.Key) {}
func (noSource) Stop(cache.Key)    {}

// Once the topics with held resources have ended, the guard remembers nothing of them.
func TestAGuardForgetsTopicsThatHaveEnded(t *testing.T) {
	c := cache.New(noSource{}, cache.Options{IdleEntries: 1})
	defer c.Close()
	stats := &guard.Stats{}
	g := guard.New(c, guard.Settings{
		Options: func(cache.Scope) *guard.Options { return &guard.Options{Ratio: 0.5, Least: 2, Hold: time.Minute} },
		Stats:   func(cache.Scope) *guard.Stats { return stats }, Log: slog.New(slog.DiscardHandler), Lines: &loglines.Shared{},
	})
	clusters, endpoints := wholeKey("cluster", cache.Wildcard), wholeKey("endpoints", cache.Wildcard)
	for _, k := range []cache.Key{clusters, endpoints} {
		c.WatchSet(k, &client{})
	}
	now := time.Now()
	apply := func(answer cache.Answer, k cache.Key, changes ...cache.Change) {
		updates := []cache.Update{{Scope: k.Scope, TypeURL: k.TypeURL, Sets: []cache.SetUpdate{{Name: k.Name, Answer: answer, Changes: changes}}}}
		updates = g.Judge(now, updates)
		c.Apply(updates...)
	}
	var all []cache.Change
	for i := range 9 {
		all = append(all, changeOf(t, "endpoints", fmt.Sprintf("c%d", i), []string{"1"}))
	}
	apply(cache.NoAnswer, clusters, changeOf(t, "cluster", "c1", []string{"eds=c1"}))
	apply(cache.NoAnswer, endpoints, all...)
	apply(cache.FirstAnswer, clusters, cache.Change{Name: "c1", Gone: true})
	apply(cache.LaterAnswer, endpoints, cache.Change{Name: "c1", Gone: true}) // held only because the Cluster is
	if n := stats.Held.Load(); n != 2 {
		t.Fatalf("%d are held, want the Cluster and its endpoints", n)
	}
	g.Stop(endpoints)
	g.Stop(clusters)
	if n := stats.Held.Load(); n != 0 || g.HoldsNames() {
		t.Errorf("%d are held, names: %t", n, g.HoldsNames())
	}
}
