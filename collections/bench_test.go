package collections

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// quiet are authorities that are always there, and say what the benchmark writes.
type quiet struct {
	cache    *cache.Cache
	resolver *Resolver
}

func (q *quiet) to(k cache.Key, f func(*Resolver)) {
	if k.Scope.Derived != "" {
		f(q.resolver)
	}
}

// Start implements cache.Source.
func (q *quiet) Start(k cache.Key) { q.to(k, func(r *Resolver) { r.Start(k) }) }

// Refresh implements cache.Source.
func (q *quiet) Refresh(k cache.Key) { q.to(k, func(r *Resolver) { r.Refresh(k) }) }

// Stop implements cache.Source.
func (q *quiet) Stop(k cache.Key) { q.to(k, func(r *Resolver) { r.Stop(k) }) }

// Key implements Names.
func (q *quiet) Key(typeURL, name string) (cache.Key, error) {
	k := keyOf(name)
	k.TypeURL = typeURL
	return k, nil
}

// Policy implements Names.
func (q *quiet) Policy(string) Policy { return Policy{} }

// Unreachable implements Names.
func (q *quiet) Unreachable(cache.Scope) (time.Time, bool) { return time.Time{}, false }

func (q *quiet) PassesOver(cache.Key, time.Time) bool { return false }

func newQuiet(b *testing.B) *quiet {
	q := &quiet{}
	q.cache = cache.New(q, cache.Options{Linger: time.Minute, IdleEntries: 1})
	q.resolver = NewResolver(q.cache, deliverytest.Direct(q.cache), q, Options{Log: slog.New(slog.DiscardHandler)})
	b.Cleanup(func() {
		q.cache.Close()
		q.resolver.Close()
	})
	return q
}

// notified is a watcher that says when it is notified.
type notified struct {
	cache.Watch
	waker
}

type waker chan struct{}

// Wake implements cache.Waker.
func (w waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Changed implements cache.Watcher.
func (w *notified) Changed() cache.Waker { return w.waker }

// watch watches derived topics, all with the last one's waker.
func (q *quiet) watch(n int, name func(int) string) (waker, []*cache.Entry) {
	wake := make(waker, 1)
	entries := make([]*cache.Entry, n)
	for i := range n {
		w := &notified{}
		if i == n-1 {
			w.waker = wake
		} else {
			w.waker = make(waker) // nobody listens
		}
		entries[i], _ = q.cache.Watch(derivedKey(name(i)), w)
	}
	return wake, entries
}

func (q *quiet) say(name string, r *cache.Resource) {
	k := keyOf(name)
	q.cache.Apply(cache.Update{Scope: k.Scope, TypeURL: k.TypeURL, Changes: []cache.Change{{Name: name, Resource: r}}})
}

// One entry of a list changes, all of whose entries are requested by name.
func BenchmarkEntriesOfOneList(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q := newQuiet(b)
			list := long("a:l")
			wake, _ := q.watch(n, func(i int) string { return fmt.Sprintf("%s#entry=%d", list, i) })
			entries := make([][]byte, n)
			for i := range entries {
				entries[i] = inlineEntry(b, fmt.Sprint(i), "1", &anypb.Any{TypeUrl: clusterType, Value: clusterNamed(b, "x", "0")})
			}
			for i := 0; b.Loop(); i++ {
				entries[n-1] = inlineEntry(b, fmt.Sprint(n-1), fmt.Sprint(i), &anypb.Any{TypeUrl: clusterType, Value: clusterNamed(b, "x", fmt.Sprint(i))})
				q.say(list, collection(list, entries...))
				<-wake
			}
		})
	}
}

// One target changes, of many redirects each of which has its own.
func BenchmarkRedirects(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q := newQuiet(b)
			from := func(i int) string { return fmt.Sprintf("%s-%d", long("a/from"), i) }
			to := func(i int) string { return fmt.Sprintf("%s-%d", long("b/to"), i) }
			before := heapInUse()
			wake, entries := q.watch(n, from)
			redirect := func(i int) *cache.Resource {
				return cache.NewResource(cache.Spec{
					Name: from(i), Version: "1", TypeURL: xdstype.Locator, Redirect: to(i), Value: mustMarshal(b, locator(b, to(i))),
				})
			}
			content := func(i int, c string) *cache.Resource {
				return cache.NewResource(cache.Spec{Name: to(i), Version: c, TypeURL: clusterType, Value: clusterNamed(b, to(i), c)})
			}
			for i := range n {
				for entries[i].State().Status != cache.Present {
					q.say(from(i), redirect(i)) // which counts once it is requested
					q.say(to(i), content(i, "0"))
					runtime.Gosched()
				}
			}
			<-wake
			held := heapInUse() - before
			for i := 0; b.Loop(); i++ {
				q.say(to(n-1), content(n-1, fmt.Sprint(i+1)))
				<-wake
			}
			b.ReportMetric(float64(held)/float64(n), "B/redirect")
		})
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
