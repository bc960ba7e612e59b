package integration

// A control plane that has accidents.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
)

// chaosPlane is an honest control plane in one form. It is killed, goes mute, and
// loses streams; what it says is always its truth.
type chaosPlane struct {
	*port
	name  string // of its authority, and of the clusters of nodes that it serves
	plane *collectionPlane
	truth *chaosTruth
	names []topic // that change; those in removable may be absent, too

	mu     sync.Mutex
	server *grpc.Server
	muted  chan struct{} // closed when it speaks again; nil while it does
	broken int           // streams that are to break at their next response
	// past is what was said on its streams last, for a failed test.
	past chaosPast
}

// anchor exists always.
const anchor = "anchor"

func startChaosPlane(t testing.TB, speaks form, r *rand.Rand) *chaosPlane {
	const few = 8
	p := &chaosPlane{
		port: openPort(t), name: string(speaks), truth: newChaosTruth(),
		plane: &collectionPlane{speaks: speaks, says: map[topic]*discoveryv3.Resource{}, changed: make(chan struct{})},
	}
	p.publish(topic{clusterType, anchor}, true)
	for i := range few {
		p.names = append(p.names, topic{clusterType, fmt.Sprint("cluster-", i)}, topic{endpointType, fmt.Sprint("endpoints-", i)})
		if speaks == delta {
			p.names = append(p.names, topic{endpointType, chaosGlob(speaks) + strconv.Itoa(i)})
		}
	}
	p.names = append(p.names, topic{endpointType, chaosGlob(speaks) + anchor})
	for _, t := range p.names {
		p.publish(t, !p.removable(t) || r.IntN(2) == 0)
	}
	p.start()
	t.Cleanup(p.kill)
	return p
}

// chaosGlob is the directory of a glob collection of endpoints.
func chaosGlob(authority form) string {
	return "xdstp://" + string(authority) + "/envoy.config.endpoint.v3.ClusterLoadAssignment/glob/"
}

// removable says whether the control plane's form has a way to say that a resource
// is gone.
func (p *chaosPlane) removable(t topic) bool {
	return t.name != anchor && t.name != chaosGlob(p.plane.speaks)+anchor && (p.plane.speaks == delta || t.typeURL == clusterType)
}

// publish changes a resource.
func (p *chaosPlane) publish(t topic, exists bool) {
	p.plane.mu.Lock()
	defer p.plane.mu.Unlock()
	r := p.truth.set(t, exists)
	p.plane.versions = p.truth.newest
	if r == nil {
		delete(p.plane.says, t)
	} else {
		p.plane.says[t] = r
	}
	close(p.plane.changed)
	p.plane.changed = make(chan struct{})
}

// change changes some resources, at most a few times in one go, until ctx ends.
func (p *chaosPlane) change(ctx context.Context, r *rand.Rand) {
	const most, breath = 5, 30 * time.Millisecond
	for pause(ctx, r, breath) {
		for range 1 + r.IntN(most) {
			t := p.names[r.IntN(len(p.names))]
			p.publish(t, !p.removable(t) || r.IntN(3) > 0)
		}
	}
}

// suffer has accidents until ctx ends, and is well afterwards.
func (p *chaosPlane) suffer(ctx context.Context, r *rand.Rand) {
	const between, lasting = 800 * time.Millisecond, 600 * time.Millisecond
	for pause(ctx, r, between) {
		switch r.IntN(4) {
		case 0:
			p.kill()
			pause(ctx, r, lasting)
			p.start()
		case 1:
			p.mute()
			pause(ctx, r, lasting)
			p.speak()
		case 2: // it opens streams and says nothing
			p.mute()
			p.kill()
			p.start()
			pause(ctx, r, lasting)
			p.speak()
		case 3:
			p.mu.Lock()
			p.broken++
			p.mu.Unlock()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = 0
}

// pause waits for a random time up to twice that, and says whether ctx goes on.
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

func (p *chaosPlane) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = grpc.NewServer(grpc.WaitForHandlers(true), grpc.StreamInterceptor(p.intercept))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.server, p.plane)
	serve(p.server, p.listen())
}

func (p *chaosPlane) kill() {
	p.mu.Lock()
	s := p.server
	p.mu.Unlock()
	s.Stop()
}

func (p *chaosPlane) mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted = make(chan struct{})
}

func (p *chaosPlane) speak() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.muted)
	p.muted = nil
}

func (p *chaosPlane) intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return handle(srv, &sufferingStream{stream, p})
}

// sufferingStream is a stream of a control plane that has accidents.
type sufferingStream struct {
	grpc.ServerStream
	plane *chaosPlane
}

var errChaos = errors.New("a bad day")

// SendMsg implements grpc.ServerStream.
func (s *sufferingStream) SendMsg(m any) error {
	s.plane.mu.Lock()
	muted := s.plane.muted
	breaks := s.plane.broken > 0
	if breaks {
		s.plane.broken--
	}
	s.plane.mu.Unlock()
	if breaks {
		return errChaos
	}
	if muted != nil {
		select {
		case <-muted:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	s.plane.past.add("%p says %v", s, m)
	return s.ServerStream.SendMsg(m)
}

// RecvMsg implements grpc.ServerStream.
func (s *sufferingStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.plane.past.add("%p hears %v (%v)", s, m, err)
	return err
}
