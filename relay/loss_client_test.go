package relay

// The clients of the loss matrix.

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
	"google.golang.org/grpc/status"
)

// lossSubject is what a client requests.
type lossSubject struct {
	name    string
	typeURL string
	names   []string // none: the wildcard of the old form
	set     bool     // a wildcard or glob is in it
	view    bool
	// noVersions: a client that comes back does not say what it has, as Envoy of globs.
	noVersions bool
	services   string // that it can be requested over, all if empty
}

var lossSubjects = []lossSubject{
	{name: "wildcard", typeURL: lossCluster, set: true},
	{name: "clusters by name", typeURL: lossCluster, names: []string{"c00", "c23"}},
	{name: "endpoints by name", typeURL: lossEndpoint, names: []string{"c00", "c23"}},
	{name: "glob", typeURL: lossCluster, names: []string{lossGlob + "*"}, set: true, services: "delta sotw"},
	{name: "glob, as Envoy", typeURL: lossCluster, names: []string{lossGlob + "*"}, set: true, noVersions: true, services: "delta"},
	{name: "list", typeURL: lossCluster + "Collection", names: []string{lossList}, services: "delta"},
	{name: "view", typeURL: lossCluster, set: true, view: true},
}

// lossServices are how a client can request.
var lossServices = []string{"delta", "sotw", "single delta", "single sotw", "rest", "fetch"}

func (s *lossSubject) over(service string) bool {
	return s.services == "" || slices.Contains(strings.Fields(s.services), service)
}

// lossClient applies what it is sent, as Envoy and gRPC do (testdata/loss.md says where):
//
//   - A SotW response of clusters is all there is. One of endpoints changes those in it.
//   - resource_errors take nothing away.
//   - When its stream ends, it comes back with what it has.
type lossClient struct {
	*lossSubject
	service string
	session string // fresh, resumed or open
	relayed bool   // it is connected to the relay
	// dial returns a connection. poll is for REST.
	dial func(*testing.T) *grpc.ClientConn
	poll func(context.Context, *discoveryv3.DiscoveryRequest) (m *discoveryv3.DiscoveryResponse, what string)

	mu       sync.Mutex
	has      map[string]string // the content of what it has, by name
	versions map[string]string // in delta, the versions of that
	version  string            // in SotW, version_info
	since    time.Time
	times    lossTimes
	steps    []*lossStep
	history  []lossMoment
}

// lossMoment is what a client has from a time on.
type lossMoment struct {
	at  time.Duration
	has map[string]string
}

// lossStep is what a client was sent at about one time.
type lossStep struct {
	at                                string // see lossTimes
	added, newer, older, again, taken int
	empty                             bool
	errors                            map[string]bool
	// reopening is the change after which streams are opened again. In which order that happens is a
	// matter of luck.
	reopening time.Duration
}

func (s *lossStep) String() string {
	var parts []string
	count := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(what, n))
		}
	}
	count(s.added, "+%d")
	count(s.newer, "%d newer")
	count(s.older, "%d OLDER")
	count(s.taken, "-%d")
	if len(parts) == 0 {
		count(s.again, "%d again") // beside others, a full state
	}
	if s.empty {
		parts = append(parts, "empty")
	}
	parts = append(parts, slices.Sorted(maps.Keys(s.errors))...)
	return strings.Join(parts, " ")
}

// net returns what is different after streams were opened again. The caller holds mu.
func (c *lossClient) net(s *lossStep) *lossStep {
	n := &lossStep{at: s.at, errors: s.errors}
	before, after := c.at(s.reopening-1), c.at(s.reopening+late)
	for name, content := range after {
		switch had, ok := before[name]; {
		case !ok:
			n.added++
		case content > had:
			n.newer++
		case content < had:
			n.older++
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			n.taken++
		}
	}
	n.empty = s.empty && len(after) == 0
	return n
}

// begin forgets what was sent so far.
func (c *lossClient) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since, c.steps = time.Now(), nil
	c.history = []lossMoment{{0, maps.Clone(c.has)}}
}

// step returns the current step. The caller holds mu.
func (c *lossClient) step() *lossStep {
	at := c.times.about(time.Since(c.since))
	reopening := c.times.reopening(time.Since(c.since))
	if n := len(c.steps); n > 0 && c.steps[n-1].at == at && c.steps[n-1].reopening == reopening {
		return c.steps[n-1]
	}
	s := &lossStep{at: at, errors: map[string]bool{}, reopening: reopening}
	c.steps = append(c.steps, s)
	return s
}

// note notes that something failed. While streams are opened again, it is a matter of luck what does.
func (c *lossClient) note(err string) {
	if c.times.reopening(time.Since(c.since)) > 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step().errors[err] = true
}

// take applies a response: the contents of resources, by their names. full says that it is all there is.
func (c *lossClient) take(resources map[string]string, removed []string, full bool, errors []*discoveryv3.ResourceError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.step()
	for name, content := range resources {
		switch had, ok := c.has[name]; {
		case !ok:
			s.added++
		case content > had:
			s.newer++
		case content < had:
			s.older++
		}
	}
	if s.added+s.newer+s.older == 0 && s.at == "" {
		s.again = len(resources)
	}
	if full {
		for name := range c.has {
			if _, ok := resources[name]; !ok {
				removed = append(removed, name)
			}
		}
	}
	for _, e := range errors {
		if code := codes.Code(e.GetErrorDetail().GetCode()); code != codes.Unavailable || c.times.reopening(time.Since(c.since)) == 0 {
			s.errors[code.String()] = true
		}
	}
	for _, name := range removed {
		if _, ok := c.has[name]; ok {
			s.taken++
			delete(c.has, name)
			delete(c.versions, name)
		}
	}
	maps.Copy(c.has, resources)
	s.empty = (s.empty || c.set && len(resources)+len(c.has) == 0) && s.added == 0
	c.history = append(c.history, lossMoment{time.Since(c.since), maps.Clone(c.has)})
}

// describe says what the client was sent, in the words of the matrix.
func (c *lossClient) describe() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	last := ""
	for _, s := range c.steps {
		if s.reopening != 0 {
			s = c.net(s)
		}
		what := s.String()
		if what == last && s.added+s.newer+s.older+s.again+s.taken == 0 {
			continue // the same errors again, or another stream that ends
		}
		if last = what; what == "" {
			continue
		}
		if s.at != "" {
			what += " @" + s.at
		}
		parts = append(parts, what)
	}
	if len(parts) == 0 {
		return "."
	}
	return strings.Join(parts, ", ")
}

// lossTimes are the times at which control planes change their state, of which the first is 0.
type lossTimes []time.Duration

// about returns a time in words that jitter does not change: in the first minute, the next 5 s;
// in the time in which streams are opened again after another change, that change; or the next
// minute.
func (l lossTimes) about(d time.Duration) string {
	if at := l.reopening(d); at > 0 {
		return shortDuration(at)
	}
	unit := time.Minute
	if d < time.Minute {
		unit = 5 * time.Second
	}
	d = (d + unit - 1).Truncate(unit)
	if d == 0 {
		return ""
	}
	return shortDuration(d)
}

// reopening returns the change, other than the first, after which streams are opened again; 0 for none.
func (l lossTimes) reopening(d time.Duration) time.Duration {
	for _, at := range l[1:] {
		if d >= at && d < at+late {
			return at
		}
	}
	return 0
}

func shortDuration(d time.Duration) string { return strings.Replace(d.String(), "m0s", "m", 1) }

func (c *lossClient) node() *corev3.Node {
	n := &corev3.Node{Id: "client"}
	if c.view {
		n.Cluster = "view"
	}
	return n
}

// lossBackoff is the longest time for which a client waits before it comes back.
const lossBackoff = 10 * time.Second

// run requests until ctx ends.
func (c *lossClient) run(ctx context.Context, t *testing.T) {
	if c.poll != nil {
		c.runPolls(ctx)
		return
	}
	conn := c.dial(t)
	defer func() { _ = conn.Close() }()
	wait := time.Second
	for ctx.Err() == nil {
		before := c.responses()
		var err error
		switch {
		case c.service == "fetch":
			err = c.fetch(ctx, conn)
		case strings.HasSuffix(c.service, "delta"):
			err = c.delta(ctx, conn)
		default:
			err = c.sotw(ctx, conn)
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
		case c.service != "fetch":
			c.note("stream ends")
		case c.relayed || status.Code(err) != codes.Unavailable: // which is the connection, without the relay
			c.note(status.Code(err).String())
		}
		if c.responses() > before || err == nil {
			wait = time.Second
		}
		select {
		case <-time.After(max(wait, c.pause())):
		case <-ctx.Done():
		}
		wait = min(2*wait, lossBackoff)
	}
}

// pause is how long a client waits that polls.
func (c *lossClient) pause() time.Duration {
	if c.poll != nil || c.service == "fetch" {
		return 10 * time.Second
	}
	return 0
}

func (c *lossClient) responses() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.history)
}

func (c *lossClient) method() string {
	service := "ADS"
	if strings.HasPrefix(c.service, "single") {
		service = map[bool]string{true: "CDS", false: "EDS"}[c.typeURL == lossCluster]
	}
	return crossingServices[service][map[bool]int{true: 1}[strings.HasSuffix(c.service, "delta")]]
}

func (c *lossClient) open(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, c.method(), grpc.WaitForReady(true))
}

func (c *lossClient) delta(ctx context.Context, conn *grpc.ClientConn) error {
	s, err := c.open(ctx, conn)
	if err != nil {
		return err
	}
	req := &discoveryv3.DeltaDiscoveryRequest{Node: c.node(), TypeUrl: c.typeURL, ResourceNamesSubscribe: c.names}
	c.mu.Lock()
	if !c.noVersions {
		req.InitialResourceVersions = maps.Clone(c.versions)
	}
	c.mu.Unlock()
	for {
		_ = s.SendMsg(req) // RecvMsg says why
		m := new(discoveryv3.DeltaDiscoveryResponse)
		if err := s.RecvMsg(m); err != nil {
			return err
		}
		resources := map[string]string{}
		for _, r := range m.GetResources() {
			_, resources[r.GetName()] = readResource(r.GetResource())
			c.mu.Lock()
			c.versions[r.GetName()] = r.GetVersion()
			c.mu.Unlock()
		}
		c.take(resources, m.GetRemovedResources(), false, m.GetResourceErrors())
		req = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}
	}
}

func (c *lossClient) request() *discoveryv3.DiscoveryRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &discoveryv3.DiscoveryRequest{Node: c.node(), TypeUrl: c.typeURL, ResourceNames: c.names, VersionInfo: c.version}
}

func (c *lossClient) takeSotW(m *discoveryv3.DiscoveryResponse) {
	resources := map[string]string{}
	for _, a := range m.GetResources() {
		name, content := readResource(a)
		resources[name] = content
	}
	c.take(resources, nil, c.typeURL == lossCluster, m.GetResourceErrors())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = m.GetVersionInfo()
}

func (c *lossClient) sotw(ctx context.Context, conn *grpc.ClientConn) error {
	s, err := c.open(ctx, conn)
	if err != nil {
		return err
	}
	req := c.request()
	for {
		_ = s.SendMsg(req) // RecvMsg says why
		m := new(discoveryv3.DiscoveryResponse)
		if err := s.RecvMsg(m); err != nil {
			return err
		}
		c.takeSotW(m)
		req = c.request()
		req.Node, req.ResponseNonce = nil, m.GetNonce()
	}
}

// fetch polls once over gRPC. A connection that fails is no answer.
func (c *lossClient) fetch(ctx context.Context, conn *grpc.ClientConn) error {
	req, m := c.request(), new(discoveryv3.DiscoveryResponse)
	ctx, cancel := context.WithTimeout(ctx, lossPollTime)
	defer cancel()
	if err := conn.Invoke(ctx, quietFetch[req.GetTypeUrl()], req, m, grpc.WaitForReady(true)); err != nil {
		if status.Code(err) == codes.DeadlineExceeded {
			return nil
		}
		return err
	}
	if m.GetVersionInfo() != req.GetVersionInfo() {
		c.takeSotW(m)
	}
	return nil
}

const lossPollTime = 30 * time.Second

func (c *lossClient) runPolls(ctx context.Context) {
	for ctx.Err() == nil {
		req := c.request()
		within, cancel := context.WithTimeout(ctx, lossPollTime)
		m, what := c.poll(within, req)
		cancel()
		switch {
		case ctx.Err() != nil:
		case m != nil && m.GetVersionInfo() != req.GetVersionInfo():
			c.takeSotW(m)
		case m == nil && what != "":
			c.note(what)
		}
		select {
		case <-time.After(c.pause()):
		case <-ctx.Done():
		}
	}
}
