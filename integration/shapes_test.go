package integration

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Inputs whose cost could grow with the square or the cube of their size. Each of them once kept the relay
// busy for minutes, while all clients waited.

// One client requests 40,000 names and then 10,000 globs of the same authority (with -short, a tenth: enough for the
// square of it to take long).
func TestManyNamesAndGlobsOfAClientDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	const batch = 500
	names, globs := inShort(40_000, 4_000), inShort(10_000, 1_000)
	const prefix = "xdstp://cp.example.com/envoy.config.cluster.v3.Cluster/"
	h := startHandmade(t)
	r := startRelay(t, relayTo(h.address, "delta"))
	victim := openClient(t, connect(t, r.address), delta, node("victim", ""))
	victim.subscribe(clusterType, prefix+"victim")
	go victim.takeAll()
	s := h.stream(t)
	s.awaitAsked(t, clusterType, prefix+"victim")

	attacker := openClient(t, connect(t, r.address), delta, node("attacker", ""))
	go attacker.takeAll()
	ask := func(format string, n int) {
		for i := 0; i < n; i += batch {
			var some []string
			for j := range batch {
				some = append(some, fmt.Sprintf(prefix+format, i+j))
			}
			attacker.subscribe(clusterType, some...)
		}
		s.awaitAsked(t, clusterType, fmt.Sprintf(prefix+format, n-1))
	}
	ask("dir-%d/name", names)
	ask("dir-%d/*", globs)
	// The first answer of each glob is a member of its directory.
	for i := range globs {
		s.send(t, clusterType, fmt.Sprint(i), versioned(t, "1", plainCluster(fmt.Sprintf(prefix+"dir-%d/other", i), "")))
	}
	if page := fetch(t, "http://"+r.admin+"/metrics"); !strings.Contains(page, "xds_relay_upstream_streams") {
		t.Error("the page /metrics has no metrics")
	}
	want := plainCluster(prefix+"victim", "after the attack")
	s.send(t, clusterType, "victim", versioned(t, "1", want))
	victim.awaitHas(t, "the update after the attack", want)
}

// One control plane sends a list of 20,000 equal entries.
func TestAListOfEqualEntriesDelaysNoClient(t *testing.T) {
	t.Parallel()
	const view = "xdstp://views/envoy.config.cluster.v3.Cluster/all/*"
	const list = "xdstp://cp.example.com/envoy.config.cluster.v3.ClusterCollection/list"
	const listType = "type.googleapis.com/envoy.config.cluster.v3.ClusterCollection"
	const member = "xdstp://cp.example.com/envoy.config.cluster.v3.Cluster/member"
	h := startHandmade(t)
	r := startRelay(t, relayTo(h.address, "delta")+fmt.Sprintf(`
views:
  - match: {glob: %q}
    collections: [%q]
`, view, list))
	victim := openClient(t, connect(t, r.address), delta, node("victim", ""))
	victim.subscribe(clusterType, wildcard)
	go victim.takeAll()
	old := h.stream(t)
	old.awaitAsked(t, clusterType, wildcard)
	viewer := openClient(t, connect(t, r.address), delta, node("viewer", ""))
	viewer.subscribe(clusterType, view)
	go viewer.takeAll()
	s := h.stream(t)
	s.awaitAsked(t, listType, list)

	entry, err := proto.Marshal(located(member))
	if err != nil {
		t.Fatal(err)
	}
	var value []byte
	for range 20_000 {
		value = protowire.AppendBytes(protowire.AppendTag(value, 1, protowire.BytesType), entry)
	}
	s.send(t, listType, "1", &discoveryv3.Resource{Name: list, Version: "1", Resource: &anypb.Any{TypeUrl: listType, Value: value}})
	for i := range 10 {
		want := plainCluster("canary", fmt.Sprint(i))
		old.send(t, clusterType, fmt.Sprint(i), versioned(t, fmt.Sprint(i), want))
		victim.awaitHas(t, "an update while the list is read", want)
	}
	s.awaitAsked(t, clusterType, member)
	want := plainCluster(member, "")
	s.send(t, clusterType, "2", versioned(t, "1", want))
	viewer.awaitHas(t, "the list's member", want)
}
