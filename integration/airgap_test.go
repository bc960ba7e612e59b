package integration

import (
	"bytes"
	"regexp"
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestAStoreCrossesAnAirGap checks that a relay that never reaches a control plane serves the resources that
// another relay has stored and exported, once it has imported them.
func TestAStoreCrossesAnAirGap(t *testing.T) {
	cp := startControlPlane(t, delta)
	all := []proto.Message{plainCluster("a", "1"), plainCluster("b", "1"), plainEndpoints("at-a", 1)}
	cp.set(all...)
	config := storing(t, relayTo(cp.address, string(delta)), "")
	path := regexp.MustCompile(`path: (\S+accepted\.db)`).FindStringSubmatch(config)
	if path == nil {
		t.Fatalf("the configuration has no store:\n%s", config)
	}
	ask := func(r *relay, id string) *client {
		c := newClient(t, r, delta, node(id, ""))
		c.subscribe(clusterType, wildcard)
		c.subscribe(endpointType, "at-a")
		return c
	}
	r := startRelay(t, config)
	ask(r, "connected").awaitHas(t, "all resources", all...)
	r.awaitStored(t, 4) // the set has a record of its own
	r.check(t)

	medium, err := command("store", "export", "--path", path[1]).Output()
	if err != nil {
		t.Fatal(err)
	}
	isolated := openPort(t) // no server listens there
	config = storing(t, relayTo(isolated.address, string(delta)), "")
	imported := regexp.MustCompile(`path: (\S+accepted\.db)`).FindStringSubmatch(config)[1]
	if imported == path[1] {
		t.Fatal("both relays use the same store")
	}
	load := command("store", "import", "--path", imported, "-")
	load.Stdin = bytes.NewReader(medium)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ask(startRelay(t, config), "isolated").awaitHas(t, "what was imported", all...)
}
