package downstream

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// tb is what testing.T and rapid.T have in common.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// testClient is the client's end of one stream, driven without goroutines and
// without gRPC: requests go in, and responses are fetched.
type testClient struct {
	st   *stream
	grpc *endable
	node *corev3.Node // nil once it was sent
	// woken: there is something to send, and somebody looking after it. That is
	// so after a wake and until all has been read.
	woken atomic.Bool
	// follows was composed with the last response, and comes next.
	follows *session.Response

	byType map[string]*typeMemory
}

// typeMemory is what a client must remember of a type to write its next request.
type typeMemory struct {
	nonce   string // of the newest response
	version string // SotW: that it accepted last
	names   []string
}

// Wake implements cache.Waker in the stream's place.
func (c *testClient) Wake() { c.woken.Store(true) }

// endable is a gRPC stream of which only the context is used, by which it can be ended.
type endable struct {
	grpc.ServerStream
	transport transport
}

// Context implements grpc.ServerStream.
func (e *endable) Context() context.Context {
	return grpc.NewContextWithServerTransportStream(context.Background(), &e.transport)
}

// transport is what gRPC has below a stream.
type transport struct {
	grpc.ServerTransportStream
	ended atomic.Pointer[status.Status]
}

// WriteStatus is what gRPC ends a stream with.
func (t *transport) WriteStatus(s *status.Status) error {
	t.ended.Store(s)
	return nil
}

// notGRPC stands in for a gRPC stream that nobody sends on.
type notGRPC struct{ grpc.ServerStream }

func (notGRPC) Context() context.Context { return context.Background() }

func newTestClient(s *Server, form string, node *corev3.Node) *testClient {
	c := &testClient{grpc: new(endable), node: node, byType: map[string]*typeMemory{}}
	c.st = s.open(c.grpc, nil, form, "")
	c.st.inbox.waker = c
	return c
}

func (c *testClient) memory(typeURL string) *typeMemory {
	m := c.byType[typeURL]
	if m == nil {
		m = &typeMemory{}
		c.byType[typeURL] = m
	}
	return m
}

func (c *testClient) takeNode() *corev3.Node {
	n := c.node
	c.node = nil
	return n
}

func (c *testClient) delta(req *discoveryv3.DeltaDiscoveryRequest) error {
	if n := c.takeNode(); req.Node == nil {
		req.Node = n
	}
	answer, err := take(c.st, deltaForm, encoded(req))
	c.accepted(answer)
	return err
}

func (c *testClient) sotw(req *discoveryv3.DiscoveryRequest) error {
	if n := c.takeNode(); req.Node == nil {
		req.Node = n
	}
	answer, err := take(c.st, sotwForm, encoded(req))
	c.accepted(answer)
	return err
}

// take processes an encoded request as serve does, but on the caller's goroutine. It reports whether there may be
// something to send.
func take[R request, S typeSession](st *stream, f form[R, S], data []byte) (answer bool, err error) {
	g := f.fields.Peek(data)
	if taken, answer := st.repeated(g); taken {
		return answer, nil
	}
	return decodeAndAccept(st, f, data, g)
}

// encoded is a request as it comes.
func encoded(req proto.Message) []byte {
	b, err := proto.Marshal(req)
	if err != nil {
		panic(err) // of a message that the test has made
	}
	return b
}

// accepted does what serve does after a request.
func (c *testClient) accepted(answer bool) {
	if answer && c.st.inbox.wake() {
		c.Wake()
	}
}

// next returns the response that the stream sends next, nil if there is none.
func (c *testClient) next() *session.Response {
	r := c.follows
	if r == nil {
		r = c.st.next()
	}
	if c.follows = nil; r != nil {
		c.st.resendSecrets(r) // as transmit does
		c.follows = r.Next
	}
	return r
}

// read returns the next response, nil if there is none: what send does, one step
// at a time. It checks what holds for each response, whatever the transcript.
func (c *testClient) read(t tb) *received {
	t.Helper()
	for {
		woken := c.woken.Load() // before, as others may wake it meanwhile
		r := c.next()
		if r != nil && !c.woken.Load() {
			t.Fatalf("there is a response of %s to send, but nobody was woken to send it", shortName(r.TypeURL))
		}
		if r != nil {
			got := decode(t, c.st.form, r)
			got.check(t, c.st.server.options.MaxResponseBytes)
			m := c.memory(got.typeURL)
			m.nonce, m.version = got.nonce, got.version
			return got
		}
		if !woken {
			return nil
		}
		c.woken.Store(false)
		if c.st.inbox.sleep() {
			return nil
		}
		c.woken.Store(true)
	}
}

func (c *testClient) readAll(t tb) []*received {
	t.Helper()
	var all []*received
	for r := c.read(t); r != nil; r = c.read(t) {
		all = append(all, r)
	}
	return all
}

func (c *testClient) close() {
	c.st.end()
	c.st.server.forget(c.st)
}

// received is a response of either form, as a client decodes it.
type received struct {
	form      string
	typeURL   string
	nonce     string
	version   string // delta: system_version_info
	resources []receivedResource
	removed   []string
	bodiless  []string // those of removed that a resource without body removes
	errors    []receivedError
	complete  []string // delta: the sets whose first answer is complete
	size      int
}

type receivedResource struct {
	name    string // SotW: the name inside
	inside  string
	version string // delta, or wrapped
	content string
	// What is only in a Resource.
	wrapped     bool // SotW
	ttl         time.Duration
	beat        bool // there is no resource in it
	aliases     []string
	locator     bool // named by resource_name
	redirect    bool
	constraints string
}

type receivedError struct {
	name    string
	code    codes.Code
	message string
}

func decode(t tb, form string, r *session.Response) *received {
	t.Helper()
	b := r.Encode().Materialize()
	got := &received{form: form, size: len(b)}
	var errs []*discoveryv3.ResourceError
	if form == deltaForm.name {
		var m discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatalf("the client cannot decode a delta response: %v", err)
		}
		got.typeURL, got.nonce, got.removed, errs = m.GetTypeUrl(), m.GetNonce(), m.GetRemovedResources(), m.GetResourceErrors()
		got.version = m.GetSystemVersionInfo()
		for f := wire.Walk(m.ProtoReflect().GetUnknown()); f.Next(); {
			if f.Num == wire.DeltaComplete {
				got.complete = append(got.complete, string(f.Bytes))
			}
		}
		for _, n := range m.GetRemovedResourceNames() {
			got.removed = append(got.removed, n.GetName()+showConstraints(n))
		}
		for _, res := range m.GetResources() {
			if res.GetResource() == nil && res.GetTtl() == nil {
				// Without a body, but no heartbeat: it does not exist.
				if !slices.Equal(res.GetAliases(), []string{res.GetName()}) {
					t.Errorf("%q has no body, and the aliases %v", res.GetName(), res.GetAliases())
				}
				got.bodiless = append(got.bodiless, res.GetName())
				got.removed = append(got.removed, res.GetName())
				continue
			}
			got.resources = append(got.resources, openResource(t, m.GetTypeUrl(), res))
		}
	} else {
		var m discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatalf("the client cannot decode a SotW response: %v", err)
		}
		got.typeURL, got.nonce, got.version, errs = m.GetTypeUrl(), m.GetNonce(), m.GetVersionInfo(), m.GetResourceErrors()
		for _, res := range m.GetResources() {
			if res.GetTypeUrl() == xdstype.Wrapper {
				var inside discoveryv3.Resource
				if err := res.UnmarshalTo(&inside); err != nil {
					t.Fatalf("the client cannot decode a Resource: %v", err)
				}
				x := openResource(t, m.GetTypeUrl(), &inside)
				x.wrapped = true
				got.resources = append(got.resources, x)
				continue
			}
			x := openAny(t, m.GetTypeUrl(), res)
			x.name = x.inside
			got.resources = append(got.resources, x)
		}
	}
	for _, e := range errs {
		name := e.GetResourceName().GetName()
		if e.GetResourceName().GetDynamicParameterConstraints() != nil {
			name += showConstraints(e.GetResourceName())
		}
		got.errors = append(got.errors, receivedError{name, codes.Code(e.GetErrorDetail().GetCode()), e.GetErrorDetail().GetMessage()})
	}
	// The order within a response means nothing.
	slices.SortStableFunc(got.resources, func(a, b receivedResource) int {
		return strings.Compare(a.name+a.constraints, b.name+b.constraints)
	})
	return got
}

// showConstraints shows those of a variant that tests have: {env=prod}.
func showConstraints(n *discoveryv3.ResourceName) string {
	c := n.GetDynamicParameterConstraints().GetConstraint()
	if c == nil {
		return "{}"
	}
	return "{" + c.GetKey() + "=" + c.GetValue() + "}"
}

func openResource(t tb, typeURL string, res *discoveryv3.Resource) (x receivedResource) {
	t.Helper()
	if res.GetResource() != nil {
		x = openAny(t, typeURL, res.GetResource())
	}
	x.name, x.version = res.GetName(), res.GetVersion()
	x.beat, x.ttl, x.aliases = res.GetResource() == nil, res.GetTtl().AsDuration(), res.GetAliases()
	if n := res.GetResourceName(); n != nil {
		if x.name != "" {
			t.Errorf("%q has both name and resource_name", x.name)
		}
		x.name, x.locator, x.constraints = n.GetName(), true, showConstraints(n)
	}
	return x
}

func openAny(t tb, typeURL string, a *anypb.Any) receivedResource {
	t.Helper()
	if a.GetTypeUrl() == xdstype.Locator {
		var locator xdscorev3.ResourceLocator
		if err := a.UnmarshalTo(&locator); err != nil {
			t.Fatalf("the client cannot decode a redirect: %v", err)
		}
		target, err := urn.URLFromProto(&locator)
		if err != nil {
			t.Fatalf("the client cannot read a redirect: %v", err)
		}
		return receivedResource{content: "redirect to " + target.String(), redirect: true}
	}
	if a.GetTypeUrl() != typeURL {
		t.Errorf("a response of %q holds a resource of %q", typeURL, a.GetTypeUrl())
	}
	name, content := decodeContent(a.GetValue())
	return receivedResource{inside: name, content: content}
}

// check holds what the protocol says of every response.
func (r *received) check(t tb, limit int) {
	t.Helper()
	if r.nonce == "" {
		t.Errorf("response without a nonce:\n%s", r)
	}
	if r.form == sotwForm.name && r.version == "" {
		t.Errorf("SotW response without version_info:\n%s", r)
	}
	seen := map[string]bool{}
	for _, res := range r.resources {
		// xDS: "Duplicate Resource Names"
		id := res.name + res.constraints
		if seen[id] {
			t.Errorf("%q is in one response twice:\n%s", id, r)
		}
		seen[id] = true
		if res.beat && (res.ttl == 0 || res.version == "") {
			t.Errorf("%q is a heartbeat without TTL or version:\n%s", res.name, r)
		}
	}
	for _, name := range r.removed {
		if seen[name] {
			t.Errorf("%q is in one response twice, or given and removed:\n%s", name, r)
		}
		seen[name] = true
	}
	withRemovals := len(r.removed)
	if !xdstype.Of(r.typeURL).Referenced && len(r.resources) == 1 {
		withRemovals = 0 // they go with one that is larger than the limit, too
	}
	if r.form == deltaForm.name && r.size > limit && len(r.resources)+withRemovals+len(r.errors) > 1 {
		t.Errorf("a response of %d bytes was not cut at %d:\n%s", r.size, limit, r)
	}
}

// String prints the response as the transcripts show it.
func (r *received) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s nonce=%s", shortName(r.typeURL), r.nonce)
	if r.form == sotwForm.name || r.version != "" {
		fmt.Fprintf(&b, " version=%s", r.version)
	}
	if len(r.resources)+len(r.removed)+len(r.errors) == 0 {
		b.WriteString(" empty")
	}
	for _, res := range r.resources {
		fmt.Fprintf(&b, "\n  %s", res.name)
		b.WriteString(res.constraints)
		if r.form == deltaForm.name || res.wrapped {
			fmt.Fprintf(&b, "@%s", res.version)
		}
		if res.beat {
			b.WriteString(" lives on")
		} else {
			content := res.content
			if !res.redirect {
				content = abbreviate(content)
			}
			fmt.Fprintf(&b, " = %s", content)
		}
		if res.ttl > 0 {
			fmt.Fprintf(&b, " ttl=%v", res.ttl)
		}
		if res.wrapped {
			b.WriteString(" (wrapped)")
		}
		if res.aliases != nil {
			fmt.Fprintf(&b, " aliases=%v", res.aliases)
		}
		if !res.beat && !res.redirect && res.inside != res.name {
			fmt.Fprintf(&b, " (named %q inside)", res.inside)
		}
	}
	for _, name := range r.removed {
		how := ""
		if slices.Contains(r.bodiless, name) {
			how = " (a resource without body, which is its own alias)"
		}
		fmt.Fprintf(&b, "\n  removed %s%s", name, how)
	}
	for _, e := range r.errors {
		fmt.Fprintf(&b, "\n  error %s: %s", e.name, strings.TrimSuffix(fmt.Sprintf("%s: %s", e.code, e.message), ": "))
	}
	if len(r.complete) > 0 {
		fmt.Fprintf(&b, "\n  complete: %s", strings.Join(r.complete, " "))
	}
	return b.String()
}

// newTestServer makes a server of c that keeps its log in a record.
func newTestServer(c *cache.Cache, limit int) (*Server, *logRecord) {
	log := newLogRecord()
	return NewServer(c, newClusterNames, Options{MaxResponseBytes: limit, Log: slog.New(log)}), log
}

// watcher and setWatcher watch something, so that it is there, and read nothing of it.
type watcher struct{ cache.Watch }

func (*watcher) Changed() cache.Waker { return nil }

type setWatcher struct{ cache.SetWatch }

func (*setWatcher) Changed() cache.Waker { return nil }

// globNamed returns the glob that an xdstp name is in, and whether it is that.
func globNamed(name string) (glob string, is bool) {
	key := name
	if k, err := urn.KeyOf(name); err == nil {
		key = k.Name
	}
	path, params, _ := strings.Cut(key, "?")
	glob = path[:strings.LastIndexByte(path, '/')+1] + "*"
	if params != "" {
		glob += "?" + params
	}
	return glob, glob == key
}

// open opens a stream without a gate.
func (s *Server) open(g grpc.ServerStream, id *identity.Identity, form, implied string) *stream {
	return s.openAt(nil, g, id, form, implied)
}
