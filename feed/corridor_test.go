package feed

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/upstream"
)

// inspected is a cache that looks around when it is given the first response.
type inspected struct {
	*cache.Cache
	once sync.Once
	look func(u []cache.Update)
}

func (c *inspected) Apply(updates ...cache.Update) {
	for i := range updates {
		if len(updates[i].Sets) > 0 && updates[i].Sets[0].Err == nil {
			c.once.Do(func() { c.look(updates) })
		}
	}
	c.Cache.Apply(updates...)
}

// The way from a parsed response to the cache is short: at most six frames and three locks, with every stage on.
func TestTheCorridorIsShort(t *testing.T) {
	plane := testplane.NewSnapshot(t)
	plane.Set(t, "1", map[resourcev3.Type][]types.Resource{resourcev3.ClusterType: {&clusterv3.Cluster{Name: "c"}}})
	conn, err := upstream.Dial(testplane.Listen(t, plane), upstream.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var frames []string
	var locks []string
	seen := make(chan struct{})
	var w *everyWorld
	var source *upstream.Aggregated
	log := slog.New(slog.DiscardHandler)
	w = newEveryWorld(t, filepath.Join(t.TempDir(), "db"), log, 0, func(c Cache) Cache {
		return &inspected{Cache: c.(*cache.Cache), look: func([]cache.Update) {
			frames, locks = framesSince("upstream.(*Stream).take"), heldLocks(w.Feed, source)
			close(seen)
		}}
	})
	w.Servers.Open = func(_ int, to *Link) Source {
		source = upstream.NewAggregated(someScope, conn, &corev3.Node{Id: testplane.NodeID}, upstream.Options{WithExpiresAt: true, Recall: to.Recall("a", false)}, to, log)
		return source
	}
	w.watch(every("cluster", cache.Wildcard))
	<-seen
	w.Drain()
	w.cache.Close()
	w.Feed.Close()
	w.gates.Closed(someScope)
	w.gates.Close()
	closeStore(t, w.store)
	if len(frames) == 0 || len(frames) > 6 {
		t.Errorf("%d frames: %s", len(frames), strings.Join(frames, ", "))
	}
	if len(locks) != 3 {
		t.Errorf("%d locks: %s", len(locks), strings.Join(locks, ", "))
	}
}

// framesSince returns the functions between the caller of the cache and the one with a name. The cache and the test are
// not among them.
func framesSince(name string) (between []string) {
	pcs := make([]uintptr, 64)
	all := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
	for {
		f, more := all.Next()
		short := f.Function[strings.LastIndexByte(f.Function, '/')+1:]
		switch {
		case strings.HasSuffix(short, name):
			return between
		case !more:
			return nil
		case strings.HasSuffix(f.File, "_test.go"), !strings.Contains(f.Function, "xds-relay"):
		default:
			between = append(between, short)
		}
	}
}

// heldLocks returns the locks that are held in values, and in what they refer to: by type and field. It does not look
// into the cache, the store and connections.
func heldLocks(values ...any) (held []string) {
	visited := map[unsafe.Pointer]bool{}
	var look func(v reflect.Value, where string)
	look = func(v reflect.Value, where string) {
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() || visited[v.UnsafePointer()] {
				return
			}
			visited[v.UnsafePointer()] = true
			look(v.Elem(), where)
		case reflect.Interface:
			if !v.IsNil() {
				look(v.Elem(), where)
			}
		case reflect.Map:
			for iter := v.MapRange(); iter.Next(); {
				look(iter.Value(), where)
			}
		case reflect.Slice, reflect.Array:
			for i := range v.Len() {
				look(v.Index(i), where)
			}
		case reflect.Struct:
			if v.Type() == reflect.TypeFor[sync.Mutex]() && v.CanAddr() {
				if m := (*sync.Mutex)(v.Addr().UnsafePointer()); m.TryLock() {
					m.Unlock()
				} else {
					held = append(held, where)
				}
				return
			}
			pkg := v.Type().PkgPath()
			if !strings.Contains(pkg, "xds-relay/") || strings.HasSuffix(pkg, "xds-relay/cache") || strings.HasSuffix(pkg, "xds-relay/store") {
				return
			}
			for i := range v.NumField() {
				look(v.Field(i), v.Type().String()+"."+v.Type().Field(i).Name)
			}
		}
	}
	for _, v := range values {
		look(reflect.ValueOf(v), "")
	}
	return held
}

// A delivery of a link that is closed, as after a reload, reaches nobody.
func TestAClosedLinkIsNotHeard(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		k := newKept(t, filepath.Join(dir, "db"))
		defer k.close()
		k.watch("a")
		k.says(is("a", "1"))
		k.expect("from an open feed", map[string]string{"a": "1"})
		k.Mute()
		k.says(is("a", "2"))
		k.expect("after Mute", map[string]string{"a": "1"})
		old := k.Feed
		link := k.link
		old.Close()
		k.open(time.Now())
		k.says(is("a", "3"))
		link.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: []cache.Update{{Scope: scope, TypeURL: routeType, Changes: []cache.Change{is("a", "4")}}}}})
		k.expect("from a successor", map[string]string{"a": "3"})
	})
}

// A Feed costs no goroutine.
func TestFeedsHaveNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	c := cache.New(nil, cache.Options{})
	defer c.Close()
	feeds := make([]*Feed, 10_000)
	for i := range feeds {
		feeds[i] = New(Options{
			Cache: c, Reachability: NewReachability(), Log: slog.New(slog.DiscardHandler), Guard: noGuard,
			Servers: Servers{Scope: cache.Scope{Authority: fmt.Sprint(i)}, Names: []string{"a"}, Open: func(int, *Link) Source { return quietFeed{done: make(chan struct{})} }},
		})
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Errorf("%d goroutines for %d feeds", n, len(feeds))
	}
	for _, f := range feeds {
		f.Close()
	}
}

// BenchmarkCorridor is one changed member of a wildcard of 10,000: through the corridor with every stage on, or with none.
func BenchmarkCorridor(b *testing.B) {
	const members = 10_000
	typeURL := everyTypes["cluster"]
	whole := func() delivery.Event {
		set := cache.SetUpdate{Name: cache.Wildcard, Extent: cache.Whole, Answer: cache.FirstAnswer}
		for i := range members {
			name := fmt.Sprintf("cluster-%d", i)
			set.Changes = append(set.Changes, cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: "first", TypeURL: typeURL, Value: []byte("\x0a\x01" + name)})})
		}
		return delivery.Event{Delivery: delivery.Delivery{Types: []cache.Update{{Scope: someScope, TypeURL: typeURL, Sets: []cache.SetUpdate{set}}}}}
	}
	change := func(i int) delivery.Event {
		r := cache.NewResource(cache.Spec{Name: "cluster-7", Version: fmt.Sprint(i), TypeURL: typeURL, Value: fmt.Appendf(nil, "\x0a\x09cluster-7\x12\x01%d", i%2)})
		return delivery.Event{Delivery: delivery.Delivery{Types: []cache.Update{{
			Scope: someScope, TypeURL: typeURL, Sets: []cache.SetUpdate{{Name: cache.Wildcard, Answer: cache.LaterAnswer, Changes: []cache.Change{{Name: "cluster-7", Resource: r}}}},
		}}}}
	}
	run := func(b *testing.B, to delivery.Receiver) {
		to.Deliver(whole())
		events := []delivery.Event{change(0), change(1)}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			e := events[i%2]
			e.Types = append([]cache.Update(nil), e.Types...)
			to.Deliver(e)
		}
	}
	b.Run("stages=all", func(b *testing.B) {
		t := &testing.T{}
		w := newEveryWorld(t, filepath.Join(b.TempDir(), "db"), slog.New(slog.DiscardHandler), 0, nil)
		defer func() {
			w.cache.Close()
			w.Feed.Close()
			w.gates.Closed(someScope)
			w.gates.Close()
			_ = w.store.Close()
		}()
		w.watch(every("cluster", cache.Wildcard))
		for w.link("a") == nil {
			w.Drain()
		}
		w.link("a").Deliver(delivery.Event{Kind: delivery.Responded})
		run(b, w.link("a"))
	})
	b.Run("stages=none", func(b *testing.B) {
		c := cache.New(silentSource{}, cache.Options{IdleEntries: 1})
		defer c.Close()
		c.WatchSet(every("cluster", cache.Wildcard), new(setWatch))
		f := New(Options{Cache: c, Log: slog.New(slog.DiscardHandler), Guard: noGuard})
		defer f.Close()
		run(b, f.Link())
	})
}

type silentSource struct{}

func (silentSource) Start(cache.Key)   {}
func (silentSource) Refresh(cache.Key) {}
func (silentSource) Stop(cache.Key)    {}
