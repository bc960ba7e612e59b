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

// chaosShop is a control plane with a listener, a route configuration and a cluster. It redirects the
// cluster's endpoints to another control plane, the annex, which has the endpoints of each backend.
type chaosShop struct {
	plane, annex *chaosPlane
	backends     []*backend // two between which the shop moves, and the one at the end: see last
	visits       atomic.Int64

	t testing.TB

	mu sync.Mutex
	at int // the index of the backend
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

// emptyChaosPlane returns a control plane without resources, whose server is not started.
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

// door returns the name of a backend's endpoints.
func door(i int) string { return xdstp(annexName, endpointType, fmt.Sprint("door-", i)) }

func (s *chaosShop) endpoints(i int) proto.Message {
	return endpointsAt(s.t, door(i), s.backends[i].address)
}

// redirect points the shop's endpoints at those of the current backend.
func (s *chaosShop) redirect() {
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()
	s.plane.setAnswer(redirect(s.t, endpointType, "shop-endpoints", door(at)))
}

// tour moves the shop to each backend that it has during chaos, so that the relay holds the endpoints of
// both.
func (s *chaosShop) tour(c *channel) {
	for at := range s.last() {
		c.awaitReaches(someMethod, s.moveTo(at))
	}
}

// last is the index of the backend to which the shop moves only at the end. An RPC that reaches it proves
// that the channel has the newest resources.
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
			s.annex.setAnswer(has(s.t, s.endpoints(r.IntN(s.last())))) // the same endpoints in a new version
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

// visit sends RPCs until ctx ends. After the first RPC that succeeds, every RPC has to succeed.
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
