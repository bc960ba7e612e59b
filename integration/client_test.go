package integration

// Raw xDS clients, which follow the protocol and record everything that they receive.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// view is what a client has received.
type view struct {
	held map[topic]held
	// gone are the removed names: by removed_resources, by NOT_FOUND, or because a full
	// state lacks a name that an earlier one had.
	gone   map[topic]bool
	errors map[topic]string
	// versions has the version of the newest response of each type.
	versions map[string]string
	// log has all names in the order in which the client received them, with a - before
	// removed ones.
	log       []topic
	responses int
	ended     error // why the stream ended; nil while it is open
}

// held is a resource as a client holds it.
type held struct {
	version string // delta: the resource's; SotW: the response's
	value   string
	inner   string // the name inside the resource
}

func newView() view {
	return view{held: map[topic]held{}, gone: map[topic]bool{}, errors: map[topic]string{}, versions: map[string]string{}}
}

// String describes the view, for a failed test.
func (v *view) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d responses, ended %v, gone %v, errors %v, log %v", v.responses, v.ended, v.gone, v.errors, v.log)
	for t, r := range v.held {
		fmt.Fprintf(&b, "\nheld: %v version %q, %d bytes", t, r.version, len(r.value))
	}
	return b.String()
}

// contents returns the resources, encoded, by topic, to compare with what a client holds.
func contents(resources ...proto.Message) map[topic]string {
	values := map[topic]string{}
	for _, r := range resources {
		value := encode(r)
		values[topic{typeOf(r), innerName([]byte(value))}] = value
	}
	return values
}

// has reports whether the client holds these contents, and maybe others.
func (v *view) has(want map[topic]string) bool {
	for t, value := range want {
		if v.held[t].value != value {
			return false
		}
	}
	return true
}

// names lists the resources of a type that the client holds.
func (v *view) names(typeURL string) []string {
	var names []string
	for t := range v.held {
		if t.typeURL == typeURL {
			names = append(names, t.name)
		}
	}
	slices.Sort(names)
	return names
}

// received lists the names of a type that the client received after the first since entries of the log.
func (v *view) received(typeURL string, since int) (names []string) {
	for _, t := range v.log[since:] {
		if t.typeURL == typeURL {
			names = append(names, t.name)
		}
	}
	slices.Sort(names)
	return names
}

func (v *view) add(t topic, r held) {
	v.held[t] = r
	delete(v.gone, t)
	delete(v.errors, t)
	v.log = append(v.log, t)
}

func (v *view) remove(t topic) {
	delete(v.held, t)
	v.gone[t] = true
	v.log = append(v.log, topic{t.typeURL, "-" + t.name})
}

// client is a client on one stream.
type client struct {
	watched[view]
	form form
	t    testing.TB

	mu    sync.Mutex // guards the fields below, and sending
	speak speaker
	leave func() // ends the stream
}

// speaker is a form of the protocol.
type speaker interface {
	// subscribe changes the requested names of a type.
	subscribe(typeURL string, add, remove []string) error
	// receive receives one response. It may be called concurrently with the other methods.
	receive() (response, error)
	// ack ACKs a response, and sets its field full.
	ack(*response) error
}

// response is the content of a message, in either form.
type response struct {
	typeURL   string
	nonce     string
	version   string
	resources map[string]held // by name
	order     []string        // of the names
	removed   []string
	errors    []*discoveryv3.ResourceError
	full      bool // the client drops every held resource of the type that the response lacks
}

// connect opens a connection that is closed when the test ends. Its flow-control windows are small and do not
// grow.
func connect(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// newClient opens a stream with a connection of its own.
func newClient(t testing.TB, r *relay, f form, node *corev3.Node) *client {
	t.Helper()
	return newClientOn(t, connect(t, r.address), f, node)
}

// newClientOn opens a stream on a connection. The client reads until the test ends or leave is called.
func newClientOn(t testing.TB, conn *grpc.ClientConn, f form, node *corev3.Node) *client {
	t.Helper()
	c := openClient(t, conn, f, node)
	go c.takeAll()
	return c
}

// openClient opens a stream and does not read it.
func openClient(t testing.TB, conn *grpc.ClientConn, f form, node *corev3.Node) *client {
	t.Helper()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := &client{form: f, t: t, leave: cancel}
	c.value = newView()
	var err error
	if f == delta {
		c.speak, err = openDelta(ctx, ads, node)
	} else {
		c.speak, err = openSotW(ctx, ads, node)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// node returns a client's Node.
func node(id, cluster string) *corev3.Node { return &corev3.Node{Id: id, Cluster: cluster} }

// subscribe requests more names of a type.
func (c *client) subscribe(typeURL string, names ...string) {
	c.t.Helper()
	c.change(typeURL, names, nil)
}

// unsubscribe unsubscribes from names.
func (c *client) unsubscribe(typeURL string, names ...string) {
	c.t.Helper()
	c.change(typeURL, nil, names)
}

func (c *client) change(typeURL string, add, remove []string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	stuck := time.AfterFunc(patience, c.leave) // ends the stream if the relay does not read
	defer stuck.Stop()
	if err := c.speak.subscribe(typeURL, add, remove); err != nil {
		c.t.Errorf("changing the subscriptions to %v of %s: %v", add, typeURL, err)
	}
}

// takeAll receives responses until the stream ends.
func (c *client) takeAll() {
	for c.take() {
	}
}

// take receives one response. It returns false when the stream has ended.
func (c *client) take() bool {
	r, err := c.speak.receive()
	if err != nil {
		c.update(func(v *view) { v.ended = err })
		return false
	}
	c.mu.Lock()
	err = c.speak.ack(&r)
	c.mu.Unlock()
	c.update(func(v *view) { v.take(r, err) })
	return err == nil
}

func (v *view) take(r response, err error) {
	v.responses++
	v.ended = err
	v.versions[r.typeURL] = r.version
	for _, name := range r.order {
		v.add(topic{r.typeURL, name}, r.resources[name])
	}
	for _, name := range r.removed {
		v.remove(topic{r.typeURL, name})
	}
	for _, e := range r.errors {
		t := topic{r.typeURL, e.GetResourceName().GetName()}
		v.errors[t] = e.GetErrorDetail().GetMessage()
		if codes.Code(e.GetErrorDetail().GetCode()) == codes.NotFound {
			v.remove(t)
		}
	}
	if !r.full {
		return
	}
	for t := range maps.Clone(v.held) {
		if _, there := r.resources[t.name]; t.typeURL == r.typeURL && !there {
			v.remove(t)
		}
	}
}

// mark returns the length of the log so far, for received.
func (c *client) mark() (n int) {
	c.read(func(v *view) { n = len(v.log) })
	return n
}

// awaitHas waits until the client holds these resources.
func (c *client) awaitHas(t testing.TB, what string, resources ...proto.Message) {
	t.Helper()
	c.awaitContents(t, what, contents(resources...))
}

func (c *client) awaitContents(t testing.TB, what string, want map[topic]string) {
	t.Helper()
	c.await(t, fmt.Sprintf("the %s client has %s", c.form, what), func(v *view) bool { return v.ended != nil || v.has(want) })
	c.mustLive(t)
}

// mustLive ends the test if the client's stream has ended.
func (c *client) mustLive(t testing.TB) {
	t.Helper()
	c.read(func(v *view) {
		if v.ended != nil {
			t.Fatalf("the %s client's stream ended: %v", c.form, v.ended)
		}
	})
}
