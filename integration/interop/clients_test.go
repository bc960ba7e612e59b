package interop

// The kinds of clients, and what each does in the test.

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// client is a kind of client.
type client struct {
	name string
	// without returns why a control plane has no resources for the client, or "" if it has.
	without func(kind) string
	// prepare makes sure that the client can run, and returns an error if it cannot.
	prepare func() error
	// run tests the client with a control plane, through the relay.
	run func(testing.TB, *plane)
}

var clients = []client{
	{"grpc-go", everywhere, always, visits(dialGo)},
	{"grpc-js", everywhere, prepareNode, visits(dialNode)},
	{"C++ core", everywhere, preparePython, visits(dialPython)},
	{"grpc-java", everywhere, prepareJava, visits(dialJava)},
	{"ratelimit", withRules, prepareRateLimit, rules},
}

func everywhere(kind) string { return "" }

func always() error { return nil }

// shopper is a client that sends RPCs to the shop. visit returns the id of the backend that answered.
type shopper interface {
	visit() (backend string, err error)
}

// method is the method of the RPCs. Every backend has it.
const method = "/shop.Shop/Visit"

// visits returns a test in which a client's RPCs reach the shop and follow its changes.
func visits(dial func(t testing.TB, bootstrap, target string) shopper) func(testing.TB, *plane) {
	return func(t testing.TB, p *plane) {
		first, second, third := startBackend(t, "first"), startBackend(t, "second"), startBackend(t, "third")
		p.show("one", first)
		r := startRelay(t, p.address)
		s := dial(t, bootstrap(t, r.address), p.target())

		awaitReaches(t, s, first)
		p.show("one", second) // other endpoints
		awaitReaches(t, s, second)
		p.show("two", third) // another cluster
		awaitReaches(t, s, third)
		p.show("one", second) // and back
		awaitReaches(t, s, second)

		p.check(t)
		r.CheckRejections()
	}
}

// awaitReaches waits until an RPC reaches want, and checks that the RPCs after it reach want, too.
func awaitReaches(t testing.TB, s shopper, want *backend) {
	t.Helper()
	reach := func() error {
		id, err := s.visit()
		if err == nil && id != want.id {
			err = fmt.Errorf("an RPC reached %q", id)
		}
		return err
	}
	eventually(t, "RPCs reach "+want.id, reach)
	const more = 50
	for range more {
		if err := reach(); err != nil {
			t.Fatalf("RPCs had reached %s, then: %v", want.id, err)
		}
	}
}

// node is the Node of gRPC's clients. Istio parses the id and uses the metadata; grpc-js requires the
// locality.
var node = map[string]any{
	"id":       nodeID,
	"metadata": map[string]any{"GENERATOR": "grpc", "NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes"},
	"locality": map[string]any{"region": "here"},
}

// bootstrap returns gRPC's xDS bootstrap (A27) as `xds-relay bootstrap` prints it, with the Node that these
// control planes require. The second of two servers is the fallback.
func bootstrap(t testing.TB, servers ...string) string {
	t.Helper()
	const config = "listeners: [{address: \"127.0.0.1:0\"}]\nauthorities: [{name: control-plane, servers: [{address: \"127.0.0.1:1\"}]}]\nold_style_names: [{authority: control-plane}]\n"
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"bootstrap", "--for", "grpc", "--config", file, "--node-id", nodeID}
	for _, s := range servers {
		args = append(args, "--server", s)
	}
	printed, err := exec.Command(peers.Binary(), args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(printed, &all); err != nil {
		t.Fatal(err)
	}
	all["node"] = node
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
