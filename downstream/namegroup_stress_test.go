package downstream

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

var stressRounds = flag.Int("groups", 4, "rounds of TestClientsWithTheSameNamesAtOnce")

// TestClientsWithTheSameNamesAtOnce holds for clients with real streams, many of which ask for
// the same names: while they come, go, change what they ask for, ask again, reject, are reset
// and do not read for a while, and while resources change, fail, go, come back and have a TTL,
// none is sent an older state than it has been sent, and in the end each has what there is.
func TestClientsWithTheSameNamesAtOnce(t *testing.T) {
	for range *stressRounds {
		seed := rand.Uint64()
		if !t.Run(strconv.FormatUint(seed, 16), func(t *testing.T) { stressGroups(t, rand.New(rand.NewPCG(seed, 0))) }) {
			return
		}
	}
}

const (
	stressClients = 16
	stressNames   = 10
	stressChanges = 150
)

func stressGroups(t *testing.T, rng *rand.Rand) {
	typeURL := []string{endpointType, clusterType}[rng.IntN(2)]
	limit := []int{DefaultMaxResponseBytes, DefaultMaxResponseBytes, 400}[rng.IntN(3)]
	o := newStressOrigin(typeURL, []time.Duration{time.Hour, 0}[rng.IntN(2)])
	defer o.close()
	server, _ := newTestServer(o.cache, limit)
	memory := serveInMemory(t, func(g *grpc.Server) { server.Register(g, ListenerOptions{}) }, ServerOptions(ListenerOptions{})...)
	conns := []*grpc.ClientConn{memory.dial(), memory.dial()}
	all := make([]string, stressNames)
	for i := range all {
		all[i] = fmt.Sprint("n", i)
	}
	o.change(rng, all...)
	lists := [][]string{all, all[:stressNames/2], all[1:3]}
	var clients []*stressClient
	var done sync.WaitGroup
	settled := make(chan struct{})
	for i := range stressClients {
		c := &stressClient{
			t: t, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), origin: o, all: all, typeURL: typeURL, settled: settled,
			xds: discoveryv3.NewAggregatedDiscoveryServiceClient(conns[i%2]), delta: i%4 < 2, newest: map[string]int{}, act: make(chan struct{}),
			lists: lists,
		}
		if rng.IntN(4) == 0 {
			c.features = []string{session.FeatureTTL, session.FeatureWrapped}
		}
		clients = append(clients, c)
		done.Go(c.run)
	}
	looked := make(chan struct{})
	go func() { // all the while somebody looks
		defer close(looked)
		for {
			select {
			case <-settled:
				return
			default:
			}
			for c := range server.Inspect(0) {
				for h := range c.Held("") {
					if r := cmp.Or(h.Resource, h.Rejected); r != nil && r.Name() != h.Name {
						t.Errorf("under %s there is %s", h.Name, r.Name())
					}
				}
			}
			runtime.Gosched()
		}
	}()
	for range stressChanges {
		names := []string{all[rng.IntN(len(all))]}
		if rng.IntN(5) == 0 {
			names = all
		}
		o.change(rng, names...)
		select {
		case clients[rng.IntN(len(clients))].act <- struct{}{}:
		default:
		}
	}
	o.settle(rng, all...)
	for _, c := range clients {
		for range rng.IntN(3) { // nothing changes any more
			select {
			case c.act <- struct{}{}:
			case <-t.Context().Done():
			}
		}
	}
	close(settled)
	<-looked
	done.Wait()
}

// stressOrigin says what there is: of each name a number that grows with each change.
type stressOrigin struct {
	typeURL string
	cache   *cache.Cache
	started chan string
	stop    chan struct{}
	ended   sync.WaitGroup

	mu     sync.Mutex
	number int
	truth  map[string]cache.Change
}

func newStressOrigin(typeURL string, linger time.Duration) *stressOrigin {
	o := &stressOrigin{typeURL: typeURL, started: make(chan string, 1<<16), stop: make(chan struct{}), truth: map[string]cache.Change{}}
	o.cache = cache.New(o, cache.Options{Linger: linger, IdleEntries: 1000})
	o.ended.Go(func() {
		for {
			select {
			case name := <-o.started:
				o.say(name)
			case <-o.stop:
				return
			}
		}
	})
	return o
}

func (o *stressOrigin) close() {
	close(o.stop)
	o.ended.Wait()
	o.cache.Close()
}

// Start implements cache.Source.
func (o *stressOrigin) Start(k cache.Key) { o.started <- k.Name }

// Refresh implements cache.Source.
func (*stressOrigin) Refresh(cache.Key) {}

// Stop implements cache.Source.
func (*stressOrigin) Stop(cache.Key) {}

// say says what there is of some names.
func (o *stressOrigin) say(names ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.apply(names)
}

// apply is say; the caller holds mu.
func (o *stressOrigin) apply(names []string) {
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: o.typeURL}
	for _, name := range names {
		u.Changes = append(u.Changes, o.truth[name])
	}
	o.cache.Apply(u)
}

// change has something new said of some names.
func (o *stressOrigin) change(rng *rand.Rand, names ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range names {
		change := cache.Change{Name: name}
		switch rng.IntN(8) {
		case 0:
			change.Gone = true
		case 1:
			change.Err = &cache.Error{Code: codes.Internal, Message: "broken"}
		case 2:
			change.Resource = o.newResource(rng, name).WithTTL(time.Hour)
		default:
			change.Resource = o.newResource(rng, name)
		}
		o.truth[name] = change
	}
	o.apply(names)
}

func (o *stressOrigin) newResource(rng *rand.Rand, name string) *cache.Resource {
	o.number++
	return newTestResource(o.typeURL, name, fmt.Sprint(o.number), fmt.Sprint(o.number, " ", strings.Repeat("x", rng.IntN(60))))
}

// settle says the last state, in which nothing fails.
func (o *stressOrigin) settle(rng *rand.Rand, names ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range names {
		change := cache.Change{Name: name, Gone: rng.IntN(4) == 0}
		if !change.Gone {
			change.Resource = o.newResource(rng, name)
		}
		o.truth[name] = change
	}
	o.apply(names)
}

// number returns the number in a content.
func numberIn(content string) int {
	text, _, _ := strings.Cut(content, " ")
	n, _ := strconv.Atoi(text)
	return n
}

// stressClient is one client, on one stream after another.
type stressClient struct {
	t        *testing.T
	rng      *rand.Rand
	origin   *stressOrigin
	xds      discoveryv3.AggregatedDiscoveryServiceClient
	lists    [][]string
	all      []string
	typeURL  string
	features []string
	delta    bool
	act      chan struct{} // it is to do something
	settled  chan struct{} // closed when it is to do nothing more

	names    []string
	has      map[string]int    // numbers by name
	versions map[string]string // delta
	newest   map[string]int    // that it was ever sent
	version  string            // SotW: the one that it took last
	nonce    string

	send   func(*stressRequest) error
	cancel context.CancelFunc
	got    chan *received
	failed chan error
}

// stressRequest is a request of either form.
type stressRequest struct {
	add, drop []string
	initial   map[string]string
	node      *corev3.Node
	nonce     string
	err       *statuspb.Status
}

func (c *stressClient) run() {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	c.connect(ctx)
	defer func() { c.cancel() }()
	for settled := c.settled; ; {
		if settled == nil && c.complete() {
			return
		}
		select {
		case r := <-c.got:
			c.take(r)
		case err := <-c.failed:
			c.t.Errorf("the stream ended: %v", err)
			return
		case <-c.act:
			c.something(ctx)
		case <-settled:
			settled = nil
		case <-ctx.Done():
			c.t.Errorf("%s", c.lacks())
			return
		}
	}
}

// connect comes on a new stream.
func (c *stressClient) connect(ctx context.Context) {
	if c.cancel != nil {
		c.cancel()
	}
	ctx, c.cancel = context.WithCancel(ctx)
	c.got, c.failed = make(chan *received), make(chan error, 1)
	c.nonce = ""
	first := &stressRequest{node: &corev3.Node{Id: "test", ClientFeatures: c.features}}
	if resumes := c.has != nil && c.rng.IntN(2) == 0; resumes {
		first.initial = maps.Clone(c.versions)
	} else {
		c.has, c.versions, c.version = map[string]int{}, map[string]string{}, ""
		c.names = slices.Clone(c.lists[c.rng.IntN(len(c.lists))])
	}
	first.add = c.names
	if c.delta {
		c.openDelta(ctx)
	} else {
		c.openSotW(ctx)
	}
	c.ask(first)
}

func (c *stressClient) ask(r *stressRequest) {
	if err := c.send(r); err != nil {
		c.t.Errorf("a request cannot be sent: %v", err)
	}
}

func (c *stressClient) openDelta(ctx context.Context) {
	s, err := c.xds.DeltaAggregatedResources(ctx)
	if err != nil {
		c.t.Errorf("no stream: %v", err)
		return
	}
	c.send = func(r *stressRequest) error {
		return s.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node: r.node, TypeUrl: c.typeURL, ResourceNamesSubscribe: r.add, ResourceNamesUnsubscribe: r.drop,
			InitialResourceVersions: r.initial, ResponseNonce: r.nonce, ErrorDetail: r.err,
		})
	}
	go c.receive(ctx, c.got, c.failed, func() (*received, error) {
		m, err := s.Recv()
		if err != nil {
			return nil, err
		}
		r := &received{nonce: m.GetNonce(), removed: m.GetRemovedResources()}
		for _, res := range m.GetResources() {
			r.resources = append(r.resources, openResource(c.t, c.typeURL, res))
		}
		return r, nil
	})
}

// receive hands over the responses of a stream, until it ends.
func (*stressClient) receive(ctx context.Context, got chan<- *received, failed chan<- error, next func() (*received, error)) {
	for {
		r, err := next()
		if err != nil {
			failed <- err
			return
		}
		select {
		case got <- r:
		case <-ctx.Done():
			return
		}
	}
}

func (c *stressClient) openSotW(ctx context.Context) {
	s, err := c.xds.StreamAggregatedResources(ctx)
	if err != nil {
		c.t.Errorf("no stream: %v", err)
		return
	}
	c.send = func(r *stressRequest) error {
		return s.Send(&discoveryv3.DiscoveryRequest{
			Node: r.node, TypeUrl: c.typeURL, ResourceNames: c.names, VersionInfo: c.version, ResponseNonce: c.nonce, ErrorDetail: r.err,
		})
	}
	go c.receive(ctx, c.got, c.failed, func() (*received, error) {
		m, err := s.Recv()
		if err != nil {
			return nil, err
		}
		r := &received{nonce: m.GetNonce(), version: m.GetVersionInfo()}
		for _, res := range m.GetResources() {
			if strings.HasSuffix(res.GetTypeUrl(), ".Resource") {
				var inside discoveryv3.Resource
				if err := res.UnmarshalTo(&inside); err != nil {
					return nil, err
				}
				r.resources = append(r.resources, openResource(c.t, c.typeURL, &inside))
				continue
			}
			x := openAny(c.t, c.typeURL, res)
			x.name = x.inside
			r.resources = append(r.resources, x)
		}
		return r, nil
	})
}

// take takes a response and answers it.
func (c *stressClient) take(r *received) {
	if !c.delta && c.typeURL == clusterType {
		c.has = map[string]int{}
	}
	for _, res := range r.resources {
		if res.beat {
			continue
		}
		n := numberIn(res.content)
		if n < c.newest[res.name] {
			c.t.Errorf("%s is sent as of change %d after change %d (delta: %v)", res.name, n, c.newest[res.name], c.delta)
		}
		c.newest[res.name] = n
		if slices.Contains(c.names, res.name) {
			c.has[res.name], c.versions[res.name] = n, res.version
		}
	}
	for _, name := range r.removed {
		delete(c.has, name)
		delete(c.versions, name)
	}
	c.nonce = r.nonce
	answer := &stressRequest{nonce: r.nonce}
	if c.rng.IntN(8) == 0 {
		answer.err = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: "no"}
	} else {
		c.version = r.version
	}
	c.ask(answer)
}

// something is what clients do unasked.
func (c *stressClient) something(ctx context.Context) {
	name := c.all[c.rng.IntN(len(c.all))]
	asked := slices.Contains(c.names, name)
	switch k := c.rng.IntN(10); {
	case k == 0:
		c.connect(ctx)
	case k == 1: // another list, at once
		list := c.lists[c.rng.IntN(len(c.lists))]
		drop := slices.DeleteFunc(slices.Clone(c.names), func(name string) bool { return slices.Contains(list, name) })
		add := slices.DeleteFunc(slices.Clone(list), func(name string) bool { return slices.Contains(c.names, name) })
		c.names = slices.Clone(list)
		c.forget(drop...)
		c.ask(&stressRequest{add: add, drop: drop})
	case k < 5 && asked && len(c.names) > 1:
		c.names = slices.DeleteFunc(slices.Clone(c.names), func(n string) bool { return n == name })
		c.forget(name)
		c.ask(&stressRequest{drop: []string{name}})
	case asked && c.delta: // again
		c.forget(name)
		c.ask(&stressRequest{add: []string{name}})
	case !asked:
		c.names = append(slices.Clone(c.names), name)
		c.ask(&stressRequest{add: []string{name}})
	}
}

func (c *stressClient) forget(names ...string) {
	for _, name := range names {
		delete(c.has, name)
		delete(c.versions, name)
	}
}

func (c *stressClient) complete() bool { return c.lacks() == "" }

// lacks says what the client has that is not so. SotW has no word for what is gone, but for
// full states.
func (c *stressClient) lacks() string {
	c.origin.mu.Lock()
	defer c.origin.mu.Unlock()
	var wrong []error
	for _, name := range c.names {
		is, want := c.has[name], 0
		if r := c.origin.truth[name].Resource; r != nil {
			want, _ = strconv.Atoi(r.Version())
		}
		if is != want && (want != 0 || c.delta || c.typeURL == clusterType) {
			wrong = append(wrong, fmt.Errorf("%s is that of change %d, want %d", name, is, want))
		}
	}
	if len(wrong) == 0 {
		return ""
	}
	return fmt.Sprintf("delta %v, features %v, asks for %v: %v", c.delta, c.features, c.names, errors.Join(wrong...))
}
