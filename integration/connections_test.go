package integration

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
)

// TestAuthoritiesAtOneAddressShareAConnection checks that authorities, partitions and servers share a
// connection if they have the same address and the same settings of the connection.
func TestAuthoritiesAtOneAddressShareAConnection(t *testing.T) {
	cp := startControlPlane(t, delta)
	cp.set(plainEndpoints("a", 1))
	counted := startBalancer(t, cp.address)
	r := startRelay(t, prelude+fmt.Sprintf(`
authorities:
  - name: one.example.com
    servers: [{address: "%[1]s", protocol: delta}]
  - name: two.example.com
    servers: [{address: "%[1]s", globs: false, backoff: {max: 5s}}]
  - name: apart.example.com
    servers: [{address: "%[1]s", keepalive: {time: 1m}}]
old_style_names:
  - when: node.cluster == "one"
    authority: one.example.com
    partition: node.id
  - when: node.cluster == "two"
    authority: two.example.com
  - authority: apart.example.com
`, counted.address))
	open := func(id, cluster string) {
		c := newClient(t, r, delta, node(id, cluster))
		c.subscribe(endpointType, "a")
		c.awaitHas(t, "the endpoints", plainEndpoints("a", 1))
	}
	open("1", "one")
	open("2", "one")
	open("3", "two")
	if n := counted.count(); n != 1 {
		t.Errorf("%d connections for three scopes with the same address and settings, want 1", n)
	}
	open("4", "three")
	if n := counted.count(); n != 2 {
		t.Errorf("%d connections for scopes with two kinds of settings, want 2", n)
	}
}

// TestPartitionsBeyondTheStreamsOfAConnection checks that the relay opens more connections if a control plane
// allows fewer streams on one than there are partitions, and closes them again. gRFC A105.
func TestPartitionsBeyondTheStreamsOfAConnection(t *testing.T) {
	const streams = 250
	var partitions []string
	for i := range streams {
		partitions = append(partitions, fmt.Sprint("node-", i))
	}
	cp := startPartitions(t, (*corev3.Node).GetId, partitions, delta)
	cp.stop()
	cp.options = []grpc.ServerOption{grpc.MaxConcurrentStreams(100)}
	cp.start()
	for i, p := range partitions {
		cp.setIn(p, plainEndpoints("backend", uint32(i+1)))
	}
	counted := startBalancer(t, cp.address)
	r := startRelay(t, prelude+servedBy(counted.address, "delta")+`
old_style_names:
  - authority: cp.example.com
    partition: node.id
cache: {linger: 50ms}
`)
	var clients []*client
	for _, p := range partitions {
		c := newClient(t, r, delta, node(p, ""))
		c.subscribe(endpointType, "backend")
		clients = append(clients, c)
	}
	for i, c := range clients {
		c.awaitHas(t, "its partition's endpoints", plainEndpoints("backend", uint32(i+1)))
	}
	if n := counted.count(); n != 3 {
		t.Errorf("%d streams use %d connections, want 3", streams, n)
	}
	for _, c := range clients[20:] {
		c.leave()
	}
	counted.ways.await(t, "the relay closes the additional connections", func(all *[]*way) bool { return len(*all) == 1 })
	for i, c := range clients[:20] {
		cp.setIn(partitions[i], plainEndpoints("backend", 1000))
		c.awaitHas(t, "a change", plainEndpoints("backend", 1000))
	}
}
