package relay

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/testplane"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// shopPlane has the resources of a proxyless gRPC client under each name NAME: a Listener that refers to the
// RouteConfiguration NAME-route, which refers to the Clusters NAME-one and NAME-secret, and these to their endpoints.
// It records the requests.
type shopPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	mu      sync.Mutex
	asked   map[string]int // TYPE NAME
	wanted  map[string]int // that are subscribed to now
	streams int
	changed chan struct{}
}

func newShopPlane() *shopPlane {
	return &shopPlane{asked: map[string]int{}, wanted: map[string]int{}, changed: make(chan struct{})}
}

// DeltaAggregatedResources implements the aggregated service.
func (p *shopPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	p.note(func() { p.streams++ })
	begun := map[string]bool{}
	for n := 0; ; n++ {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		word := xdstype.Word(req.GetTypeUrl())
		if !begun[word] && len(req.GetResourceNamesSubscribe()) == 0 {
			req.ResourceNamesSubscribe = []string{"*"} // the wildcard in its old form
		}
		begun[word] = true
		p.note(func() {
			for _, name := range req.GetResourceNamesSubscribe() {
				p.asked[word+" "+name]++
				p.wanted[word+" "+name]++
			}
			for _, name := range req.GetResourceNamesUnsubscribe() {
				p.wanted[word+" "+name]--
			}
		})
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: fmt.Sprint(n)}
		for _, name := range req.GetResourceNamesSubscribe() {
			if name == "*" {
				name = "member"
			}
			a, err := anypb.New(shopResource(word, name))
			if err != nil {
				return err
			}
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: a})
		}
		if len(resp.Resources) == 0 {
			continue
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (p *shopPlane) note(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits until a condition on the plane's requests holds.
func (p *shopPlane) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		p.mu.Lock()
		ok, changed, asked := is(), p.changed, fmt.Sprint(p.wanted)
		p.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s: not within a minute; subscribed to %s", what, asked)
		}
	}
}

// awaitAsked waits until the plane has received a request for a resource.
func (p *shopPlane) awaitAsked(t *testing.T, what string) {
	t.Helper()
	p.await(t, "asked for "+what, func() bool { return p.asked[what] > 0 })
}

func (p *shopPlane) times(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[what]
}

func shopADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

func shopResource(word, name string) proto.Message {
	switch word {
	case "listener":
		manager, err := anypb.New(&managerv3.HttpConnectionManager{RouteSpecifier: &managerv3.HttpConnectionManager_Rds{
			Rds: &managerv3.Rds{RouteConfigName: name + "-route", ConfigSource: shopADS()},
		}})
		if err != nil {
			panic(err)
		}
		return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: manager}}
	case "route":
		service := strings.TrimSuffix(name, "-route")
		r := &routev3.RouteConfiguration{Name: name}
		for _, cluster := range []string{service + "-one", service + "-secret", "xdstp://other/envoy.config.cluster.v3.Cluster/" + service} {
			r.VirtualHosts = append(r.VirtualHosts, &routev3.VirtualHost{Name: cluster, Domains: []string{cluster}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
			}}})
		}
		return r
	case "cluster":
		return &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: shopADS()},
		}
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: name}
}

// prefetchTest is a relay before a shopPlane, with another authority and a listener.
type prefetchTest struct {
	*reloadTest
	shop, other *shopPlane
	config      string
}

// startPrefetchTest runs a relay with more in its configuration, in which %s is whether it prefetches.
func startPrefetchTest(t *testing.T, prefetch bool, more string) *prefetchTest {
	p := &prefetchTest{reloadTest: &reloadTest{T: t, listen: freeAddress(t)}, shop: newShopPlane(), other: newShopPlane()}
	p.config = fmt.Sprintf(`
listeners: [{address: "%s", prefetch: %%v}]
authorities:
  - {name: a, servers: [{address: "%s"}]}
  - {name: other, servers: [{address: "%s"}]}
%s`, p.listen, testplane.Listen(t, p.shop), testplane.Listen(t, p.other), more)
	p.relay, _ = runRelay(t, fmt.Sprintf(p.config, prefetch), slog.New(slog.DiscardHandler))
	return p
}

const shopRules = `
old_style_names: [{authority: a}]
cache: {linger: 0s}
`

// request opens a stream that requests names of a type, and waits for the answer.
func (p *prefetchTest) request(node, word string, names ...string) *deltaClient {
	p.Helper()
	c := openDelta(p.T, connectTo(p.T, p.listen))
	p.more(c, node, word, names...)
	return c
}

func (p *prefetchTest) more(c *deltaClient, node, word string, names ...string) {
	p.Helper()
	typeURL, err := xdstype.Parse(word)
	if err != nil {
		p.Fatal(err)
	}
	req := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: typeURL, ResourceNamesSubscribe: names}
	if err := c.Send(req); err != nil {
		p.Fatal(err)
	}
	for {
		resp, err := c.Recv()
		if err != nil {
			p.Fatal(err)
		}
		if resp.GetTypeUrl() == typeURL {
			return
		}
	}
}

func TestTheRelayAsksForWhatAClientWillAskForNext(t *testing.T) {
	// Topics that are given up linger, so this may take longer than a lease.
	p := startPrefetchTest(t, true, strings.ReplaceAll(shopRules, "0s", "1h"))
	first := p.request("first", "listener", "shop", "mall")
	for _, what := range []string{"route shop-route", "cluster shop-one", "endpoint shop-one", "endpoint mall-one"} {
		p.shop.awaitAsked(t, what)
	}
	// Other clients with the same names, one of them in a group with the first, cause no further prefetches.
	for i := range 5 {
		p.request(fmt.Sprint("later", i), "listener", "shop", "mall")
	}
	p.request("single", "listener", "shop")
	p.more(first, "first", "route", "shop-route")
	for _, what := range []string{"listener shop", "route shop-route", "cluster shop-one", "endpoint mall-one"} {
		if n := p.shop.times(what); n != 1 {
			t.Errorf("asked %d times for %s, want once", n, what)
		}
	}
	// The relay prefetches nothing from an authority that no client uses: that would need a stream.
	p.other.mu.Lock()
	defer p.other.mu.Unlock()
	if p.other.streams > 0 {
		t.Errorf("%d streams to a control plane that no client uses", p.other.streams)
	}
}

func TestWhatNoClientAsksForIsUnsubscribed(t *testing.T) {
	p := startPrefetchTest(t, true, shopRules)
	p.request("first", "listener", "shop")
	p.shop.awaitAsked(t, "endpoint shop-one")
	p.shop.await(t, "all that was prefetched is given up", func() bool {
		for _, what := range []string{"route shop-route", "cluster shop-one", "cluster shop-secret", "endpoint shop-one"} {
			if p.shop.wanted[what] != 0 {
				return false
			}
		}
		return p.shop.wanted["listener shop"] == 1
	})
	p.awaitAhead("all is given up", 0)
	s := p.relay.prefetcher.Stats()
	if s.Ahead != 0 || s.Released == 0 {
		t.Errorf("%+v, want some released and none ahead", s)
	}
}

func TestAReloadTurnsPrefetchingOnAndOffForOpenStreams(t *testing.T) {
	for _, names := range [][]string{{"shop"}, {"shop", "mall"}} {
		t.Run(fmt.Sprint(len(names), " names"), func(t *testing.T) {
			p := startPrefetchTest(t, false, strings.ReplaceAll(shopRules, "0s", "1h"))
			var clients []*deltaClient
			for i := range 3 { // the last ones are a group if there are several names
				clients = append(clients, p.request(fmt.Sprint(i), "listener", names...))
			}
			if n := p.relay.prefetcher.Stats().Begun; n != 0 {
				t.Errorf("%d names prefetched while it is off", n)
			}
			p.mustReload(p.config, true)
			p.shop.awaitAsked(t, "endpoint shop-one")
			p.mustReload(p.config+"# the same\n", true)
			p.mustReload(p.config, false)
			p.awaitAhead("it is off", 0)
			if n := p.shop.times("listener shop"); n != 1 {
				t.Errorf("asked %d times for the Listener", n)
			}
			for _, c := range clients {
				p.more(c, "", "cluster", "shop-one") // it goes on
			}
			p.mustReload(p.config, true)
			p.request("new", "listener", "bazaar")
			p.shop.awaitAsked(t, "endpoint bazaar-one")
		})
	}
}

// awaitAhead waits until so many names are prefetched.
func (p *prefetchTest) awaitAhead(when string, n int) {
	p.Helper()
	for deadline := time.After(time.Minute); p.relay.prefetcher.Stats().Ahead != n; {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			p.Fatalf("%s: %+v, want %d ahead", when, p.relay.prefetcher.Stats(), n)
		}
	}
}

func TestNothingIsPrefetchedThatClientsMayNotHave(t *testing.T) {
	p := startPrefetchTest(t, true, shopRules+`
rights:
  - {when: name.endsWith("-secret"), allow: "false"}
  - {when: name.startsWith("mall-route"), allow: "false"}
  - {allow: "true"}
`)
	p.request("first", "listener", "shop", "mall")
	p.shop.awaitAsked(t, "endpoint shop-one")
	for _, what := range []string{"cluster shop-secret", "endpoint shop-secret", "route mall-route", "cluster mall-one"} {
		if p.shop.times(what) > 0 {
			t.Errorf("asked for %s, which the client may not have", what)
		}
	}
}

func TestWhatAWildcardHasIsNotPrefetchedByName(t *testing.T) {
	p := startPrefetchTest(t, true, shopRules)
	envoy := p.request("envoy", "cluster", "*")
	p.shop.awaitAsked(t, "endpoint member") // of the cluster that is a member
	p.more(envoy, "envoy", "listener", "*")
	p.shop.awaitAsked(t, "route member-route")
	p.more(envoy, "envoy", "route", "member-route")
	if n := p.shop.times("cluster member-one"); n > 0 {
		t.Errorf("asked %d times by its name for a cluster that the wildcard would have", n)
	}
	// A client without the wildcard gets clusters by name.
	p.request("grpc", "listener", "shop")
	p.shop.awaitAsked(t, "cluster shop-one")
}

// If rules send the types of old-style names to several authorities, a Listener's references lead to another
// authority.
func TestReferencesMeanWhatTheyMeanToTheClient(t *testing.T) {
	p := startPrefetchTest(t, true, `
old_style_names:
  - {when: type_url.endsWith(".Cluster"), authority: other}
  - {when: type_url.endsWith(".ClusterLoadAssignment") && node.id == "split", authority: other}
  - {authority: a}
cache: {linger: 0s}
`)
	c := p.request("split", "cluster", "mine")
	p.other.awaitAsked(t, "endpoint mine")
	p.more(c, "split", "listener", "shop")
	p.shop.awaitAsked(t, "route shop-route")
	p.other.awaitAsked(t, "endpoint shop-one")
	if p.shop.times("cluster shop-one")+p.shop.times("endpoint shop-one") > 0 {
		t.Error("asked the authority of the Listener for what the rules send to another one")
	}
}
