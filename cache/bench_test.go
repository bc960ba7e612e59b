package cache

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
)

// dirty is a minimal watcher.
type dirty struct {
	SetWatch
	n int
}

func (d *dirty) Changed() Waker { d.n++; return d }

func (d *dirty) Wake() {}

func BenchmarkEntryChange(b *testing.B) {
	for _, watchers := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			c := New(newFeeds(), Options{Linger: time.Hour})
			defer c.Close()
			for range watchers {
				c.Watch(testKey("foo"), &dirty{})
			}
			updates := []Update{
				update(Change{Name: "foo", Resource: res("foo", "", "x")}),
				update(Change{Name: "foo", Resource: res("foo", "", "y")}),
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				c.Apply(updates[n%2])
			}
		})
	}
}

func BenchmarkUnchangedEntry(b *testing.B) {
	c := New(newFeeds(), Options{Linger: time.Hour})
	defer c.Close()
	for range 10_000 {
		c.Watch(testKey("foo"), &dirty{})
	}
	u := update(Change{Name: "foo", Resource: res("foo", "", "x")})
	b.ReportAllocs()
	for b.Loop() {
		c.Apply(u)
	}
}

// One member changes, and everybody reads what has changed. The cost follows the
// watchers and not the members.
func BenchmarkSetChange(b *testing.B) {
	for _, watchers := range []int{1, 1000} {
		for _, members := range []int{100, 100_000} {
			b.Run(fmt.Sprintf("watchers=%d/members=%d", watchers, members), func(b *testing.B) {
				c, s, _ := newWatchedSet(b)
				all := make([]Change, members)
				for i := range all {
					all[i] = put(fmt.Sprint(i), "x")
				}
				full(c, "1", all...)
				ws := make([]*dirty, watchers)
				take := func(Member) bool { return true }
				for i := range ws {
					ws[i] = &dirty{}
					c.WatchSet(testKey(Wildcard), ws[i])
					s.Since(&ws[i].SetWatch, take)
				}
				name := fmt.Sprint(members / 2)
				updates := []Update{
					setUpdate(SetUpdate{Changes: []Change{put(name, "y")}}),
					setUpdate(SetUpdate{Changes: []Change{put(name, "z")}}),
				}
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					c.Apply(updates[n%2])
					for _, w := range ws {
						s.Since(&w.SetWatch, take)
					}
				}
			})
		}
	}
}

// A full update of a large set in which one member has changed.
func BenchmarkSetFull(b *testing.B) {
	const members = 10_000
	c, s, w := newWatchedSet(b)
	all := make([]Change, members)
	for i := range all {
		all[i] = put(fmt.Sprint(i), "x")
	}
	other := append([]Change(nil), all...)
	other[0] = put("0", "y")
	updates := [][]Change{all, other}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		full(c, "", updates[n%2]...)
		s.Full(&w.SetWatch, 0, nil, func(Member) {}, noLook)
	}
}

func BenchmarkNewResource(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 17} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			value := message("foo", strings.Repeat("x", size))
			b.SetBytes(int64(len(value)))
			b.ReportAllocs()
			for b.Loop() {
				NewResource(Spec{Name: "foo", TypeURL: testType, Value: value})
			}
		})
	}
}

func BenchmarkAppendDelta(b *testing.B) {
	r := res("foo", "1", strings.Repeat("x", 1<<17))
	for _, name := range []string{"foo", "renamed"} {
		b.Run("name="+name, func(b *testing.B) {
			msg := make(mem.BufferSlice, 0, 8)
			b.ReportAllocs()
			for b.Loop() {
				r.AppendDelta(msg, name, 0)
			}
		})
	}
}

func BenchmarkWatch(b *testing.B) {
	c := New(newFeeds(), Options{Linger: time.Hour})
	defer c.Close()
	c.Watch(testKey("foo"), &dirty{})
	w := &dirty{}
	b.ReportAllocs()
	for b.Loop() {
		c.Watch(testKey("foo"), w)
		c.Unwatch(w)
	}
}
