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

// TestCrossings plays the transcripts in testdata/crossing: the whole relay in
// process, between a control plane and clients that do what the transcript says.
// The folder's name says which forms of xDS the two sides speak, the control
// plane's first. Each transcript is about one rule of the protocol document,
// which its first lines name, and shows everything that anybody received, so
// that no output means that nobody said anything. The directives are:
//
//	respond TYPE [version=V] [nonce=N] [all | names-stream]
//	  One response of the control plane, on its newest stream, on its names
//	  stream (for names of a type that has a wildcard), or on all that are open. Nonces are A, B, C, ... unless
//	  given. Its lines are
//	    foo@1=one         a resource, its version (delta only) and its content;
//	                      one*3 is oneoneone. Then, if need be, as=TYPE: an Any of
//	                      another type; garbage: no message of its type
//	    =one              a resource without a name
//	    foo@1             a Resource with nothing in it
//	    ttl=1m, alias=bar, nocache
//	                      after either, of the Resource; in SotW it is wrapped
//	                      in one then
//	    foo@1 to=URL      a redirect, in SotW wrapped too
//	    removed foo
//	    error foo NOT_FOUND why
//	  A name with braces, foo{env=prod}, is that of the variant for who asks with
//	  that parameter; see crossing_params_test.go.
//
//	control-plane ends [names-stream] | down | up
//	  It ends that stream; it goes, with its connections; it is back.
//
//	connect CLIENT [acks] [service=CDS|EDS] [ttl] [versions]
//	  A client, whose node's id is its name, opens a stream: an aggregated one, or
//	  that of a service. With acks it ACKs whatever it gets. With ttl it says that
//	  it supports TTLs, and wrapped resources. With versions the system_version_info
//	  of delta responses is shown too.
//
//	request CLIENT TYPE
//	  One request. A delta one has lines "subscribe A B", "unsubscribe A B" and
//	  "initial A@1 B" (of B the version that the client was given last, on
//	  whatever stream). A SotW one has "names A B" (which later requests repeat)
//	  and "version V", in the place of the one that was accepted last ("version
//	  accepted" is that of an earlier stream). Both may have "nack why", "node ID",
//	  which is otherwise in the first request only, and "nonce N": a SotW client
//	  gives the newest nonce of the type unless that says another, or "none". A
//	  name with braces, A{env=prod&zone=1}, is a locator with dynamic parameters.
//
//	ack CLIENT TYPE
//	  The request that accepts the newest response.
//
//	disconnect CLIENT
//
//	stall CLIENT, resume CLIENT
//	  The client stops reading from its connection, and goes on.
//
//	after DURATION
//	  Time passes. What nobody requests any more is subscribed to for another
//	  minute (cache.linger).
//
//	operator
//	  The clients as the operator sees them.
//
// A resource is shown as its line is written, name@version=content, in SotW without
// the version unless it is wrapped; so foo@1,ttl=1m is a heartbeat. Versions that
// are a hash are shown as # and their first four digits. Requests
// of the relay that follow one another, and add or drop names, are shown as one:
// how many there are depends on how soon the stream hears of each name.
func TestCrossings(t *testing.T) {
	// What the relay does within one request or response is then over before
	// others hear of it, so that it is always the same that is told in one piece.
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

// crossing is the relay and those whom it stands between.
type crossing struct {
	plane   *scriptedPlane
	serving *servedRelay
	form    string // of clients
	clients map[string]*scriptedClient
	// held are, by client, the versions of what it was given in delta, by type and
	// name, and of what it accepted in SotW, by type. They outlive its streams.
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
	case "operator":
		return c.operator()
	default:
		t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
	}
	synctest.Wait()
	return strings.Join(c.heard(), "\n")
}

func (c *crossing) client(t *testing.T, d *datadriven.TestData) *scriptedClient {
	t.Helper()
	client := c.clients[d.CmdArgs[0].Key]
	if client == nil {
		t.Fatalf("%s: no client %q is connected", d.Pos, d.CmdArgs[0].Key)
	}
	return client
}

// heard is what everybody has received since the last time: the control plane
// first, then the clients by name. Between them there is no order.
func (c *crossing) heard() []string {
	out := c.plane.take()
	for _, name := range slices.Sorted(maps.Keys(c.clients)) {
		out = append(out, c.clients[name].take()...)
	}
	return out
}

func (c *crossing) operator() string {
	var b strings.Builder
	for client := range c.serving.relay.clients() {
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
