package downstream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

// What is said of it is in testdata/both/when_unreachable.txt.

// lose says that there is nothing under some names, as nobody can be reached.
func lose(c *cache.Cache, outage *cache.Outage, typeURL string, names ...string) {
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL}
	for _, name := range names {
		u.Changes = append(u.Changes, cache.Change{Name: name, Err: &cache.Error{
			Code: codes.Unavailable, Message: "control plane of old cannot be reached", Outage: outage,
		}})
	}
	c.Apply(u)
}

// A handler that waits for its client is interrupted, also if the client reads nothing.
func TestGRPCStreamsEndWhenNothingCanBeServed(t *testing.T) {
	r := newRelay(t)
	served := serveInMemory(t, func(g *grpc.Server) {
		r.server.Register(g, ListenerOptions{WhenUnreachable: EndNames})
	}, ServerOptions(ListenerOptions{})...)
	s := openDelta(t, served.dial())
	subscribeTo(t, s, clusterType, "a")
	<-r.started
	lose(r.cache, new(cache.Outage), clusterType, "a")
	m, err := s.Recv()
	if st := status.Convert(err); st.Code() != codes.Unavailable || !strings.HasPrefix(st.Message(), "control plane of old cannot be reached") {
		t.Errorf("got %v, %v, want UNAVAILABLE", m, err)
	}
	eventually(t, "the stream is forgotten", func() bool { return r.server.Clients() == 0 })
	if n := r.server.Stats().Unreachable; n != 1 {
		t.Errorf("%d streams are counted, want 1", n)
	}
}

// A name may have no answer yet although its control plane is reachable again.
func TestAStreamIsKeptOnceTheOutageIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch := newTestCache(&recordingSource{}, 1000)
		defer ch.Close()
		server, _ := newTestServer(ch, DefaultMaxResponseBytes)
		outage := new(cache.Outage)
		for _, over := range []bool{false, true} {
			c := newTestClient(server, deltaForm.name, &corev3.Node{})
			c.st.unreachable = EndNames
			if over {
				outage.End()
			}
			if err := c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
			lose(ch, outage, clusterType, "a")
			c.readAll(t)
			time.Sleep(time.Minute)
			if ended := c.grpc.transport.ended.Load() != nil; ended == over {
				t.Errorf("with an outage that is over: %t, the stream ended: %t", over, ended)
			}
			c.close()
		}
	})
}

// However many streams end, the log does not grow with them.
func TestLinesAboutStreamsThatEndAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch := newTestCache(&recordingSource{}, 1000)
		defer ch.Close()
		server, log := newTestServer(ch, DefaultMaxResponseBytes)
		gate := newGate(ListenerOptions{})
		const total = 3 * loglines.SharedAtOnce
		for range total {
			c := newTestClient(server, sotwForm.name, &corev3.Node{})
			defer c.close()
			c.st.gate, c.st.unreachable = gate, EndNames
			if err := c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: []string{"a"}}); err != nil {
				t.Fatal(err)
			}
		}
		lose(ch, new(cache.Outage), clusterType, "a")
		for _, st := range server.streams.all() {
			st.next()
		}
		time.Sleep(settle + spread)
		synctest.Wait()
		if lines := log.take(); len(lines) != loglines.SharedAtOnce {
			t.Errorf("%d streams are %d lines, want %d", total, len(lines), loglines.SharedAtOnce)
		}
		if n := server.Stats().Unreachable; n != total {
			t.Errorf("%d streams ended, want %d", n, total)
		}
	})
}

// TestAStreamEndsExactlyWhenNothingCanBeServed compares the counts with the actual state, after any subscriptions and
// unsubscriptions.
func TestAStreamEndsExactlyWhenNothingCanBeServed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ch := newTestCache(&recordingSource{}, 1000)
		defer ch.Close()
		server, _ := newTestServer(ch, DefaultMaxResponseBytes)
		form := rapid.SampledFrom([]string{deltaForm.name, sotwForm.name}).Draw(rt, "form")
		c := newTestClient(server, form, &corev3.Node{})
		defer c.close()
		c.st.unreachable = rapid.SampledFrom([]WhenUnreachable{EndNames, EndAll}).Draw(rt, "policy")
		names := []string{"a", "b", "c", "*", "xdstp://unknown/envoy.config.cluster.v3.Cluster/x"}
		outage := new(cache.Outage)
		asked, first := map[string]bool{}, true
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			name := rapid.SampledFrom(names).Draw(rt, "name")
			switch what := rapid.SampledFrom([]string{"ask", "give up", "lose", "give", "read"}).Draw(rt, "what"); what {
			case "ask", "give up":
				// A list that becomes empty, or is so from the beginning, is another rule.
				if asked[name] == (what == "ask") || what == "give up" && len(asked) == 1 {
					continue
				}
				if asked[name] = what == "ask"; !asked[name] {
					delete(asked, name)
				}
				askFor(rt, c, name, asked, first)
				first = false
			case "lose":
				if name == "*" {
					ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: clusterType, Sets: []cache.SetUpdate{{Name: name, Err: &cache.Error{Code: codes.Unavailable, Outage: outage}}}})
				} else {
					lose(ch, outage, clusterType, name)
				}
			case "give":
				u := cache.Update{Scope: oldStyleScope(""), TypeURL: clusterType}
				if name == "*" {
					u.Sets = []cache.SetUpdate{{Name: name}}
				} else {
					u.Changes = []cache.Change{{Name: name, Resource: newTestResource(clusterType, name, "v1", "content")}}
				}
				ch.Apply(u)
			case "read":
				c.readAll(rt)
			}
			c.st.next() // what has changed is taken note of
		}
		hopes, lostOnes := false, 0
		for name := range asked {
			switch k := (cache.Key{Scope: oldStyleScope(""), TypeURL: clusterType, Name: name}); {
			case strings.HasPrefix(name, "xdstp:"):
			case name == "*":
				var w probeSet
				status, err := ch.WatchSet(k, &w).Status()
				ch.Unwatch(&w)
				if c.st.unreachable == EndAll && status == cache.Failed && err.Unreachable() {
					lostOnes++
				} else {
					hopes = true
				}
			default:
				var w probe
				e, _ := ch.Watch(k, &w)
				st := e.State()
				ch.Unwatch(&w)
				if st.Unreachable() {
					lostOnes++
				} else {
					hopes = true
				}
			}
		}
		want := !hopes && lostOnes > 0
		if got := c.st.unservable() != nil; got != want {
			rt.Fatalf("asked for %v: unservable %t, want %t", asked, got, want)
		}
	})
}

type probe struct{ cache.Watch }

func (*probe) Changed() cache.Waker { return nil }

type probeSet struct{ cache.SetWatch }

func (*probeSet) Changed() cache.Waker { return nil }

// askFor sends the request that asks for a name, or gives it up.
func askFor(t tb, c *testClient, name string, asked map[string]bool, first bool) {
	t.Helper()
	var err error
	if c.st.form == deltaForm.name {
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType}
		if asked[name] {
			req.ResourceNamesSubscribe = []string{name}
		} else {
			req.ResourceNamesUnsubscribe = []string{name}
		}
		err = c.delta(req)
	} else {
		req := &discoveryv3.DiscoveryRequest{TypeUrl: clusterType}
		for n := range asked {
			req.ResourceNames = append(req.ResourceNames, n)
		}
		if m := c.memory(clusterType); !first {
			req.ResponseNonce, req.VersionInfo = m.nonce, m.version
		}
		err = c.sotw(req)
	}
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprint(asked), err)
	}
}
