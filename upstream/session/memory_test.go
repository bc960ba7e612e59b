package session

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

func heapInUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// The memory for a member of a large glob, here and in the cache together,
// in addition to the resource itself. The test makes the cost of another field, or another table of names,
// visible.
func TestMemberOfASetCostsFewBytes(t *testing.T) {
	const members, content = 30_000, 100
	// 32 of a Resource, 16 of the cache's record, and 6 and 10 of the two tables.
	const most = 66
	const glob = "xdstp://a/envoy.config.cluster.v3.Cluster/foo/*"
	subs := NewSets(Config{Scope: cache.Scope{Authority: "a"}, TypeURL: typeURLs["cds"]})
	session := newDelta(&Topics{Sets: subs})
	c := cache.New(quietSource{}, cache.Options{Linger: time.Hour})
	defer c.Close()
	var w quietSetWatcher
	set := c.WatchSet(cache.Key{Scope: subs.scope, TypeURL: subs.typeURL, Name: glob}, &w)
	u := subs.NewUpdate()
	subs.start(glob, nil, &u)
	session.Requests(t0, maxRequestBytes)
	var before, size, rounded int
	take := func(version, from, to int) {
		msg := appendText(nil, wire.ResponseTypeURL, subs.typeURL)
		for i := from; i < to; i++ {
			name := strings.TrimSuffix(glob, "*") + fmt.Sprintf("member-%06d", i)
			value := appendText(appendText(nil, 1, name), 2, strings.Repeat("x", content+i%64))
			body := appendText(appendText(nil, wire.AnyTypeURL, subs.typeURL), wire.AnyValue, string(value))
			r := appendText(appendText(appendText(nil, wire.ResourceName, name), wire.ResourceVersion, fmt.Sprint(version)), wire.ResourceAny, string(body))
			had := len(msg)
			msg = appendText(msg, wire.ResponseResources, string(r))
			if version == 0 {
				size += len(msg) - had
				rounded += cap(append([]byte(nil), msg[had:]...)) // as the allocator has it
			}
		}
		r, err := Delta.Parse(msg)
		if err != nil {
			t.Fatal(err)
		}
		r.Size = 0 // as if it were no large one, of which more may be to come
		u, nack := session.Response(t0, r)
		if nack != "" {
			t.Fatal(nack)
		}
		c.Apply(u)
		session.Requests(t0, maxRequestBytes)
	}
	check := func(when string) {
		t.Helper()
		per := float64(heapInUse()-before-rounded) / members
		t.Logf("%s: %.1f bytes for a member, besides its %d, for which %d are allocated", when, per, size/members, rounded/members)
		if set.Len() != members+1 || per > most {
			t.Errorf("%s: %d members with %.1f bytes each besides their own, want at most %d", when, set.Len(), per, most)
		}
	}
	take(0, members, members+1) // so that all is there that is there once
	before, size, rounded = heapInUse(), 0, 0
	take(0, 0, members)
	check("all at once")
	for i := range members / 1000 {
		take(1, i*1000, (i+1)*1000)
	}
	check("when all have changed")
	runtime.KeepAlive(session)
}
