package feed

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// edsCluster is a Cluster whose endpoints have its name.
func edsCluster(t *testing.T, name string) cache.Change {
	t.Helper()
	value, err := proto.Marshal(&clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: xdstype.ClusterV3, Value: value})}
}

// The control plane's first answer after the relay was started lacks most Clusters, and their endpoints, that the store
// has. The guard holds them, whether they are served from the store by then or not, and no longer than it should.
func TestTheFirstAnswerAfterAStartIsGuarded(t *testing.T) {
	dir := t.TempDir()
	for _, served := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(dir, fmt.Sprint(served))
			at := func(typeURL, name string) cache.Key {
				return cache.Key{Scope: scope, TypeURL: typeURL, Name: name}
			}
			names := []string{"a", "b", "c", "d"}
			start := func() (*kept, *guard.Stats) {
				k, stats := newKept(t, path), &guard.Stats{}
				k.Feed.guard = guard.New(k.cache, guard.Settings{
					Options: func(cache.Scope) *guard.Options { return &guard.Options{Ratio: 0.5, Least: 2, Hold: time.Minute} },
					Stored:  k.Guard.Stored, StoredName: k.Guard.StoredName,
					Stats: func(cache.Scope) *guard.Stats { return stats }, Log: slog.New(slog.DiscardHandler), Lines: &loglines.Shared{},
				})
				k.cache.WatchSet(at(xdstype.ClusterV3, cache.Wildcard), new(setWatch))
				for _, name := range names {
					k.cache.Watch(at(xdstype.EndpointsV3, name), new(nameWatch))
				}
				synctest.Wait()
				return k, stats
			}
			says := func(k *kept, has ...string) {
				clusters := cache.Update{Scope: scope, TypeURL: xdstype.ClusterV3, Server: testCP, Sets: []cache.SetUpdate{{
					Name: cache.Wildcard, Extent: cache.Whole, Answer: cache.FirstAnswer,
				}}}
				endpoints := cache.Update{Scope: scope, TypeURL: xdstype.EndpointsV3, Server: testCP}
				for _, name := range has {
					clusters.Sets[0].Changes = append(clusters.Sets[0].Changes, edsCluster(t, name))
				}
				for i, name := range names {
					c := cache.Change{Name: name, Answer: cache.FirstAnswer, Gone: i >= len(has)}
					if !c.Gone {
						c.Resource = cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: xdstype.EndpointsV3, Value: append([]byte{0x0a, byte(len(name))}, name...)})
					}
					endpoints.Changes = append(endpoints.Changes, c)
				}
				k.link.Deliver(delivery.Event{Delivery: delivery.Delivery{Types: []cache.Update{clusters, endpoints}}})
				synctest.Wait()
			}
			expect := func(k *kept, when string, n int) {
				t.Helper()
				synctest.Wait()
				endpoints := 0
				for _, name := range names {
					k.cache.Contents(at(xdstype.EndpointsV3, name), func(string, *cache.Resource) { endpoints++ })
				}
				if clusters := k.cache.Len(at(xdstype.ClusterV3, cache.Wildcard)); clusters != n || endpoints != n {
					t.Errorf("%s, served from the store: %t: clients have %d Clusters and the endpoints of %d, want %d", when, served, clusters, endpoints, n)
				}
			}
			before, _ := start()
			says(before, names...)
			expect(before, "before the start", len(names))
			before.close()

			k, stats := start()
			defer k.close()
			if served {
				<-time.After(testWait + time.Second)
				expect(k, "without a control plane", len(names))
			}
			says(k, "a")
			expect(k, "after the first answer", len(names))
			if n := stats.Held.Load(); n != 6 {
				t.Errorf("%d are held, want 3 Clusters and their endpoints", n)
			}
			<-time.After(time.Minute + time.Second)
			expect(k, "after the hold", 1)
			if n := stats.Held.Load(); n != 0 {
				t.Errorf("%d are held after that", n)
			}
		})
	}
}
