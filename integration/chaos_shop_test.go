package integration

// A gRPC channel that finds its backend by xDS, during chaos.

import (
	"context"
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

// chaosShop is a control plane that has all that leads to one of two backends.
type chaosShop struct {
	plane    *chaosPlane
	backends []*backend
	visits   atomic.Int64

	t testing.TB

	mu sync.Mutex
	at int // which backend
}

func startChaosShop(t testing.TB, r *rand.Rand) *chaosShop {
	s := &chaosShop{t: t, backends: []*backend{startBackend(t, "first"), startBackend(t, "second")}}
	s.plane = &chaosPlane{
		name: shopName, truth: newChaosTruth(),
		plane: &collectionPlane{speaks: sotw, says: map[topic]*discoveryv3.Resource{}, changed: make(chan struct{})},
	}
	if r.IntN(2) == 0 {
		s.plane.plane.speaks = delta
	}
	s.say(apiListener(t, "shop", "shop-routes"))
	s.say(routeConfiguration("shop-routes", routeTo("shop-cluster", prefix(""))))
	s.say(edsCluster("shop-cluster", "shop-endpoints"))
	s.say(endpointsAt(t, "shop-endpoints", s.backends[0].address))
	server := &chaosServer{port: openPort(t), plane: s.plane}
	s.plane.servers = []*chaosServer{server}
	server.start()
	t.Cleanup(server.kill)
	return s
}

// say changes a resource.
func (s *chaosShop) say(m proto.Message) {
	s.plane.plane.change(func() {
		s.plane.plane.versions++
		s.plane.plane.says[topic{typeOf(m), nameOf(m)}] = versioned(s.t, time.Now().String(), m)
	})
}

// move moves the shop to the other backend now and then, until ctx ends.
func (s *chaosShop) move(ctx context.Context, r *rand.Rand) {
	for pause(ctx, r, 300*time.Millisecond) {
		s.mu.Lock()
		s.at = 1 - s.at
		s.mu.Unlock()
		s.say(endpointsAt(s.t, "shop-endpoints", s.now().address))
	}
}

// now is the backend of the shop.
func (s *chaosShop) now() *backend {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backends[s.at]
}

// open opens a channel to the shop.
func (s *chaosShop) open(t testing.TB, relays *relays) *channel {
	front := startBalancerTo(t, relays.address)
	b := bootstrapFor(&relay{address: front.address}, "shopper")
	b.Node["cluster"] = shopName
	return dialXDS(t, b, "xds:///shop")
}

// visit sends RPCs until ctx ends. They must reach a backend once the first did.
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
