package downstream

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
)

const benchGlob = "xdstp://known/envoy.config.cluster.v3.Cluster/bench/*"

func benchMember(i int, content string) cache.Change {
	name := strings.TrimSuffix(benchGlob, "*") + fmt.Sprintf("member-%06d", i)
	return cache.Change{Name: name, Resource: newTestResource(clusterType, name, "v", content)}
}

func applyGlob(c *cache.Cache, full bool, changes ...cache.Change) {
	c.Apply(cache.Update{Scope: cache.Scope{Authority: knownAuthority}, TypeURL: clusterType,
		Sets: []cache.SetUpdate{{Name: benchGlob, Extent: cache.WholeIf(full), Changes: changes}}})
}

func liveHeap() int64 {
	// What others have left behind goes only after some collections: what has been put
	// in pools, and what has finalizers.
	const enough, most = 3, 50
	var m runtime.MemStats
	least, same := uint64(math.MaxUint64), 0
	for range most {
		runtime.GC()
		if runtime.ReadMemStats(&m); m.HeapAlloc < least-least/1000 {
			least, same = m.HeapAlloc, 0
		} else if same++; same == enough {
			break
		}
	}
	return int64(min(least, m.HeapAlloc))
}

// BenchmarkGlob is for a glob with many members: the cost of a client's initial sync, of a changed member, of a new
// member, and of a member that comes and goes, and the memory of a member and of a subscriber.
func BenchmarkGlob(b *testing.B) {
	for _, members := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) { benchmarkGlob(b, members) })
	}
}

func benchmarkGlob(b *testing.B, members int) {
	const contentSize, clients = 200, 1000
	c := cache.New(&recordingSource{}, cache.Options{Linger: time.Hour, IdleEntries: 10, Tombstones: cache.Tombstones{TTL: time.Hour, Limit: 10_000}})
	defer c.Close()
	server, _ := newTestServer(c, DefaultMaxResponseBytes)
	subscribe := func() *testClient {
		client := newTestClient(server, deltaForm.name, &corev3.Node{Id: "bench"})
		if err := client.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{benchGlob}}); err != nil {
			b.Fatal(err)
		}
		return client
	}
	// Without decoding: that is the client's work.
	read := func(client *testClient) (resources int) {
		for {
			r := client.st.next()
			switch {
			case r != nil:
				resources += r.Count
			case client.st.inbox.sleep():
				return resources
			}
		}
	}
	first := subscribe()
	content := strings.Repeat("x", contentSize)
	empty := liveHeap()
	all := make([]cache.Change, members)
	for i := range all {
		all[i] = benchMember(i, content)
	}
	applyGlob(c, true, all...)
	clear(all)
	full := liveHeap()
	read(first)
	b.Run("initial", func(b *testing.B) {
		for b.Loop() {
			client := subscribe()
			if n := read(client); n != members {
				b.Fatalf("%d resources, want %d", n, members)
			}
			client.close()
		}
		b.ReportMetric(float64(full-empty)/float64(members)-contentSize, "B/member-content")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(members), "ns/member")
	})
	before := liveHeap()
	many := make([]*testClient, clients)
	for i := range many {
		many[i] = subscribe()
		read(many[i])
	}
	perClient := float64(liveHeap()-before) / clients
	for i := range many {
		many[i].close()
	}
	one := func(b *testing.B, changes ...cache.Change) {
		for n := 0; b.Loop(); n++ {
			applyGlob(c, false, changes[n%len(changes)])
			first.Wake()
			read(first)
		}
	}
	b.Run("change", func(b *testing.B) {
		one(b, benchMember(members/2, "y"), benchMember(members/2, "z"))
		b.ReportMetric(perClient, "B/subscriber")
	})
	b.Run("add", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			applyGlob(c, false, benchMember(members+n, "y"))
			first.Wake()
			read(first)
		}
	})
	b.Run("come and go", func(b *testing.B) {
		change := benchMember(members/3, "y")
		one(b, cache.Change{Name: change.Name}, change)
	})
	b.Run("churn", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			change := benchMember(10*members+n, "y")
			applyGlob(c, false, change)
			read(first)
			applyGlob(c, false, cache.Change{Name: change.Name})
			read(first)
		}
	})
}
