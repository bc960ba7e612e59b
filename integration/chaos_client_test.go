package integration

// A client that behaves randomly, within the protocol, and checks everything that it receives.

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
)

// chaosClient keeps what it holds when its stream ends, and resumes with it.
type chaosClient struct {
	watched[chaosHeld]
	id     string
	form   form
	plane  *chaosPlane
	relays *relays
	rand   *rand.Rand
	// rejects decides at random whether the client NACKs a response.
	rejects func() bool
	// steady is the only topic that the client requests, at all times. If it is the zero topic, the client
	// changes its subscriptions.
	steady topic
	// view has the control planes whose globs of endpoints make up the client's view. It is empty without a
	// view.
	view []*chaosPlane
	// comesBack says that the client ends its stream when the failures stop, and resumes after the last
	// changes. Other clients keep their streams.
	comesBack bool
	// leaves says that the client is gone when the failures stop.
	leaves bool
	// past has the newest requests and responses, for the output of a failed test.
	past chaosPast
}

// chaosPast keeps the newest events, in order.
type chaosPast struct {
	mu   sync.Mutex
	last []string
}

func (p *chaosPast) add(format string, args ...any) {
	const most = 100
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.last) == most {
		p.last = p.last[1:]
	}
	p.last = append(p.last, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// String returns the events, one per line.
func (p *chaosPast) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.last, "\n")
}

func newChaosClient(plane *chaosPlane, f form, n int, relays *relays, rejects func() bool, r *rand.Rand) *chaosClient {
	c := &chaosClient{id: fmt.Sprintf("%s client %d of %s", f, n, plane.name), form: f, plane: plane, relays: relays, rand: r, rejects: rejects}
	c.value = chaosHeld{
		wanted: map[topic]bool{}, held: map[topic]int{}, versions: map[topic]string{}, infos: map[string]string{}, newest: map[topic]int{},
		by: map[topic]wantedBy{}, seen: map[topic][]sighting{},
	}
	return c
}

// live connects again and again until ctx ends: each time it stays connected for a while, and changes its
// subscriptions. When quiet is closed, it keeps its subscriptions. A client that disconnects then connects
// again only when published is closed, too.
func (c *chaosClient) live(ctx context.Context, quiet, published <-chan struct{}) {
	const breath = 50 * time.Millisecond
	for ctx.Err() == nil {
		select {
		case <-quiet:
			if c.leaves {
				return
			}
			select {
			case <-published:
				c.comesBack = false
			case <-ctx.Done():
			}
		default:
		}
		c.connect(ctx, quiet)
		pause(ctx, c.rand, breath)
	}
}

// connect opens a stream on a new connection, and returns when the client disconnects or the stream ends.
func (c *chaosClient) connect(ctx context.Context, quiet <-chan struct{}) {
	address, which := c.relays.current()
	c.update(func(h *chaosHeld) { h.relay = which })
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.plane.truth.report(c, "cannot connect: %v", err)
		return
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.open(ctx, conn)
	if err != nil {
		return
	}
	if c.rand.IntN(4) == 0 {
		c.past.add("forgets all")
		c.forget()
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	if !c.begin(s) {
		return
	}
	ended := make(chan struct{})
	stall := rand.New(rand.NewPCG(c.rand.Uint64(), 0))
	reading.Go(func() {
		defer close(ended)
		c.read(ctx, s, stall, quiet)
	})
	c.wander(ctx, s, ended, quiet)
}

// wander changes subscriptions until it is time to disconnect.
func (c *chaosClient) wander(ctx context.Context, s chaosStream, ended, quiet <-chan struct{}) {
	const breath, steps = 60 * time.Millisecond, 20
	for range 1 + c.rand.IntN(steps) {
		select {
		case <-quiet:
		default:
			if !pause(ctx, c.rand, breath) || c.steady == (topic{}) && !c.wish(s) {
				return
			}
			continue
		}
		break
	}
	select {
	case <-quiet: // the client keeps its stream, unless comesBack
		if c.comesBack || c.leaves {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
		}
	default:
	}
}

// forget drops all resources, as a restarted client does.
func (c *chaosClient) forget() {
	c.update(func(h *chaosHeld) {
		clear(h.held)
		clear(h.versions)
		clear(h.infos)
		clear(h.newest)
		clear(h.seen)
	})
}

// begin sends the first request of each type, with the versions that the client holds.
func (c *chaosClient) begin(s chaosStream) (ok bool) {
	ok = true
	c.update(func(h *chaosHeld) {
		h.nonces, h.answered, h.requested = map[string]string{}, map[string]bool{}, map[string][]map[topic]bool{}
		h.stream++
		h.fresh = len(h.held)+len(h.versions)+len(h.infos) == 0
		if poison := c.plane.poison; poison != nil {
			h.stopped = poison.stoppedAt(h.relay)
		}
		if c.steady != (topic{}) {
			h.wanted[c.steady] = true
		}
		if len(h.wanted) == 0 {
			h.wanted[topic{clusterType, anchor}] = true
		}
		h.begun, h.left = maps.Clone(h.wanted), map[topic]bool{}
		h.barriers = chaosBarriers{after: map[topic]int{}}
		h.forgive(c.relays)
		c.past.add("begins a stream: %v", h)
		for _, typeURL := range []string{clusterType, endpointType} {
			if names := h.names(typeURL); len(names) > 0 {
				ok = ok && s.request(h, typeURL, names, nil) == nil
			}
		}
		for _, set := range chaosSets() {
			if h.wanted[set] {
				h.barriers.after[set] = 0 // the relay cannot have sent anything before it
			}
		}
	})
	return ok
}

// wish adds or removes one subscription.
func (c *chaosClient) wish(s chaosStream) (ok bool) {
	all := c.plane.all()
	for _, name := range slices.Sorted(maps.Keys(c.plane.bad)) {
		all = append(all, topic{endpointType, name})
	}
	sets := []topic{{clusterType, wildcard}}
	if c.plane.plane.speaks == delta && c.form == delta {
		// A SotW client that adds a glob to its names cannot tell whether a response that was already on its
		// way has all members of the glob.
		sets = append(sets, topic{endpointType, c.plane.glob() + wildcard})
	}
	const often = 6
	t := all[c.rand.IntN(len(all))]
	if c.rand.IntN(often) == 0 {
		t = sets[c.rand.IntN(len(sets))]
	}
	isSet := slices.Contains(chaosSets(), t)
	c.update(func(h *chaosHeld) {
		if isSet && c.form == delta && h.left[t] && !h.barriers.known(t) {
			ok = true // a response to the earlier request may be on its way, and the relay would not know that the client took it
			return
		}
		if !h.wanted[t] {
			h.wanted[t], h.begun[t] = true, true
			c.past.add("wants %v", t)
			ok = s.request(h, t.typeURL, []string{t.name}, nil) == nil
			if isSet {
				ok = ok && s.barrier(h, t) == nil
			}
			return
		}
		if len(h.names(t.typeURL)) == 1 {
			ok = true // in SotW, a request without names would have another meaning
			return
		}
		delete(h.wanted, t)
		delete(h.barriers.after, t)
		h.left[t] = true
		h.giveUp()
		c.past.add("wants no longer %v", t)
		for other := range maps.Clone(h.held) {
			if !h.wants(other) {
				h.drop(other)
			}
		}
		ok = s.request(h, t.typeURL, nil, []string{t.name}) == nil
		if isSet {
			ok = ok && s.barrier(h, t) == nil
		}
	})
	return ok
}

// names returns the requested names of a type.
func (h *chaosHeld) names(typeURL string) (names []string) {
	for t := range h.wanted {
		if t.typeURL == typeURL {
			names = append(names, t.name)
		}
	}
	slices.Sort(names)
	return names
}

// wants reports whether the client requests a resource, by name or in a set.
func (h *chaosHeld) wants(t topic) bool { return among(h.wanted, t) }

// among reports whether wanted has a resource, by its name or in a set.
func among(wanted map[topic]bool, t topic) bool {
	directory := t.name[:strings.LastIndexByte(t.name, '/')+1]
	return wanted[t] || wanted[topic{t.typeURL, directory + wildcard}] || wanted[topic{t.typeURL, wildcard}]
}

// knows reports whether the relay is certain to have read the request for a set before it sent the response
// that the client receives now.
func (h *chaosHeld) knows(f form, set topic) bool {
	if f == delta {
		return h.barriers.known(set)
	}
	return h.always(set)
}

// always reports whether a resource was wanted in every SotW request of this stream.
func (h *chaosHeld) always(t topic) bool {
	return !slices.ContainsFunc(h.requested[t.typeURL], func(wanted map[topic]bool) bool { return !among(wanted, t) })
}

func (h *chaosHeld) drop(t topic) {
	delete(h.held, t)
	delete(h.versions, t)
}

// read receives responses until the stream ends. Now and then it pauses.
func (c *chaosClient) read(ctx context.Context, s chaosStream, r *rand.Rand, quiet <-chan struct{}) {
	const stall = 300 * time.Millisecond
	for {
		select {
		case <-quiet:
		default:
			if r.IntN(30) == 0 {
				pause(ctx, r, stall)
			}
		}
		resp, err := s.receive()
		if err != nil {
			return
		}
		c.update(func(h *chaosHeld) { err = c.take(h, s, &resp) })
		if err != nil {
			return
		}
	}
}

// take checks a response, and accepts or rejects it.
func (c *chaosClient) take(h *chaosHeld, s chaosStream, r *response) error {
	c.past.add("receives %s", summary(r))
	c.check(h, r)
	h.nonces[r.typeURL] = r.nonce
	// The client does not reject removals, because the relay does not send a rejected removal again.
	loses := len(h.losses(r)) > 0
	if !loses && c.rejects() {
		c.past.add("rejects that")
		return s.answer(h, r, &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: "no"})
	}
	rejections := 0
	if poison := c.plane.poison; poison != nil {
		if nack := poison.rejects(h.relay, r); nack != nil {
			c.past.add("rejects that: %s", nack.GetMessage())
			h.answered[r.typeURL] = true
			return s.answer(h, r, nack)
		}
		rejections = poison.rejections()
	}
	for name, res := range r.resources {
		t := topic{r.typeURL, name}
		_, revision, _ := revisionOf(r.typeURL, []byte(res.value)) // check reports errors
		if h.wants(t) {
			h.held[t], h.versions[t] = revision, res.version
			h.saw(t, revision, rejections)
			if c.plane.poison != nil {
				c.plane.poison.took(t)
			}
			h.came(t)
		}
	}
	for _, t := range h.losses(r) {
		h.drop(t)
	}
	h.infos[r.typeURL] = r.version
	return s.answer(h, r, nil)
}

// summary describes a response.
func summary(r *response) string {
	var all []string
	for name, res := range r.resources {
		_, revision, _ := revisionOf(r.typeURL, []byte(res.value))
		all = append(all, fmt.Sprint(name, "@", revision))
	}
	slices.Sort(all)
	return fmt.Sprintf("%s nonce %s version %s: %v, without %v, errors %v", r.typeURL, r.nonce, r.version, all, r.removed, r.errors)
}

// losses returns the resources that a response removes.
func (h *chaosHeld) losses(r *response) (lost []topic) {
	for _, name := range r.removed {
		lost = append(lost, topic{r.typeURL, name})
	}
	for _, e := range r.errors {
		if codes.Code(e.GetErrorDetail().GetCode()) == codes.NotFound {
			lost = append(lost, topic{r.typeURL, e.GetResourceName().GetName()})
		}
	}
	if r.full {
		for t := range h.held {
			if _, there := r.resources[t.name]; t.typeURL == r.typeURL && !there {
				lost = append(lost, t)
			}
		}
	}
	return lost
}

// check checks a response against the truth.
func (c *chaosClient) check(h *chaosHeld, r *response) {
	if r.typeURL == routeType {
		h.barriers.passes(r)
		maps.DeleteFunc(h.left, func(t topic, _ bool) bool { return h.wanted[t] && h.barriers.known(t) })
		return
	}
	if c.plane.poison != nil {
		c.checkPoison(h, r)
	}
	c.checkBlame(r)
	for name, res := range r.resources {
		t := topic{r.typeURL, name}
		inner, revision, err := revisionOf(r.typeURL, []byte(res.value))
		if err != nil || inner != name {
			c.plane.truth.report(c, "received %v with a content of another resource, or an invalid one: %q (%v)", t, res.value, err)
			continue
		}
		before := h.newest[t]
		of := c.planeOf(t)
		if t.onTwoStreams() || !of.inOrder() {
			before = absent // the revisions may come in any order
		}
		if poison := c.plane.poison; poison != nil && (poison.is(revision) || h.mayGoBack(t, poison.rejections())) {
			before = absent
		}
		of.truth.sawResource(c, t, before, revision)
	}
	for _, t := range h.losses(r) {
		if r.full && !h.always(t) {
			continue // the response may answer a request without that name
		}
		if t.onTwoStreams() && h.gaveUp(t) {
			continue // the stream from which the resource comes now may be behind
		}
		stored := h.newest[t]
		if c.plane.poison != nil {
			stored = absent // the state before a change may be one that was not yet restored
		}
		c.planeOf(t).truth.sawAbsence(c, t, h.held[t], stored)
	}
	// To Envoy, an empty response means that the set has no members.
	if len(r.resources) > 0 || len(r.removed) > 0 {
		h.answered[r.typeURL] = true
	}
	for _, t := range chaosSets() {
		empty := len(r.resources)+len(r.removed) == 0 && !c.plane.truth.hasBeenEmpty(t)
		if t.typeURL == r.typeURL && h.wanted[t] && h.knows(c.form, t) && empty && !h.answered[t.typeURL] && len(h.versions) == 0 {
			c.plane.truth.report(c, "requested %v, and received an empty response before any answer to that: %v", t, r)
		}
	}
}

// planeOf returns the control plane that has a resource.
func (c *chaosClient) planeOf(t topic) *chaosPlane {
	for _, p := range c.view {
		if strings.HasPrefix(t.name, p.glob()) {
			return p
		}
	}
	return c.plane
}

// expected returns the resources that the client has to hold after all failures and changes.
func (c *chaosClient) expected(h *chaosHeld) map[topic]int {
	want := map[topic]int{}
	for _, p := range c.view {
		for name, revision := range p.truth.all(endpointType) {
			if strings.HasPrefix(name, p.glob()) {
				want[topic{endpointType, name}] = revision
			}
		}
	}
	if len(c.view) > 0 {
		return want
	}
	for _, typeURL := range []string{clusterType, endpointType} {
		for name, revision := range c.plane.truth.all(typeURL) {
			if t := (topic{typeURL, name}); h.wants(t) {
				want[t] = revision
			}
		}
	}
	return want
}

// differences lists how the client's resources differ from expected.
func (c *chaosClient) differences(h *chaosHeld) (all []string) {
	if c.leaves {
		return nil
	}
	want := c.expected(h)
	for _, set := range chaosSets() {
		if c.form == delta && h.wanted[set] && !h.barriers.known(set) {
			all = append(all, fmt.Sprintf("%s received no answer to the barrier after its request for %v", c.id, set))
		}
	}
	for t, revision := range want {
		if held := h.held[t]; held != revision && (held != absent || !c.planeOf(t).mayLack(h, t)) {
			all = append(all, fmt.Sprintf("%s has %v at revision %d, want %d", c.id, t, h.held[t], revision))
		}
	}
	for t := range h.held {
		if _, ok := want[t]; !ok {
			all = append(all, fmt.Sprintf("%s has %v, which does not exist", c.id, t))
		}
	}
	slices.Sort(all)
	return all
}

// explain logs what the last relay says about one resource that differs from expected, and about its wildcard.
func (c *chaosClient) explain(t *testing.T, h *chaosHeld) {
	t.Helper()
	want := c.expected(h)
	for _, typeURL := range []string{clusterType, endpointType} {
		differs := func(x topic) bool { return x.typeURL == typeURL && h.held[x] != want[x] }
		all := slices.Concat(slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(h.held)))
		i := slices.IndexFunc(all, differs)
		if i < 0 {
			continue
		}
		for _, name := range []string{all[i].name, wildcard} {
			query := url.Values{"client": {strings.ReplaceAll(c.id, " ", "-")}, "name": {name}, "type": {typeURL}}
			t.Logf("%s, %s: %s", c.id, name, fetch(t, "http://"+c.relays.now.admin+"/api/explain?"+query.Encode()))
		}
	}
	t.Logf("the authorities: %s", fetch(t, "http://"+c.relays.now.admin+"/authorities"))
}
