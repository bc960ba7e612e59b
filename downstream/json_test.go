package downstream

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// The JSON of some names is made at most twice for all clients that poll for them, also while others poll for other
// names. The cache of it is bounded.
func TestJSONOfTheSameNamesIsShared(t *testing.T) {
	ch := newTestCache(silentSource{}, 1<<20)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	in := oldStyleScope("")
	holder := func(name string) { // so that it is there
		ch.Watch(cache.Key{Scope: in, TypeURL: clusterType, Name: name}, new(watcher))
	}
	put := func(version string, names ...string) {
		u := cache.Update{Scope: in, TypeURL: clusterType}
		for _, name := range names {
			value, err := proto.Marshal(&clusterv3.Cluster{Name: name, AltStatName: version + strings.Repeat("x", minJSONCached)})
			if err != nil {
				t.Fatal(err)
			}
			u.Changes = append(u.Changes, cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, TypeURL: clusterType, Value: value})})
		}
		ch.Apply(u)
	}
	fetch := func(names ...string) []byte {
		t.Helper()
		r, err := server.fetch(testContext(t), newGate(ListenerOptions{}), nil, formREST, clusterType, &discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: names}, patience)
		if err != nil {
			t.Fatal(err)
		}
		body, err := server.toJSON(r, xdstype.Cluster.V3).get()
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	all := []string{"a", "b", "c"}
	for _, name := range all {
		holder(name)
	}
	for round := range 3 {
		version := fmt.Sprint("v", round)
		put(version, all...)
		fetch(all...)
		second, fewer := fetch(all...), fetch(all[:2]...)
		if &second[0] != &fetch(all...)[0] {
			t.Errorf("round %d: the same names were rendered for each client", round)
		}
		if n := bytes.Count(second, []byte(version+"x")); n != 3 {
			t.Errorf("round %d: %d clusters of that version, want 3", round, n)
		}
		if n := bytes.Count(fewer, []byte(version+"x")); n != 2 {
			t.Errorf("round %d: who asks for two gets %d", round, n)
		}
		one := fetch("a")
		if &one[0] != &fetch("a")[0] {
			t.Errorf("round %d: one name was rendered for each client", round)
		}
	}
	for i := range 2 * mostJSONCached {
		name := fmt.Sprint("n", i)
		holder(name)
		put("v", name)
		fetch(name)
	}
	if n, size := len(server.jsonCache.entries), server.jsonCache.size; n != mostJSONCached || size < n*minJSONCached || size > n*2*minJSONCached {
		t.Errorf("%d renderings of %d bytes are kept, want %d", n, size, mostJSONCached)
	}
}

// The API's ClusterCollection has a single entry, so JSON would have the last one only: clients would
// take the others for removed.
func TestAClusterCollectionOfSeveralEntriesHasNoFormInJSON(t *testing.T) {
	entry := func(name string) []byte {
		b, err := proto.Marshal(&clusterv3.ClusterCollection{Entries: &xdscorev3.CollectionEntry{
			ResourceSpecifier: &xdscorev3.CollectionEntry_Locator{Locator: &xdscorev3.ResourceLocator{Id: name}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	ch := newTestCache(silentSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	for _, tt := range []struct {
		of      string
		entries []string
		good    int
	}{{"one", []string{"a"}, 1}, {"none", nil, 1}, {"two", []string{"a", "b"}, 0}} {
		var value []byte
		for _, name := range tt.entries {
			value = append(value, entry(name)...)
		}
		wrapped, err := anypb.New(&discoveryv3.Resource{Name: "list", Resource: &anypb.Any{TypeUrl: clusterCollection, Value: value}})
		if err != nil {
			t.Fatal(err)
		}
		sent, err := proto.Marshal(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{wrapped}})
		if err != nil {
			t.Fatal(err)
		}
		body, err := server.renderBytes(sent, xdstype.Cluster.V3)
		if err != nil {
			t.Fatal(err)
		}
		var got discoveryv3.DiscoveryResponse
		if err := protojson.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.GetResources()) != tt.good || len(got.GetResourceErrors()) != 1-tt.good {
			t.Errorf("%s: got %s", tt.of, body)
		}
		for _, e := range got.GetResourceErrors() {
			if e.GetResourceName().GetName() != "list" || !strings.Contains(e.GetErrorDetail().GetMessage(), "it has 2 entries") {
				t.Errorf("%s: got %v", tt.of, e)
			}
		}
	}
}
