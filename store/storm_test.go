package store

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// BenchmarkStorm writes 150 of 10,000 resources of 1 KB in each commit: what 1,000 updates a second have a
// store do.
func BenchmarkStorm(b *testing.B) {
	const resources, perCommit = 10_000, 150
	text, err := NewKey()
	if err != nil {
		b.Fatal(err)
	}
	key, err := ParseKey(text)
	if err != nil {
		b.Fatal(err)
	}
	s, err := Open(filepath.Join(b.TempDir(), "store"), Options{
		Key: key, Log: slog.New(slog.DiscardHandler), noSync: true,
		Contents: func(cache.Key, func(string, *cache.Resource)) {}, Watched: func(cache.Key) bool { return true },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	version := 0
	note := func(names ...int) {
		version++
		s.Note("server", func(n *Notes) {
			for _, i := range names {
				n.Entry(entry(fmt.Sprintf("resource-%06d", i)), cache.NewResource(cache.Spec{
					Name: fmt.Sprintf("resource-%06d", i), Version: fmt.Sprint(version), TypeURL: routeType, Value: fmt.Appendf(nil, "%01000d", version),
				}))
			}
		})
	}
	for i := range resources {
		note(i)
	}
	s.Flush(time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		var names [perCommit]int
		for i := range names {
			names[i] = rand.IntN(resources)
		}
		note(names[:]...)
		s.Flush(time.Minute)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/perCommit, "µs/update")
}
