package relay

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
)

// TestNoClientLosesAnythingBySilence plays the silence matrix: a relay that has just been started, with a control
// plane that does not work, and every kind of client that connects. The transcripts in testdata/silence have one file
// for each way not to work. The directive is
//
//	clients SERVICE upstream=delta|sotw [when_unreachable=auto|end]
//	  Over that service (ads-delta, ads-sotw, single-delta, single-sotw, rest, fetch) one
//	  client after the other requests one thing. It is shown what each is sent within a
//	  minute, and after what time. A fresh client holds nothing; one that is resumed
//	  comes with the versions of all that it requests. What polls does so three times.
//	  when_unreachable is that of the listener; without it, wait.
//
// In every transcript, no client may be sent that a resource that it may hold is gone, or receive an empty state.
func TestNoClientLosesAnythingBySilence(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	datadriven.Walk(t, filepath.Join("testdata", "silence"), func(t *testing.T, path string) {
		state := strings.TrimSuffix(filepath.Base(path), ".txt")
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var form, when string
			d.ScanArgs(t, "upstream", &form)
			d.MaybeScanArgs(t, "when_unreachable", &when)
			subjects := quietSubjects
			if when != "" {
				subjects = append(slices.Clone(subjects), halfAlive)
			}
			var out strings.Builder
			for _, what := range subjects {
				for _, resumed := range []bool{false, true} {
					c := quietCell{service: d.CmdArgs[0].Key, quietSubject: what, resumed: resumed, when: whenUnreachable[configs.WhenUnreachable(when)]}
					if c.served() {
						synctest.Test(t, func(t *testing.T) { fmt.Fprintln(&out, c.play(t, state, form)) })
					}
				}
			}
			return out.String()
		})
	})
}

// quietSubject is what a client requests.
type quietSubject struct {
	kind  string
	typ   string   // of the resources
	names []string // none: the wildcard of the old form
	// members are the resources that a client of it may hold.
	members []string
	set     bool // a wildcard or a glob is in it
	view    bool
	alive   bool // some of it can be served
}

const (
	quietCluster   = "xdstp://silent/envoy.config.cluster.v3.Cluster/foo/"
	quietList      = "xdstp://silent/envoy.config.cluster.v3.ClusterCollection/l"
	quietEndpoints = "xdstp://silent/envoy.config.endpoint.v3.ClusterLoadAssignment/foo/"
	liveEndpoints  = "xdstp://live/envoy.config.endpoint.v3.ClusterLoadAssignment/bar/"
)

var quietSubjects = []quietSubject{
	{kind: "wildcard", typ: "cluster.v3.Cluster", members: []string{"a", "b"}, set: true},
	{kind: "cluster by name", typ: "cluster.v3.Cluster", names: []string{"a"}, members: []string{"a"}},
	{kind: "endpoints by name", typ: "endpoint.v3.ClusterLoadAssignment", names: []string{"a"}, members: []string{"a"}},
	{kind: "wildcard and name", typ: "cluster.v3.Cluster", names: []string{"*", "a"}, members: []string{"a", "b"}, set: true},
	{kind: "glob", typ: "cluster.v3.Cluster", names: []string{quietCluster + "*"}, members: []string{quietCluster + "a"}, set: true},
	{kind: "list", typ: "cluster.v3.ClusterCollection", names: []string{quietList}, members: []string{quietList}},
	{kind: "view", typ: "cluster.v3.Cluster", members: []string{quietCluster + "a"}, set: true, view: true},
	{kind: "view, half of it alive", typ: "endpoint.v3.ClusterLoadAssignment", members: []string{quietEndpoints + "a", liveEndpoints + "b"}, set: true, view: true, alive: true},
}

// halfAlive are the names of one stream of which only one can be served. The relay knows in advance that the other
// cannot, if that can be known.
var halfAlive = quietSubject{
	kind: "names of two authorities, one alive", typ: "endpoint.v3.ClusterLoadAssignment",
	names: []string{quietEndpoints + "a", liveEndpoints + "b"}, members: []string{quietEndpoints + "a", liveEndpoints + "b"}, alive: true,
}

const quietConfig = `
listeners:
  - address: 127.0.0.1:18000
node: {id: relay}
authorities:
  - name: silent
    servers:
      - {address: "silent:18000", protocol: PROTOCOL}
  - name: live
    servers:
      - {address: "live:18000", protocol: delta}
old_style_names:
  - authority: silent
views:
  - match: {type: cluster, wildcard: true}
    when: node.cluster == "view"
    collections:
      - xdstp://silent/envoy.config.cluster.v3.Cluster/foo/*
      - xdstp://silent/envoy.config.cluster.v3.ClusterCollection/l
  - match: {type: endpoint, wildcard: true}
    when: node.cluster == "view"
    collections:
      - xdstp://silent/envoy.config.endpoint.v3.ClusterLoadAssignment/foo/*
      - xdstp://live/envoy.config.endpoint.v3.ClusterLoadAssignment/bar/*
`

// quietCell is one client before one control plane.
type quietCell struct {
	service string
	quietSubject
	resumed bool
	when    downstream.WhenUnreachable

	t       *testing.T
	started time.Time
	got     []string
	last    *quietResponse // on the stream
	sent    int            // responses
	ended   error          // why the stream ended, if it did
}

// served reports whether the client can request it over that service.
func (c *quietCell) served() bool { return c.kind != "list" || strings.HasPrefix(c.service, "ads-") }

func (c *quietCell) play(t *testing.T, state, form string) string {
	t.Helper()
	silent, live := &quietPlane{state: state}, &quietPlane{state: "alive"}
	serving := startInMemory(t, strings.ReplaceAll(quietConfig, "PROTOCOL", form), func(authority string) dialer {
		if authority == "live" {
			return live.dial
		}
		return silent.dial
	})
	o := downstream.ListenerOptions{LongPoll: quietPoll, WhenUnreachable: c.when}
	server := grpc.NewServer(downstream.ServerOptions(o)...)
	serving.relay.server.Register(server, o)
	defer func() {
		server.Stop()
		serving.close()
		silent.close()
		live.close()
	}()
	c.t, c.started = t, time.Now()
	switch {
	case c.service == "rest":
		c.poll(func(req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, string) {
			return quietREST(t, serving.relay.server.HTTPServer(o).Handler, req)
		})
	case c.service == "fetch":
		conn := quietConn(t, server)
		defer func() { _ = conn.Close() }()
		c.poll(func(req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, string) {
			m := new(discoveryv3.DiscoveryResponse)
			if err := conn.Invoke(context.Background(), quietFetch[req.GetTypeUrl()], req, m); err != nil {
				return nil, status.Code(err).String()
			}
			return m, "OK"
		})
	default:
		conn := quietConn(t, server)
		defer func() { _ = conn.Close() }()
		if c.kind == halfAlive.kind {
			before := quietCell{service: c.service, quietSubject: c.quietSubject, t: t, when: downstream.EndNames}
			before.names = before.names[:1]
			before.stream(conn)
			c.started = time.Now()
		}
		c.stream(conn)
		c.judgeEnd(state)
	}
	kind := c.kind + ", fresh"
	if c.resumed {
		kind = c.kind + ", resumed"
	}
	if len(c.got) == 0 {
		c.got = []string{"nothing"}
	}
	return kind + ": " + strings.Join(c.got, "; ")
}

const (
	quietTime = time.Minute
	quietPoll = 20 * time.Second
)

// quietFetch are the Fetch methods, by type URL.
var quietFetch = map[string]string{
	crossingPrefix + "envoy.config.cluster.v3.Cluster":                clusterservice.ClusterDiscoveryService_FetchClusters_FullMethodName,
	crossingPrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment": endpointservice.EndpointDiscoveryService_FetchEndpoints_FullMethodName,
}

func (c *quietCell) typeURL() string { return crossingPrefix + "envoy.config." + c.typ }

func (c *quietCell) node() *corev3.Node {
	if c.view {
		return &corev3.Node{Id: "client", Cluster: "view"}
	}
	return &corev3.Node{Id: "client"}
}

func (c *quietCell) request() *discoveryv3.DiscoveryRequest {
	req := &discoveryv3.DiscoveryRequest{Node: c.node(), TypeUrl: c.typeURL(), ResourceNames: c.names}
	if c.resumed {
		req.VersionInfo = "7"
	}
	return req
}

// stream requests over a stream, and records the responses of a minute.
func (c *quietCell) stream(conn *grpc.ClientConn) {
	kind, form, _ := strings.Cut(c.service, "-")
	service := "ADS"
	if kind == "single" {
		service = map[bool]string{true: "CDS", false: "EDS"}[strings.HasSuffix(c.typ, ".Cluster")]
	}
	ctx, cancel := context.WithCancel(context.Background())
	delta := form == "delta"
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, crossingServices[service][map[bool]int{false: 0, true: 1}[delta]])
	if err != nil {
		c.t.Fatal(err)
	}
	if delta {
		req := &discoveryv3.DeltaDiscoveryRequest{Node: c.node(), TypeUrl: c.typeURL(), ResourceNamesSubscribe: c.names}
		if c.resumed {
			req.InitialResourceVersions = map[string]string{}
			for _, name := range c.members {
				req.InitialResourceVersions[name] = "7"
			}
		}
		err = s.SendMsg(req)
	} else {
		err = s.SendMsg(c.request())
	}
	if err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for c.receive(ctx, s, delta) {
			c.sent++
		}
	}()
	time.Sleep(quietTime)
	cancel()
	<-ended
}

func (c *quietCell) receive(ctx context.Context, s grpc.ClientStream, delta bool) bool {
	var err error
	if delta {
		m := new(discoveryv3.DeltaDiscoveryResponse)
		if err = s.RecvMsg(m); err == nil {
			c.noteResponse(namesOf(m.GetResources()), m.GetRemovedResources(), m.GetResourceErrors())
			c.judgeDelta(m)
			_ = s.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()})
			return true
		}
	} else {
		m := new(discoveryv3.DiscoveryResponse)
		if err = s.RecvMsg(m); err == nil {
			c.judgeSotW(m)
			c.noteResponse(innerNames(m), nil, m.GetResourceErrors())
			_ = s.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce(), VersionInfo: m.GetVersionInfo(), ResourceNames: c.names})
			return true
		}
	}
	if ctx.Err() == nil {
		c.ended = err
		c.note("the stream ends with " + status.Code(err).String())
	}
	return false
}

// poll requests three times.
func (c *quietCell) poll(ask func(*discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, string)) {
	req := c.request()
	for range quietTime / quietPoll {
		m, what := ask(req)
		if m == nil {
			c.note(what)
			continue
		}
		c.judgeSotW(m)
		c.note(describeQuiet(innerNames(m), nil, m.GetResourceErrors()))
		req.VersionInfo, req.ResponseNonce = m.GetVersionInfo(), m.GetNonce()
	}
}

// noteResponse is note for a response on a stream. The resources of two authorities may arrive in one response or in
// two, so they are shown as one.
func (c *quietCell) noteResponse(resources, removed []string, errors []*discoveryv3.ResourceError) {
	now := quietResponse{resources, removed, errors}
	if last := len(c.got) - 1; last >= 0 && c.kind == halfAlive.kind && c.last != nil {
		both := quietResponse{append(c.last.resources, resources...), append(c.last.removed, removed...), append(c.last.errors, errors...)}
		before := c.got[last]
		c.note(describeQuiet(c.last.resources, c.last.removed, c.last.errors))
		same := c.got[last+1] == before // it came at that time
		c.got = c.got[:last+1]
		if same {
			now, c.got = both, c.got[:last]
		}
	}
	c.last = &now
	c.note(describeQuiet(now.resources, now.removed, now.errors))
}

type quietResponse struct {
	resources, removed []string
	errors             []*discoveryv3.ResourceError
}

// note records a response and its time, in steps of 5 seconds, because much of it is jittered.
func (c *quietCell) note(what string) {
	const step = 5 * time.Second
	after := (time.Since(c.started) + step - 1).Truncate(step)
	c.got = append(c.got, fmt.Sprintf("by %v %s", after, what))
}

func describeQuiet(resources, removed []string, errors []*discoveryv3.ResourceError) string {
	parts := []string{"[" + strings.Join(resources, " ") + "]"}
	if len(removed) > 0 {
		parts = append(parts, "removed=["+strings.Join(removed, " ")+"]")
	}
	var errs []string
	for _, e := range errors {
		errs = append(errs, describeErrorName(e)+": "+codes.Code(e.GetErrorDetail().GetCode()).String())
	}
	if len(errs) > 0 {
		parts = append(parts, "errors=["+strings.Join(errs, " ")+"]")
	}
	return strings.Join(parts, " ")
}

func namesOf(resources []*discoveryv3.Resource) (names []string) {
	for _, r := range resources {
		names = append(names, r.GetName())
	}
	return names
}

func innerNames(m *discoveryv3.DiscoveryResponse) (names []string) {
	for _, a := range m.GetResources() {
		name, _ := readResource(a)
		names = append(names, name)
	}
	return names
}

// judgeDelta checks what must hold in every transcript: no control plane has sent that a resource is gone, or that
// there are none.
func (c *quietCell) judgeDelta(m *discoveryv3.DeltaDiscoveryResponse) {
	for _, name := range m.GetRemovedResources() {
		if c.resumed && slices.Contains(c.members, name) {
			c.t.Errorf("%s, %s: %s is sent as gone", c.service, c.kind, name)
		}
	}
	if c.set && len(m.GetResources()) == 0 {
		c.t.Errorf("%s, %s: sent as the answer to a set is %v", c.service, c.kind, m)
	}
}

// judgeEnd checks which streams end: those on which nothing can be served because no control plane can be reached, as
// the listener's configuration says. gRFC A71: nothing is sent on them.
func (c *quietCell) judgeEnd(state string) {
	lost := state == "unreachable" || state == "refusing"
	ends := !c.alive && lost && (c.when == downstream.EndAll || c.when == downstream.EndNames && !c.set)
	switch {
	case !ends && c.ended != nil:
		c.t.Errorf("%s, %s: the stream ends with %v", c.service, c.kind, c.ended)
	case ends && (status.Code(c.ended) != codes.Unavailable || c.sent > 0):
		c.t.Errorf("%s, %s: the stream ends with %v after %d responses, want UNAVAILABLE and none", c.service, c.kind, c.ended, c.sent)
	}
}

func (c *quietCell) judgeSotW(m *discoveryv3.DiscoveryResponse) {
	has := innerNames(m)
	if full := c.set || strings.HasSuffix(c.typ, ".Cluster"); full {
		if len(has) == 0 {
			c.t.Errorf("%s, %s: an empty state: %v", c.service, c.kind, m)
		}
		for _, name := range c.members {
			if c.resumed && !slices.Contains(has, name) {
				c.t.Errorf("%s, %s: %s is missing in %v", c.service, c.kind, name, m)
			}
		}
	}
	for _, e := range m.GetResourceErrors() {
		switch codes.Code(e.GetErrorDetail().GetCode()) {
		case codes.NotFound, codes.PermissionDenied:
			if c.resumed {
				c.t.Errorf("%s, %s: sent as gone: %v", c.service, c.kind, e)
			}
		}
	}
}

func quietREST(t *testing.T, h http.Handler, req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, string) {
	t.Helper()
	body, err := protojson.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	path := map[bool]string{true: "clusters", false: "endpoints"}[strings.HasSuffix(req.GetTypeUrl(), ".Cluster")]
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/v3/discovery:"+path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		return nil, fmt.Sprint(w.Code)
	}
	m := new(discoveryv3.DiscoveryResponse)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(w.Body.Bytes(), m); err != nil {
		t.Fatal(err)
	}
	return m, "200"
}

func quietConn(t *testing.T, s *grpc.Server) *grpc.ClientConn {
	t.Helper()
	lis := memconn.Listen(connBuffer)
	go func() { _ = s.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///relay", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
