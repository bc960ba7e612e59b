package relay

import (
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// TestCrossings plays the transcripts in testdata/crossing: the whole relay in process, between a control plane and
// clients that do what the transcript says. The folder's name has the forms of xDS that the two sides speak, the
// control plane's first. Each transcript is about one rule of the protocol document, which its first lines name. It
// shows everything that the control plane and the clients received, so no output means that no one received anything.
// The directives are:
//
//	respond TYPE [version=V] [nonce=N] [all | names-stream]
//	  One response of the control plane, on its newest stream, on its names
//	  stream (for names of a type that has a wildcard), or on all that are open.
//	  Nonces are A, B, C, ... unless given. Its lines are
//	    foo@1=one         a resource, its version (delta only) and its content;
//	                      one*3 is oneoneone. Optionally followed by as=TYPE (an Any
//	                      of another type) or garbage (no message of its type)
//	    =one              a resource without a name
//	    foo@1=one port=80 a Listener with an address
//	    foo@1             an empty Resource
//	    ttl=1m, alias=bar, nocache
//	                      after either of these, fields of the Resource; SotW
//	                      wraps the resource in one then
//	    foo@1 to=URL      a redirect, in SotW also wrapped
//	    removed foo
//	    error foo NOT_FOUND why
//	  A name with braces, foo{env=prod}, is the variant for clients with that
//	  parameter; see crossing_params_test.go.
//
//	control-plane ends [names-stream] | down | up
//	  It ends that stream; it goes away, with its connections; it returns.
//
//	connect CLIENT [acks] [service=CDS|EDS] [ttl] [versions]
//	  A client, whose Node has its name as the id, opens a stream: an aggregated
//	  one, or one of a service. With acks it ACKs all responses. With ttl it
//	  announces support of TTLs, and of wrapped resources. With versions, the
//	  output has the system_version_info of delta responses.
//
//	request CLIENT TYPE
//	  One request. A delta request has lines "subscribe A B", "unsubscribe A B" and
//	  "initial A@1 B" (B has the version that the client received last, on any
//	  stream). A SotW request has "names A B" (which later requests repeat) and
//	  "version V", instead of the version that was accepted last ("version
//	  accepted" is that of an earlier stream). Both may have "nack why", "node ID",
//	  which is otherwise only in the first request, and "nonce N": a SotW client
//	  sends the newest nonce of the type unless N is another one, or "none". A
//	  name with braces, A{env=prod&zone=1}, is a locator with dynamic parameters.
//
//	ack CLIENT TYPE
//	  The request that accepts the newest response.
//
//	disconnect CLIENT
//
//	stall CLIENT, resume CLIENT
//	  The client stops reading from its connection, and continues.
//
//	after DURATION
//	  Time passes. The relay stays subscribed to names without clients for
//	  another minute (cache.linger).
//
//	operator
//	  Shows the clients as the operator sees them.
//
// The output shows a resource in the form of its line, name@version=content, in SotW without the version unless it is
// wrapped; so foo@1,ttl=1m is a heartbeat. Versions that are hashes are shown as # and their first four digits.
// Successive requests of the relay that add or drop names are shown as one: their number depends on how soon the
// stream learns of each name. Each request of the relay has the Node: the output shows its id in the first request of a
// stream, and later only if it differs (node=none: there is no Node).
func TestCrossings(t *testing.T) {
	// With one processor, the relay finishes its work within one request or response before other goroutines run, so
	// that what it sends is split in the same manner each time.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, upstream := range []string{"delta", "sotw"} {
		for _, downstream := range []string{"delta", "sotw"} {
			dir := filepath.Join("testdata", "crossing", upstream+"-"+downstream)
			datadriven.Walk(t, dir, func(t *testing.T, path string) {
				synctest.Test(t, func(t *testing.T) {
					c := newCrossing(t, upstream, downstream)
					defer c.close()
					datadriven.RunTest(t, path, c.play)
				})
			})
		}
	}
}

// crossing is the relay with its control plane and clients.
type crossing struct {
	plane   *scriptedPlane
	serving *servedRelay
	form    string // of clients
	clients map[string]*scriptedClient
	// held are, by client, the versions of the resources that it received in delta, by type and name, and of what it
	// accepted in SotW, by type. They outlive its streams.
	held map[string]map[string]string
}

func newCrossing(t *testing.T, upstream, downstream string) *crossing {
	t.Helper()
	plane := newScriptedPlane(upstream)
	return &crossing{
		plane: plane, serving: startCrossing(t, upstream, plane),
		form: downstream, clients: map[string]*scriptedClient{}, held: map[string]map[string]string{},
	}
}

func (c *crossing) close() {
	for _, client := range c.clients {
		client.close()
	}
	c.serving.close()
	c.plane.down()
}

func (c *crossing) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	if d.Cmd == "operator" {
		return c.operator()
	}
	c.do(t, d)
	return strings.Join(c.heard(), "\n")
}

func (c *crossing) do(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	switch d.Cmd {
	case "respond":
		var version, nonce string
		d.MaybeScanArgs(t, "version", &version)
		d.MaybeScanArgs(t, "nonce", &nonce)
		on := []*planeStream{c.plane.open(d.HasArg("names-stream"))}
		if d.HasArg("all") {
			on = c.plane.all()
		}
		c.plane.respond(t, d.CmdArgs[0].Key, version, nonce, on, d.Input)
	case "control-plane":
		switch what := d.CmdArgs[0].Key; what {
		case "ends":
			c.plane.endStream(d.HasArg("names-stream"))
		case "down":
			c.plane.down()
		case "up":
			c.plane.up()
		default:
			t.Fatalf("%s: the control plane cannot be %q", d.Pos, what)
		}
	case "connect":
		name, service := d.CmdArgs[0].Key, "ADS"
		d.MaybeScanArgs(t, "service", &service)
		if c.held[name] == nil {
			c.held[name] = map[string]string{}
		}
		client := &scriptedClient{
			name: name, delta: c.form == "delta", acks: d.HasArg("acks"),
			node: &corev3.Node{Id: name}, held: c.held[name], versions: d.HasArg("versions"),
		}
		if d.HasArg("ttl") {
			client.node.ClientFeatures = []string{"xds.config.supports-resource-ttl", "xds.config.supports-resource-in-sotw"}
		}
		c.serving.connect(t, client, service)
		c.clients[name] = client
	case "request":
		c.client(t, d).request(t, d)
	case "ack":
		c.client(t, d).ack(typeURLOf(t, d.CmdArgs[1].Key))
	case "disconnect":
		client := c.client(t, d)
		client.close()
		delete(c.clients, client.name)
	case "stall":
		c.client(t, d).conn.stall()
	case "resume":
		c.client(t, d).conn.resume()
	case "after":
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		time.Sleep(wait)
	default:
		t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
	}
	synctest.Wait()
}

func (c *crossing) client(t *testing.T, d *datadriven.TestData) *scriptedClient {
	t.Helper()
	client := c.clients[d.CmdArgs[0].Key]
	if client == nil {
		t.Fatalf("%s: no client %q is connected", d.Pos, d.CmdArgs[0].Key)
	}
	return client
}

// heard returns what the control plane and then the clients, by name, have received since the last call. There is no
// order between them.
func (c *crossing) heard() []string {
	out := c.plane.take()
	for _, name := range slices.Sorted(maps.Keys(c.clients)) {
		out = append(out, c.clients[name].take()...)
	}
	return out
}

func (c *crossing) operator() string {
	var b strings.Builder
	for client := range c.serving.relay.observer.Clients() {
		fmt.Fprintf(&b, "%s %s:", client.Node, client.Form)
		for _, t := range client.Types {
			fmt.Fprintf(&b, " %s, %d subscribed to", t.Type, t.Subscriptions)
			if t.LastRejection != "" {
				fmt.Fprintf(&b, ", last rejection: %s", t.LastRejection)
			}
			b.WriteString(";")
		}
		b.WriteString("\n")
	}
	return b.String()
}
