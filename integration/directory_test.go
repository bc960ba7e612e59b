package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// files is the authority that a directory serves in these tests.
const files = "files.example.com"

// fromDirectory returns the configuration of a relay that serves a directory.
func fromDirectory(dir string) string {
	return prelude + fmt.Sprintf("authorities:\n  - name: %s\n    directory: %q\n", files, dir)
}

// writeResources writes a file with a list of resources, each as an Any in JSON. It renames the file into
// place.
func writeResources(t testing.TB, dir, name string, resources ...proto.Message) {
	t.Helper()
	var list []string
	for _, r := range resources {
		text, err := protojson.Marshal(toAny(t, r))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(text))
	}
	replaceFile(t, filepath.Join(dir, name), "["+strings.Join(list, ",\n")+"]\n")
}

func replaceFile(t testing.TB, path, text string) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// TestDirectoryFeedsGRPCByXdstpNames checks TP1 and gRFC A47 from end to end: RPCs to a target with an
// authority reach a backend through xdstp names whose resources come from files, and follow a change of a
// file.
func TestDirectoryFeedsGRPCByXdstpNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := startBackend(t, "first"), startBackend(t, "second")
	name := func(message, id string) string {
		return fmt.Sprintf("xdstp://%s/envoy.config.%s/%s", files, message, id)
	}
	listener := name("listener.v3.Listener", "grpc/client/shop")
	routes := name("route.v3.RouteConfiguration", "shop?env=live")
	cluster := name("cluster.v3.Cluster", "shop")
	endpoints := name("endpoint.v3.ClusterLoadAssignment", "shop:eu")
	writeResources(t, dir, "shop.json",
		apiListener(t, listener, routes),
		routeConfiguration(routes, routeTo(cluster, prefix(""))),
		edsCluster(cluster, endpoints))
	writeResources(t, dir, "endpoints.json", endpointsAt(t, endpoints, first.address))

	r := startRelay(t, fromDirectory(dir))
	b := bootstrapFor(r, "edge-1")
	b.Authorities = map[string]bootstrapAuthority{
		files: {Template: "xdstp://" + files + "/envoy.config.listener.v3.Listener/grpc/client/%s"},
	}
	channel := dialXDS(t, b, "xds://"+files+"/shop")
	channel.awaitReaches(someMethod, first)

	writeResources(t, dir, "endpoints.json", endpointsAt(t, endpoints, second.address))
	channel.awaitReaches(someMethod, second)

	// The relay logs the error in a bad file with its line, and keeps the file's last good resources.
	replaceFile(t, filepath.Join(dir, "endpoints.json"), "[{\n\"@type\": oops\n}]\n")
	r.awaitLog(t, `level=ERROR.*endpoints\.json (line=2)`)
	channel.awaitReaches(someMethod, second)
	writeResources(t, dir, "endpoints.json", endpointsAt(t, endpoints, first.address))
	channel.awaitReaches(someMethod, first)
}

// TestUnknownAuthorityDoesNotExist checks that the relay answers at once if the authority of a name is not
// configured, and opens no connection for it: a client must not be able to make the relay connect to an
// address.
func TestUnknownAuthorityDoesNotExist(t *testing.T) {
	t.Parallel()
	away := openPort(t) // no server listens there
	r := startRelay(t, fromDirectory(t.TempDir()))
	name := "xdstp://" + away.address + "/envoy.config.endpoint.v3.ClusterLoadAssignment/x"
	for _, f := range []form{delta, sotw} {
		c := newClient(t, r, f, node("client", ""))
		requested := time.Now()
		c.subscribe(endpointType, name)
		c.await(t, "the client learns that the name does not exist", func(v *view) bool {
			return v.gone[topic{endpointType, name}]
		})
		// A client that receives no answer waits 15 s before it takes the resource for absent.
		const most = 10 * time.Second
		if took := time.Since(requested); took > most {
			t.Errorf("the answer took %v for the %s client, want at most %v", took, f, most)
		}
		c.read(func(v *view) {
			if text := v.errors[topic{endpointType, name}]; !strings.Contains(text, away.address) {
				t.Errorf("the %s client received the error %q, want the authority %s in it", f, text, away.address)
			}
		})
	}
	away.turnedAway.read(func(n *int) {
		if *n > 0 {
			t.Errorf("the relay connected %d times to an address that a client named", *n)
		}
	})
}
