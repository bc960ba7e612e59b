package cache

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestZZMem(t *testing.T) {
	const members, contentSize = 100_000, 100
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	c := New(newFeeds(), Options{Linger: time.Hour})
	defer c.Close()
	k := Key{Scope: Scope{Authority: "a"}, TypeURL: testType, Name: Wildcard}
	s := c.WatchSet(k, &dirty{})
	before := heap()
	bytes := 0
	for i := range members {
		name := "xdstp://a/envoy.config.cluster.v3.Cluster/foo/" + fmt.Sprintf("%06d", i)
		r := NewResource(Spec{Name: name, Version: "1", TypeURL: testType, Value: message(name, strings.Repeat("x", contentSize))})
		bytes += r.Size(name, 0)
		c.Apply(Update{Scope: k.Scope, TypeURL: k.TypeURL, Sets: []SetUpdate{{Name: k.Name, Changes: []Change{{Name: string([]byte(name)), Resource: r}}}}})
	}
	after := heap()
	t.Logf("%.1f B per member, %.1f encoded: %.1f besides", float64(after-before)/members, float64(bytes)/members, float64(after-before-int64(bytes))/members)
	runtime.KeepAlive(s)
}
