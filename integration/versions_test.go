package integration

// Versions of responses. Operators compare the versions of clients with those that their control plane has
// published.

import (
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/proto"
)

// Clients with one name, with several names and with a wildcard receive the same versions as without the
// relay.
func TestVersionsAreThoseOfADirectConnection(t *testing.T) {
	for _, upstream := range []form{delta, sotw} {
		for _, downstream := range []form{delta, sotw} {
			t.Run(string(upstream)+" to "+string(downstream), func(t *testing.T) {
				t.Parallel()
				compareVersions(t, upstream, downstream)
			})
		}
	}
}

func compareVersions(t *testing.T, upstream, downstream form) {
	snapshots := cachev3.NewSnapshotCache(false, everybody{}, nil)
	publish := func(version string, content uint32) (changed []proto.Message) {
		a, cluster := plainEndpoints("A", content), plainCluster("a", version)
		snapshot, err := cachev3.NewSnapshot(version, map[string][]types.Resource{
			endpointType: {a, plainEndpoints("B", 1), plainEndpoints("C", 1)},
			clusterType:  {cluster, plainCluster("b", "1")},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := snapshots.SetSnapshot(t.Context(), "", snapshot); err != nil {
			t.Fatal(err)
		}
		return []proto.Message{a, cluster}
	}
	changed := publish("1", 1)
	cp := serveControlPlane(t, snapshots, upstream, downstream)
	r := startRelay(t, relayTo(cp.address, string(upstream)))
	few := func(address string) *client {
		c := newClientOn(t, connect(t, address), downstream, node("few", ""))
		c.subscribe(endpointType, "C")
		return c
	}
	all := func(address string) *client {
		c := newClientOn(t, connect(t, address), downstream, node("all", ""))
		c.subscribe(endpointType, "A", "B", "C")
		c.subscribe(clusterType) // the legacy wildcard, because go-control-plane takes * for a name in SotW
		return c
	}
	version := func(c *client, typeURL string) (version string) {
		c.read(func(v *view) { version = v.versions[typeURL] })
		return version
	}
	same := func(what, typeURL string, direct, through *client) {
		t.Helper()
		if want, got := version(direct, typeURL), version(through, typeURL); got != want {
			t.Errorf("%s: the version is %q of %s through the relay, and %q without it", what, got, typeURL, want)
		}
	}
	fewDirect, fewThrough := few(cp.address), few(r.address)
	for _, c := range []*client{fewDirect, fewThrough} {
		c.awaitHas(t, "C", plainEndpoints("C", 1))
	}
	same("one name", endpointType, fewDirect, fewThrough)
	allDirect, allThrough := all(cp.address), all(r.address)
	for _, c := range []*client{allDirect, allThrough} {
		c.awaitHas(t, "all resources", append(changed, plainEndpoints("B", 1), plainEndpoints("C", 1), plainCluster("b", "1"))...)
	}
	same("three names", endpointType, allDirect, allThrough)
	same("a wildcard", clusterType, allDirect, allThrough)

	before := fewThrough.mark()
	changed = publish("2", 2)
	for _, c := range []*client{allDirect, allThrough} {
		c.awaitHas(t, "the changed resources", changed...)
	}
	same("three names, of which one has changed", endpointType, allDirect, allThrough)
	same("a wildcard with a changed member", clusterType, allDirect, allThrough)
	if got := version(allThrough, endpointType); got != "2" {
		t.Errorf("the version is %q, want 2, which the control plane has published", got)
	}
	lateDirect, lateThrough := few(cp.address), few(r.address)
	for _, c := range []*client{lateDirect, lateThrough} {
		c.awaitHas(t, "C", plainEndpoints("C", 1))
	}
	same("a new client", endpointType, lateDirect, lateThrough)
	if now := fewThrough.mark(); now != before {
		t.Errorf("a client without a changed resource received %d resources", now-before)
	}
}
