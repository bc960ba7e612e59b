package integration

// Control planes that fail in many ways.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// chaosPlane is an honest control plane that speaks one form of the protocol, with one or two servers. The
// servers are killed, fall silent, become slow and lose streams, but they only ever send true resources.
type chaosPlane struct {
	name    string // the name of its authority, and the Node's cluster of its clients
	plane   *collectionPlane
	truth   *chaosTruth
	names   []topic // these change; some are sometimes absent, see removable
	calm    []topic // these change now and then, and are never absent
	servers []*chaosServer
	// bad has the names of endpoints for which the control plane ends streams, with these codes.
	bad map[string]codes.Code
	// requests has what is requested.
	requests chaosRequests
	// poison records which revisions clients reject. It is nil if changes are not rolled out.
	poison *chaosPoison
	// past has the newest messages on its streams, for the output of a failed test.
	past chaosPast
}

// chaosMore is the number of clusters of a control plane, without the anchor.
const chaosMore = 24

// anchor is a resource that always exists.
const anchor = "anchor"

// pairName is the authority with two servers.
const pairName = "pair"

func startChaosPlane(t testing.TB, name string, speaks form, servers int, r *rand.Rand) *chaosPlane {
	const few = 8
	p := &chaosPlane{
		name: name, truth: newChaosTruth(),
		plane: &collectionPlane{speaks: speaks, repeats: true, says: map[topic]*discoveryv3.Resource{}, changed: make(chan struct{})},
	}
	p.calm = append(p.calm, topic{clusterType, anchor}, topic{endpointType, p.glob() + anchor})
	for i := range chaosMore {
		of := &p.calm
		if i < few {
			of = &p.names
			p.names = append(p.names, topic{endpointType, fmt.Sprint("endpoints-", i)})
		}
		*of = append(*of, topic{clusterType, fmt.Sprint("cluster-", i)})
		if speaks == delta {
			*of = append(*of, topic{endpointType, p.glob() + strconv.Itoa(i)})
		}
	}
	for _, t := range p.all() {
		p.publish(t, !p.removable(t) || r.IntN(2) == 0)
	}
	for range servers {
		s := &chaosServer{port: openPort(t), plane: p}
		p.servers = append(p.servers, s)
		s.start()
		t.Cleanup(s.kill)
	}
	return p
}

// chaosGlob returns the directory of an authority's glob collection of endpoints.
func chaosGlob(authority form) string {
	return "xdstp://" + string(authority) + "/envoy.config.endpoint.v3.ClusterLoadAssignment/glob/"
}

func (p *chaosPlane) glob() string { return chaosGlob(form(p.name)) }

// all returns the topics of all resources that the control plane ever has.
func (p *chaosPlane) all() []topic { return append(append([]topic(nil), p.names...), p.calm...) }

// inOrder reports whether the relay receives the states of a resource in their order. With two servers it
// does not, because either may be behind the other.
func (p *chaosPlane) inOrder() bool { return len(p.servers) < 2 }

// removable reports whether the control plane sometimes removes a resource. It does so only if the form of
// the protocol can express the removal, and only if it has no second server and no rollout.
func (p *chaosPlane) removable(t topic) bool {
	for _, calm := range p.calm {
		if t == calm {
			return false
		}
	}
	return p.name != pairName && p.name != rolledName && (p.plane.speaks == delta || t.typeURL == clusterType)
}

// publish changes a resource.
func (p *chaosPlane) publish(t topic, exists bool) {
	p.plane.change(func() {
		r := p.truth.set(t, exists)
		p.plane.versions = p.truth.newest
		if r == nil {
			delete(p.plane.says, t)
		} else {
			p.plane.says[t] = r
		}
	})
}

// change changes the resources of a control plane.
func (p *collectionPlane) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// change changes a few resources at a time, again and again, until ctx ends.
func (p *chaosPlane) change(ctx context.Context, r *rand.Rand) {
	const most, breath, seldom = 5, 30 * time.Millisecond, 20
	for pause(ctx, r, breath) {
		for range 1 + r.IntN(most) {
			t := p.names[r.IntN(len(p.names))]
			if r.IntN(seldom) == 0 {
				t = p.calm[r.IntN(len(p.calm))]
			}
			p.publish(t, !p.removable(t) || r.IntN(3) > 0)
		}
	}
}

// suffer causes failures until ctx ends, and repairs each of them.
func (p *chaosPlane) suffer(ctx context.Context, r *rand.Rand) {
	const between, lasting = 800 * time.Millisecond, 600 * time.Millisecond
	kinds := 6
	if *chaosAll && p.bad == nil {
		kinds++ // with a short linger, names are given up, and a resource that is hidden and was served by its name goes
	}
	for pause(ctx, r, between) {
		s := p.servers[r.IntN(len(p.servers))]
		switch r.IntN(kinds) {
		case 0:
			s.kill()
			pause(ctx, r, lasting)
			s.start()
		case 1:
			s.mute()
			pause(ctx, r, lasting)
			s.speak()
		case 2: // it accepts streams and sends nothing
			s.mute()
			s.kill()
			s.start()
			pause(ctx, r, lasting)
			s.speak()
		case 3:
			s.set(func() { s.broken++ })
		case 4:
			s.set(func() { s.delay = 20 * time.Millisecond })
			pause(ctx, r, 2*lasting)
			s.set(func() { s.delay = 0 })
		case 5: // it is restarted, and all versions are different then
			s.kill()
			p.rename()
			s.start()
		case 6:
			p.forget(ctx, r, lasting)
		}
	}
	for _, s := range p.servers {
		s.set(func() { s.broken = 0 })
	}
}

// forget restarts the servers, which then restore their resources step by step: their wildcards and globs are
// first almost empty, then half full, and then complete.
func (p *chaosPlane) forget(ctx context.Context, r *rand.Rand, lasting time.Duration) {
	for _, s := range p.servers {
		s.kill()
	}
	if p.poison != nil {
		p.poison.mayTryAgain(math.MaxInt)
		defer func() { p.poison.mayTryAgain(p.truth.newestRevision()) }()
	}
	hidden := p.all()
	r.Shuffle(len(hidden), func(i, j int) { hidden[i], hidden[j] = hidden[j], hidden[i] })
	for i, part := range []int{max(0, len(hidden)-r.IntN(3)), len(hidden) / 2, 0} {
		p.truth.hide(hidden[:part])
		p.plane.change(func() {
			p.plane.hides = map[topic]bool{}
			for _, t := range hidden[:part] {
				p.plane.hides[t] = true
			}
		})
		if i == 0 {
			for _, s := range p.servers {
				s.start()
			}
		}
		if part > 0 {
			pause(ctx, r, lasting)
		}
	}
}

// rename changes the versions of all resources, and keeps their content.
func (p *chaosPlane) rename() {
	p.plane.change(func() {
		p.plane.prefix += "'"
		for t, r := range p.plane.says {
			r = proto.Clone(r).(*discoveryv3.Resource)
			r.Version += "'"
			p.plane.says[t] = r
		}
	})
}

// pause waits for a random time, on average about. It returns false if ctx ends first.
func pause(ctx context.Context, r *rand.Rand, about time.Duration) bool {
	timer := time.NewTimer(time.Duration(r.Int64N(int64(2 * about))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// chaosServer is one server of a control plane.
type chaosServer struct {
	*port
	plane *chaosPlane

	mu     sync.Mutex
	server *grpc.Server
	muted  chan struct{} // closed when the server sends again; nil while it sends
	broken int           // number of streams that break at their next response
	delay  time.Duration // before each response
}

func (s *chaosServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *chaosServer) start() {
	s.set(func() {
		s.server = grpc.NewServer(grpc.WaitForHandlers(true), grpc.StreamInterceptor(s.intercept))
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.server, s.plane.plane)
		serve(s.server, s.listen())
	})
}

func (s *chaosServer) kill() {
	var server *grpc.Server
	s.set(func() { server = s.server })
	server.Stop()
}

func (s *chaosServer) mute() { s.set(func() { s.muted = make(chan struct{}) }) }

func (s *chaosServer) speak() {
	s.set(func() {
		close(s.muted)
		s.muted = nil
	})
}

func (s *chaosServer) intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	suffering := &sufferingStream{stream, s}
	s.plane.requests.begin(suffering)
	defer s.plane.requests.end(suffering)
	return handle(srv, suffering)
}

// sufferingStream is a stream to which the failures of its chaosServer apply.
type sufferingStream struct {
	grpc.ServerStream
	of *chaosServer
}

// errChaos is one of the errors that make the relay look for a bad name, and errOutage is none.
var (
	errChaos  = errors.New("a bad day")
	errOutage = status.Error(codes.Unavailable, "a bad day")
)

// SendMsg implements grpc.ServerStream.
func (s *sufferingStream) SendMsg(m any) error {
	s.of.mu.Lock()
	muted, delay := s.of.muted, s.of.delay
	breaks := s.of.broken > 0
	if breaks {
		s.of.broken--
	}
	s.of.mu.Unlock()
	switch {
	case breaks && len(s.of.plane.bad) > 0:
		return errOutage // every other end of a stream is because of a bad name
	case breaks:
		return errChaos
	}
	if muted != nil {
		select {
		case <-muted:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	s.of.plane.past.add("%p says %v", s, m)
	return s.ServerStream.SendMsg(m)
}

// RecvMsg implements grpc.ServerStream.
func (s *sufferingStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.of.plane.past.add("%p hears %v (%v)", s, m, err)
	if err != nil {
		return err
	}
	for _, t := range s.of.plane.requests.take(s, m) {
		if code, bad := s.of.plane.bad[t.name]; bad {
			return status.Errorf(code, "%s is not for you", t.name)
		}
	}
	if poison := s.of.plane.poison; poison != nil {
		poison.hears(m)
	}
	return nil
}
