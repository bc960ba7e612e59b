package downstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// xDS: "Resource warming": when a Cluster changes, Envoy waits for a response with its ClusterLoadAssignment, changed
// or not, without requesting one.
func TestChangedClusterIsFollowedByItsEndpoints(t *testing.T) {
	eds := func(name, service string) *clusterv3.Cluster {
		return &clusterv3.Cluster{
			Name:                 name,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{
				ServiceName: service,
				EdsConfig:   &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}},
			},
		}
	}
	for _, test := range []struct {
		name     string
		clusters []*clusterv3.Cluster
		want     string // the endpoints' name
	}{
		{"of the cluster's name", []*clusterv3.Cluster{eds("c", "")}, "c"},
		{"of the service's name", []*clusterv3.Cluster{eds("c", "s")}, "s"},
		{"of two clusters", []*clusterv3.Cluster{eds("c", "s"), eds("d", "s")}, "s"},
	} {
		for _, form := range []string{deltaForm.name, sotwForm.name} {
			t.Run(test.name+" "+form, func(t *testing.T) {
				ch := newTestCache(&recordingSource{}, 1000)
				defer ch.Close()
				server, _ := newTestServer(ch, DefaultMaxResponseBytes)
				c := newTestClient(server, form, &corev3.Node{})
				defer c.close()
				request := func(typeURL string, names ...string) {
					t.Helper()
					var err error
					m := c.memory(typeURL)
					if form == deltaForm.name {
						if m.nonce != "" {
							names = nil // an ACK
						}
						err = c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: m.nonce, ResourceNamesSubscribe: names})
					} else {
						err = c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: m.nonce, VersionInfo: m.version, ResourceNames: names})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				put := func(clusters []*clusterv3.Cluster) {
					t.Helper()
					var changes []cache.Change
					for _, cluster := range clusters {
						value, err := proto.Marshal(cluster)
						if err != nil {
							t.Fatal(err)
						}
						res := cache.NewResource(cache.Spec{Name: cluster.GetName(), TypeURL: clusterType, Value: value})
						changes = append(changes, cache.Change{Name: cluster.GetName(), Resource: res})
					}
					ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: clusterType,
						Sets: []cache.SetUpdate{{Name: cache.Wildcard, Changes: changes}}})
				}
				request(clusterType, "*")
				request(endpointType, test.want, "other")
				put(test.clusters)
				ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType, Changes: []cache.Change{
					{Name: test.want, Resource: newTestResource(endpointType, test.want, "", "endpoints")},
					{Name: "other", Resource: newTestResource(endpointType, "other", "", "endpoints")},
				}})
				c.readAll(t)
				request(clusterType, "*")
				request(endpointType, test.want, "other")

				var changed []*clusterv3.Cluster
				var got, want []string
				for _, cluster := range test.clusters {
					c := proto.Clone(cluster).(*clusterv3.Cluster)
					c.ConnectTimeout = durationpb.New(1)
					changed = append(changed, c)
					want = append(want, "cds "+c.GetName())
				}
				put(changed)
				want = append(want, "eds "+test.want)
				for _, r := range c.readAll(t) {
					for _, res := range r.resources {
						got = append(got, shortName(r.typeURL)+" "+res.name)
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("the client gets %q, want %q", got, want)
				}
			})
		}
	}
}

// The relay remembers few Clusters until the client subscribes to endpoints. If there are more, none of the versions
// that it states for endpoints count.
func TestEndpointsOfEarlyClustersAreSentWhateverTheClientHolds(t *testing.T) {
	for _, clusters := range []int{1, maxEarlyClusters, maxEarlyClusters + 1} {
		ch := newTestCache(&recordingSource{}, 1000)
		defer ch.Close()
		server, _ := newTestServer(ch, DefaultMaxResponseBytes)
		var sent, endpoints []cache.Change
		held := map[string]string{"other": "v1"}
		for i := range clusters {
			name := fmt.Sprintf("c%02d", i)
			sent = append(sent, cache.Change{Name: name, Resource: newTestResource(clusterType, name, "v2", "cluster")})
			held[name] = "v1"
		}
		for name := range held {
			endpoints = append(endpoints, cache.Change{Name: name, Resource: newTestResource(endpointType, name, "v1", "endpoints")})
		}
		names := slices.Sorted(maps.Keys(held))
		c := newTestClient(server, deltaForm.name, &corev3.Node{})
		defer c.close()
		request := func(typeURL string, names ...string) {
			t.Helper()
			if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: held}); err != nil {
				t.Fatal(err)
			}
		}
		request(clusterType, "*")
		// Two responses: the Clusters of both count.
		for _, part := range [][]cache.Change{sent[:clusters/2], sent[clusters/2:]} {
			ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: clusterType, Sets: []cache.SetUpdate{{Name: cache.Wildcard, Changes: part}}})
			c.readAll(t)
		}
		request(endpointType, names...)
		ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType, Changes: endpoints})

		want := names[:clusters] // without the other
		if clusters > maxEarlyClusters {
			want = names
		}
		var got []string
		for _, r := range c.readAll(t) {
			for _, res := range r.resources {
				got = append(got, res.name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("of %d clusters the client gets the endpoints %q, want %q", clusters, got, want)
		}
	}
}

func TestWhichClustersWarmByEndpoints(t *testing.T) {
	eds := func(source *corev3.ConfigSource) *clusterv3.Cluster {
		return &clusterv3.Cluster{Name: "c", EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: source}}
	}
	for _, test := range []struct {
		name    string
		cluster *clusterv3.Cluster
		warms   bool
	}{
		{"static", &clusterv3.Cluster{Name: "c"}, false},
		{"from ADS", eds(&corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}), true},
		{"from a file", eds(&corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: "/a"}}}), false},
		{"from a file, as of old", eds(&corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Path{Path: "/a"}}), false}, //nolint:staticcheck // Envoy still reads it
	} {
		r := cache.NewResource(cache.Spec{Name: "c", TypeURL: xdstype.ClusterV3, Value: encoded(test.cluster)})
		if session.Warms(r) != test.warms {
			t.Errorf("%s: %v", test.name, !test.warms)
		}
	}
}
