package integration

import (
	"math"
	"sync"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// shop returns a listener "shop" and its route configuration "shop-routes".
func shop(t testing.TB, routes ...*routev3.Route) []proto.Message {
	t.Helper()
	return []proto.Message{apiListener(t, "shop", "shop-routes"), routeConfiguration("shop-routes", routes...)}
}

// clusterAt starts a backend, and returns it with its cluster and endpoints, which have the same name.
func clusterAt(t testing.TB, name string) (*backend, []proto.Message) {
	t.Helper()
	b := startBackend(t, name)
	return b, []proto.Message{edsCluster(name, ""), endpointsAt(t, name, b.address)}
}

// TestRoutesMatchPathsAndHeaders checks gRFC A28 through the relay: RPCs take the routes that match their
// paths and headers.
func TestRoutesMatchPathsAndHeaders(t *testing.T) {
	t.Parallel()
	header := func(name string, how *routev3.HeaderMatcher) *routev3.HeaderMatcher {
		how.Name = name
		return how
	}
	text := func(m *matcherv3.StringMatcher) *routev3.HeaderMatcher {
		return &routev3.HeaderMatcher{HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}}
	}
	regex := func(r string) *matcherv3.RegexMatcher { return &matcherv3.RegexMatcher{Regex: r} }

	routes := []struct {
		cluster string
		match   *routev3.RouteMatch
	}{
		{"path", &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: "/shop.Cart/Add"}}},
		{"regex", &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: regex("/shop\\.Cart/List[A-Z].*")}}},
		{"prefix", prefix("/shop.Cart/")},
		{"any-case", &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/SHOP.search/"}, CaseSensitive: wrapperspb.Bool(false),
		}},
		{"exact", prefix("", header("x-env", text(&matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "canary"},
		})))},
		{"header-regex", prefix("", header("x-version", text(&matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex("v[0-9]+")},
		})))},
		{"range", prefix("", header("x-shard", &routev3.HeaderMatcher{
			HeaderMatchSpecifier: &routev3.HeaderMatcher_RangeMatch{RangeMatch: &typev3.Int64Range{Start: 100, End: 200}},
		}))},
		{"present", prefix("", header("x-debug", &routev3.HeaderMatcher{
			HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}))},
		{"inverted", prefix("/shop.Admin/", header("x-tenant", &routev3.HeaderMatcher{
			InvertMatch: true,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "guest"},
			}},
		}))},
		{"default", prefix("")},
	}
	var list []*routev3.Route
	var resources []proto.Message
	for _, r := range routes {
		_, cluster := clusterAt(t, r.cluster)
		resources = append(resources, cluster...)
		list = append(list, routeTo(r.cluster, r.match))
	}
	cp := startControlPlane(t, delta)
	cp.set(append(resources, shop(t, list...)...)...)
	r := startRelay(t, relayTo(cp.address, "delta"))
	channel := dialXDS(t, bootstrapFor(r, "edge-1"), "xds:///shop")

	for _, call := range []struct {
		method  string
		headers []string
		want    string
	}{
		{"/shop.Cart/Add", nil, "path"},
		{"/shop.Cart/AddAll", nil, "prefix"},
		{"/shop.Cart/ListAll", nil, "regex"},
		{"/shop.Cart/Listall", nil, "prefix"},
		{"/shop.Search/Find", nil, "any-case"},
		{"/shop.Shop/Visit", []string{"x-env", "canary"}, "exact"},
		{"/shop.Shop/Visit", []string{"x-env", "canary2"}, "default"},
		{"/shop.Shop/Visit", []string{"x-version", "v12"}, "header-regex"},
		{"/shop.Shop/Visit", []string{"x-version", "v12a"}, "default"},
		{"/shop.Shop/Visit", []string{"x-shard", "100"}, "range"},
		{"/shop.Shop/Visit", []string{"x-shard", "200"}, "default"},
		{"/shop.Shop/Visit", []string{"x-debug", "anything"}, "present"},
		{"/shop.Admin/Open", []string{"x-tenant", "owner"}, "inverted"},
		{"/shop.Admin/Open", []string{"x-tenant", "guest"}, "default"},
		{"/shop.Shop/Visit", []string{"x-tenant", "owner"}, "default"},
		{"/shop.Cart/Add", []string{"x-env", "canary"}, "path"},
	} {
		got, err := channel.call(call.method, call.headers...)
		if err != nil || got != call.want {
			t.Errorf("%s with headers %q reached %q (%v), want %q", call.method, call.headers, got, err, call.want)
		}
	}
}

// TestWeightedClustersShareRPCsByTheirWeights checks gRFC A28 through the relay:
// traffic is split by weight, and follows a change of the weights.
func TestWeightedClustersShareRPCsByTheirWeights(t *testing.T) {
	t.Parallel()
	const probe = "/shop.Probe/Which"
	blue, resources := clusterAt(t, "blue")
	green, more := clusterAt(t, "green")
	resources = append(resources, more...)
	// routes also has a route for the probe, in the same resource. When a probe reaches its cluster, the
	// weights are in force.
	routes := func(probed string, blueWeight, greenWeight uint32) []proto.Message {
		split := &routev3.Route{Match: prefix(""), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{
				Clusters: []*routev3.WeightedCluster_ClusterWeight{
					{Name: "blue", Weight: wrapperspb.UInt32(blueWeight)},
					{Name: "green", Weight: wrapperspb.UInt32(greenWeight)},
				},
			}},
		}}}
		return shop(t, routeTo(probed, prefix(probe)), split)
	}
	cp := startControlPlane(t, delta)
	cp.set(append(resources, routes("blue", 75, 25)...)...)
	r := startRelay(t, relayTo(cp.address, "delta"))
	channel := dialXDS(t, bootstrapFor(r, "edge-1"), "xds:///shop")

	channel.awaitReaches(probe, blue)
	channel.checkShare(t, "blue", 0.75)
	cp.set(routes("green", 20, 80)...)
	channel.awaitReaches(probe, green)
	channel.checkShare(t, "blue", 0.20)
}

// checkShare sends RPCs, and checks the share that reaches a backend. The number is binomially distributed.
// It may be off by seven standard deviations, which happens by chance about once in 10^11 times.
func (c *channel) checkShare(t testing.TB, backend string, want float64) {
	t.Helper()
	const rpcs, workers, deviations = 4000, 8, 7
	var mu sync.Mutex
	reached := map[string]int{}
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range rpcs / workers {
				id, err := c.call(someMethod)
				if err != nil {
					id = err.Error()
				}
				mu.Lock()
				reached[id]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	expected := rpcs * want
	allowed := deviations * math.Sqrt(rpcs*want*(1-want))
	if off := math.Abs(float64(reached[backend]) - expected); off > allowed {
		t.Errorf("of %d RPCs %d reached %s, want %v±%.0f; all: %v", rpcs, reached[backend], backend, expected, allowed, reached)
	}
	if others := reached["blue"] + reached["green"]; others != rpcs {
		t.Errorf("%d of %d RPCs failed: %v", rpcs-others, rpcs, reached)
	}
	t.Logf("share of %s: %.1f%% of %d", backend, 100*float64(reached[backend])/rpcs, rpcs)
}

// TestAggregateClusterFailsOverAndBack checks gRFC A37 and A75 through the relay: an aggregate cluster uses
// its first cluster while that is available, and otherwise its second. The first one becomes unavailable when
// its backend stops, or when the control plane removes its endpoints.
func TestAggregateClusterFailsOverAndBack(t *testing.T) {
	t.Parallel()
	first, resources := clusterAt(t, "first")
	second, more := clusterAt(t, "second")
	resources = append(resources, more...)
	resources = append(resources, aggregateCluster(t, "both", "first", "second"))
	cp := startControlPlane(t, delta)
	cp.set(append(resources, shop(t, routeTo("both", prefix("")))...)...)
	r := startRelay(t, relayTo(cp.address, "delta"))
	channel := dialXDS(t, bootstrapFor(r, "edge-1"), "xds:///shop")
	channel.awaitReaches(someMethod, first)

	first.stop()
	channel.awaitReaches(someMethod, second)
	first.start()
	channel.awaitReaches(someMethod, first)

	cp.set(endpointsAt(t, "first"))
	channel.awaitReaches(someMethod, second)
	cp.set(endpointsAt(t, "first", first.address))
	channel.awaitReaches(someMethod, first)
}
