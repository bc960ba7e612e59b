package integration

// A client like an Envoy under a supervisor. It subscribes to all clusters. When its stream ends, it keeps
// its resources, reconnects, and sends their versions. When it crashes, the supervisor starts it again,
// without resources.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

type proxy struct {
	watched[proxyState]
	t           testing.TB
	form        form
	id, program string
	address     func() string
	is          proxyTemper
}

// proxyTemper says which resources a proxy rejects, and which ones make it crash.
type proxyTemper struct {
	rejects, diesOf string // contents
	most            int    // if not 0, longer contents make it crash
}

// proxyState has the resources that a proxy holds, and what it has seen since its first start.
type proxyState struct {
	holds    map[string]string // contents by name
	versions map[string]string // delta: versions by name
	version  string            // SotW: the version of the last response
	lost     map[string]bool   // names of resources that it held and whose removal it received
	sent     map[string]int    // how often it received each content
	nacks    int
	deaths   int
}

// String describes the proxy, for a failed test.
func (s *proxyState) String() string {
	return fmt.Sprintf("holds %d: %.300v, has lost %d: %.300v, received %.300v, sent %d NACKs, crashed %d times",
		len(s.holds), s.holds, len(s.lost), s.lost, s.sent, s.nacks, s.deaths)
}

// startProxy runs a proxy until the test ends.
func startProxy(t testing.TB, f form, address func() string, id, program string, is proxyTemper) *proxy {
	t.Helper()
	p := &proxy{t: t, form: f, id: id, program: program, address: address, is: is}
	p.value = proxyState{lost: map[string]bool{}, sent: map[string]int{}}
	p.value.forget()
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	t.Cleanup(func() {
		end()
		<-ended
	})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			p.connect(ctx)
			const breath = 20 * time.Millisecond
			select {
			case <-time.After(breath):
			case <-ctx.Done():
			}
		}
	}()
	return p
}

// startProxies runs n proxies.
func startProxies(t testing.TB, n int, f form, address func() string, program string, is proxyTemper) (all []*proxy) {
	t.Helper()
	for i := range n {
		all = append(all, startProxy(t, f, address, fmt.Sprintf("%s-%d", program, i), program, is))
	}
	return all
}

// forget drops the state of a proxy, as a restart of its process does.
func (s *proxyState) forget() {
	s.holds, s.versions, s.version = map[string]string{}, map[string]string{}, ""
}

// connect opens a stream, and answers responses until the stream ends or the proxy crashes.
func (p *proxy) connect(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	conn, err := grpc.NewClient(p.address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	stream, err := p.open(ctx, discoveryv3.NewAggregatedDiscoveryServiceClient(conn))
	if err != nil {
		return
	}
	for {
		r, err := stream.receive()
		if err != nil {
			return
		}
		var words string
		var dies bool
		p.update(func(s *proxyState) { words, dies = s.take(p.is, &r) })
		if dies {
			return
		}
		if stream.answer(r.typeURL, r.version, r.nonce, words) != nil {
			return
		}
	}
}

// open opens a stream and sends the first request, with the versions that the proxy holds.
func (p *proxy) open(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient) (fleetStream, error) {
	node := &corev3.Node{Id: p.id, UserAgentName: p.program, UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.0"}}
	var versions map[string]string
	var version string
	p.read(func(s *proxyState) { versions, version = maps.Clone(s.versions), s.version })
	if p.form == delta {
		s, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			return nil, err
		}
		return &deltaFleetStream{stream: s}, s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: clusterType, InitialResourceVersions: versions})
	}
	s, err := ads.StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	return &sotwFleetStream{stream: s, accepted: map[string]string{clusterType: version}}, s.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: clusterType, VersionInfo: version})
}

// take processes a response. If words is not empty, the proxy rejects the response; if dies is true, it
// crashes.
func (s *proxyState) take(is proxyTemper, r *response) (words string, dies bool) {
	comes := map[string]string{}
	for name, value := range r.resources {
		content := plainContent(value.value)
		comes[name] = content
		s.sent[content]++
		if is.rejects != "" && content == is.rejects {
			words = "no such filter: " + content
		}
		dies = dies || is.diesOf != "" && content == is.diesOf || is.most > 0 && len(content) > is.most
	}
	switch {
	case dies:
		s.deaths++
		s.forget()
	case words != "":
		s.nacks++
	default:
		gone := r.removed
		if r.full {
			for name := range s.holds {
				if _, there := comes[name]; !there {
					gone = append(gone, name)
				}
			}
			s.version = r.version
		}
		for _, name := range gone {
			if _, held := s.holds[name]; held {
				s.lost[name] = true
			}
			delete(s.holds, name)
			delete(s.versions, name)
		}
		for name, content := range comes {
			s.holds[name], s.versions[name] = content, r.resources[name].version
		}
	}
	return words, dies
}

// awaitEach waits until the condition is true for each proxy.
func awaitEach(t testing.TB, all []*proxy, what string, is func(*proxyState) bool) {
	t.Helper()
	for _, p := range all {
		p.await(t, fmt.Sprintf("the %s proxy %s %s", p.form, p.id, what), is)
	}
}

// holding returns the condition that a proxy holds exactly n resources.
func holding(n int) func(*proxyState) bool {
	return func(s *proxyState) bool { return len(s.holds) == n }
}

// holdingContent returns the condition that a proxy holds a content under a name.
func holdingContent(name, content string) func(*proxyState) bool {
	return func(s *proxyState) bool { return s.holds[name] == content }
}

// mustHaveLost checks how many of its resources each proxy has ever lost.
func mustHaveLost(t testing.TB, all []*proxy, want int) {
	t.Helper()
	for _, p := range all {
		p.read(func(s *proxyState) {
			if len(s.lost) != want {
				t.Errorf("the %s proxy %s has lost %d of its clusters, want %d: %s", p.form, p.id, len(s.lost), want, s)
			}
		})
	}
}

// sentTo returns the ids of the proxies that received a content.
func sentTo(all []*proxy, content string) (ids []string) {
	for _, p := range all {
		p.read(func(s *proxyState) {
			if s.sent[content] > 0 {
				ids = append(ids, p.id)
			}
		})
	}
	slices.Sort(ids)
	return ids
}

// deathsOf returns how often the proxies have crashed, in total.
func deathsOf(all []*proxy) (n int) {
	for _, p := range all {
		p.read(func(s *proxyState) { n += s.deaths })
	}
	return n
}

// nacked returns the condition that a control plane has received a NACK with these words in it.
func nacked(words string) func(*seen) bool {
	return func(s *seen) bool {
		return slices.ContainsFunc(s.nacks, func(nack string) bool { return strings.Contains(nack, words) })
	}
}
