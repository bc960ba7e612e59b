package integration

// A gRPC channel that finds its backend by xDS, during chaos.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// shopName is the authority of the channel's resources.
const shopName = "shop"

// annexName is the authority of the channel's endpoints.
const annexName = "annex"

// chaosShop is a control plane that has all resources that lead to endpoints. It redirects the endpoints
// to another control plane, which has those of the backends.
type chaosShop struct {
	plane, annex *chaosPlane
	backends     []*backend // two that it moves between, and the one that it has at last
	visits       atomic.Int64

	t testing.TB

	mu sync.Mutex
	at int // which backend
}

func startChaosShop(t testing.TB, r *rand.Rand) *chaosShop {
	s := &chaosShop{t: t, backends: []*backend{startBackend(t, "first"), startBackend(t, "second"), startBackend(t, "last")}}
	s.plane, s.annex = emptyChaosPlane(t, shopName, r), emptyChaosPlane(t, annexName, r)
	for _, m := range []proto.Message{
		apiListener(t, "shop", "shop-routes"), routeConfiguration("shop-routes", routeTo("shop-cluster", prefix(""))), edsCluster("shop-cluster", "shop-endpoints"),
	} {
		s.plane.setAnswer(has(t, m))
	}
	for i := range s.backends {
		s.annex.setAnswer(has(t, s.endpoints(i)))
	}
	s.redirect()
	for _, p := range s.planes() {
		p.servers[0].start()
		t.Cleanup(p.servers[0].kill)
	}
	return s
}

// emptyChaosPlane is a control plane that has nothing yet, and does not serve.
func emptyChaosPlane(t testing.TB, name string, r *rand.Rand) *chaosPlane {
	p := &chaosPlane{
		name: name, truth: newChaosTruth(),
		plane: &collectionPlane{speaks: []form{delta, sotw}[r.IntN(2)], says: map[topic]*discoveryv3.Resource{}, changed: make(chan struct{})},
	}
	p.servers = []*chaosServer{{port: openPort(t), plane: p}}
	return p
}

func (s *chaosShop) planes() []*chaosPlane { return []*chaosPlane{s.plane, s.annex} }

// setAnswer changes what a control plane sends for a name.
func (p *chaosPlane) setAnswer(is said) {
	p.plane.change(func() {
		p.plane.versions++
		p.plane.says[is.topic] = &discoveryv3.Resource{Name: is.name, Version: time.Now().String(), Resource: is.value}
	})
}

// door is the name of the endpoints of a backend.
func door(i int) string { return xdstp(annexName, endpointType, fmt.Sprint("door-", i)) }

func (s *chaosShop) endpoints(i int) proto.Message {
	return endpointsAt(s.t, door(i), s.backends[i].address)
}

// redirect changes the endpoints to those of a backend.
func (s *chaosShop) redirect() {
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()
	s.plane.setAnswer(redirect(s.t, endpointType, "shop-endpoints", door(at)))
}

// tour makes the channel use both doors that it has during chaos, so that the relay has both.
func (s *chaosShop) tour(c *channel) {
	for at := range s.last() {
		c.awaitReaches(someMethod, s.moveTo(at))
	}
}

// last is a backend that the shop has only at the end: RPCs that reach it do not use older resources.
func (s *chaosShop) last() int { return len(s.backends) - 1 }

// moveTo moves the shop to a backend.
func (s *chaosShop) moveTo(at int) *backend {
	s.mu.Lock()
	s.at = at
	s.mu.Unlock()
	s.redirect()
	return s.backends[at]
}

// move moves the shop to the other backend now and then, until ctx ends.
func (s *chaosShop) move(ctx context.Context, r *rand.Rand) {
	for pause(ctx, r, 300*time.Millisecond) {
		if r.IntN(3) == 0 {
			s.annex.setAnswer(has(s.t, s.endpoints(r.IntN(s.last())))) // in another version
			continue
		}
		s.mu.Lock()
		s.at = 1 - s.at
		s.mu.Unlock()
		s.redirect()
	}
}

// open opens a channel to the shop.
func (s *chaosShop) open(t testing.TB, relays *relays) *channel {
	front := startBalancerTo(t, relays.address)
	b := bootstrapFor(&relay{address: front.address}, "shopper")
	b.Node["cluster"] = shopName
	return dialXDS(t, b, "xds:///shop")
}

// visit sends RPCs until ctx ends. Once the first has reached a backend, all must.
func (s *chaosShop) visit(ctx context.Context, c *channel) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(context.Background(), patience)
		var id wrapperspb.StringValue
		err := c.Invoke(call, someMethod, &emptypb.Empty{}, &id)
		cancel()
		if err == nil {
			s.visits.Add(1)
		} else if s.visits.Load() > 0 {
			s.plane.truth.reportOf("a gRPC channel", &s.plane.past, "RPCs had reached the shop, then: %v", err)
		}
		const breath = 10 * time.Millisecond
		select {
		case <-ctx.Done():
		case <-time.After(breath):
		}
	}
}
