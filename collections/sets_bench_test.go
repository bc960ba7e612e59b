package collections

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
	"github.com/xds-relay/xds-relay/urn"
)

// benchWorld is a cache with a leaf glob and a view of it.
type benchWorld struct {
	cache    *cache.Cache
	resolver *Resolver
}

func (b *benchWorld) Start(k cache.Key) {
	if k.Scope.Derived != "" {
		b.resolver.Start(k)
	}
}

func (b *benchWorld) Refresh(cache.Key) {}

func (b *benchWorld) Stop(k cache.Key) {
	if k.Scope.Derived != "" {
		b.resolver.Stop(k)
	}
}

func (b *benchWorld) Key(_, name string) (cache.Key, error) { return keyOf(name), nil }

func (b *benchWorld) Policy(string) Policy { return Policy{} }

func (b *benchWorld) Unreachable(cache.Scope) (time.Time, bool) { return time.Time{}, false }

func (b *benchWorld) PassesOver(cache.Key, time.Time) bool { return false }

// benchSub is sent when the view has changed.
type benchSub struct {
	cache.SetWatch
	notified chan struct{}
}

func (s *benchSub) Changed() cache.Waker { return s }

func (s *benchSub) Wake() { s.notified <- struct{}{} }

// BenchmarkOneChangeInAView measures the cost until clients are notified of a change of one
// member. It must not depend on the number of members.
func BenchmarkOneChangeInAView(b *testing.B) {
	for _, rename := range []bool{false, true} {
		for _, n := range []int{1000, 100_000} {
			b.Run(fmt.Sprintf("rename=%t/members=%d", rename, n), func(b *testing.B) { oneChange(b, n, rename) })
		}
	}
}

func oneChange(b *testing.B, n int, rename bool) {
	glob, empty := long("a/g/*"), long("a/h/*")
	view := View{Rename: rename}
	for _, c := range []string{empty, glob} {
		u, _ := urn.ParseURL(c)
		view.Collections = append(view.Collections, u)
	}
	w := &benchWorld{}
	w.cache = cache.New(w, cache.Options{IdleEntries: 1})
	defer w.cache.Close()
	w.resolver = NewResolver(w.cache, deliverytest.Direct(w.cache), w, Options{Views: map[string]View{"view/0": view}, Log: slog.New(slog.DiscardHandler)})
	defer w.resolver.Close()

	leaf := keyOf(glob)
	feed := &setSub{} // keeps the leaf set
	w.cache.WatchSet(leaf, feed)
	defer w.cache.Unwatch(feed)
	members := make([]cache.Change, n)
	for i := range members {
		name := long(fmt.Sprint("a/g/", i))
		members[i] = cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: clusterType, Value: clusterNamed(b, name, "content")})}
	}
	say := func(name string, full bool, changes ...cache.Change) {
		w.cache.Apply(cache.Update{Scope: leaf.Scope, TypeURL: leaf.TypeURL, Sets: []cache.SetUpdate{{Name: name, Extent: cache.WholeIf(full), Changes: changes}}})
	}
	say(glob, true, members...)
	held := int64(heapInUse())
	s := &benchSub{notified: make(chan struct{}, 1)}
	set := w.cache.WatchSet(cache.Key{Scope: cache.Scope{Derived: "view/0"}, TypeURL: clusterType, Name: long("d/all/*")}, s)
	defer w.cache.Unwatch(s)
	for said := false; !said; {
		runtime.Gosched()
		say(empty, true) // ignored until it is requested
		select {
		case <-s.notified:
			said = true
		default:
		}
	}
	if set.Len() != n {
		b.Fatalf("%d members, want %d", set.Len(), n)
	}
	perMember := float64(int64(heapInUse())-held) / float64(n)
	seen := 0
	set.Since(&s.SetWatch, func(cache.Member) bool { seen++; return true })

	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c := members[i%n]
		c.Resource = cache.NewResource(cache.Spec{Name: c.Name, TypeURL: clusterType, Value: clusterNamed(b, c.Name, fmt.Sprint(i))})
		say(glob, false, c)
		<-s.notified
		seen = 0
		set.Since(&s.SetWatch, func(cache.Member) bool { seen++; return true })
		if seen != 1 {
			b.Fatalf("notified of %d members, want 1", seen)
		}
	}
	b.ReportMetric(perMember, "B/member")
	runtime.KeepAlive(members)
}
