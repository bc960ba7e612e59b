package relay

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/testplane"
)

// noTopics is a cache that has nothing.
type noTopics struct{}

func (noTopics) Outdate(cache.Scope) {}
func (noTopics) Renew(cache.Scope)   {}

// If the last topic leaves while a source is being replaced, the new source is closed, too.
func TestASourceThatReplacesOneWithoutTopicsIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, opened := newRecordedScopes()
		f.topics = noTopics{}
		open, fingerprint := f.open, "first"
		f.open = func(scope cache.Scope, node *corev3.Node) (source, string) {
			of, _ := open(scope, node)
			return of, fingerprint
		}
		k := cache.Key{Scope: scopeB, Name: "x"}
		f.Start(k)
		f.Stop(k)
		<-(*opened)[0].leaving
		fingerprint = "second"
		f.replaceOutdated(func(cache.Scope) string { return "second" }, func(cache.Scope, func(cache.Key)) {})
		synctest.Wait()
		first, second := (*opened)[0], (*opened)[1]
		<-first.closed
		<-second.leaving
		first.gone <- struct{}{} // that the first one has taken leave says nothing of the second one
		synctest.Wait()
		second.gone <- struct{}{}
		synctest.Wait()
		select {
		case <-second.closed:
		default:
			t.Error("the second source is not closed")
		}
		f.Close()
	})
}

// answeringSource is a source whose control plane answers when the test says so.
type answeringSource struct {
	recordedScopeSource
	answered chan struct{}
}

func (s *answeringSource) Answered() <-chan struct{} { return s.answered }
func (s *answeringSource) Drain()                    {}

// A reload that gives thousands of scopes new sources does not open all their streams at once: the control plane has
// a hundred at a time to answer, or four hundred a second if it is slow. Scopes of another control plane do not wait.
func TestScopesGetNewSourcesInTurn(t *testing.T) {
	const scopes = 5000
	for _, plane := range []struct {
		name  string
		takes time.Duration // until it answers; 0: it never does
		lasts time.Duration // until all scopes have had their turn
		// resumes: the streams have only what differs, which may be nothing.
		resumes bool
	}{
		{"fast", 10 * time.Millisecond, scopes / renewedAtOnce * 10 * time.Millisecond, false},
		{"slow", time.Second, scopes / renewedAtOnce * answersWithin, false},
		{"silent", 0, scopes / renewedAtOnce * answersWithin, false},
		{"silent, and the streams resume", 0, 0, true},
	} {
		t.Run(plane.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newScopes()
				f.topics = noTopics{}
				f.planeOf = func(scope cache.Scope) any { return scope.Authority }
				f.resumes = func(cache.Scope, string) bool { return plane.resumes }
				fingerprint := "before"
				waiting := 0 // for an answer, or for answersWithin
				var last time.Duration
				began := time.Now()
				f.open = func(scope cache.Scope, _ *corev3.Node) (source, string) {
					s := &answeringSource{recordedScopeSource{closed: make(chan struct{})}, make(chan struct{})}
					if fingerprint == "before" {
						return s, fingerprint
					}
					at := time.Since(began)
					if scope.Authority == "other" {
						if at != 0 {
							t.Errorf("the scope of another control plane waits for %v", at)
						}
						return s, fingerprint
					}
					last = at
					if waiting++; waiting > renewedAtOnce && !plane.resumes {
						t.Errorf("%d scopes wait for an answer at once", waiting)
					}
					busy := answersWithin
					if plane.takes > 0 {
						time.AfterFunc(plane.takes, func() { close(s.answered) })
						busy = min(busy, plane.takes)
					}
					// A moment earlier than the turn ends: what is due at the same moment comes in any order.
					time.AfterFunc(busy-time.Microsecond, func() {
						f.mu.Lock()
						defer f.mu.Unlock()
						waiting--
					})
					return s, fingerprint
				}
				for i := range scopes {
					f.Start(cache.Key{Scope: cache.Scope{Authority: "one", Partition: fmt.Sprint(i)}, Name: "x"})
				}
				f.Start(cache.Key{Scope: cache.Scope{Authority: "other"}, Name: "x"})
				f.mu.Lock()
				fingerprint = "after"
				f.mu.Unlock()
				f.replaceOutdated(func(cache.Scope) string { return "after" }, func(cache.Scope, func(cache.Key)) {})
				for at := time.Duration(0); at <= plane.lasts; at += answersWithin {
					time.Sleep(answersWithin)
				}
				synctest.Wait()
				f.mu.Lock()
				for scope, of := range f.sources {
					if of.replacing || of.fingerprint != "after" {
						t.Errorf("scope %v has its old source", scope)
					}
				}
				if last > plane.lasts || last < plane.lasts/2 {
					t.Errorf("the last scope has its turn after %v, want %v", last, plane.lasts)
				}
				if len(f.turns.planes) > 0 {
					t.Errorf("turns are kept of %d control planes", len(f.turns.planes))
				}
				f.mu.Unlock()
				f.Close()
			})
		})
	}
}

// Scopes that wait for their turn do not delay the relay's shutdown.
func TestScopesThatWaitForTheirTurnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newScopes()
		f.topics = noTopics{}
		f.planeOf = func(cache.Scope) any { return "plane" }
		f.open = func(cache.Scope, *corev3.Node) (source, string) {
			return &answeringSource{recordedScopeSource{closed: make(chan struct{})}, make(chan struct{})}, "after"
		}
		for i := range 3 * renewedAtOnce {
			f.Start(cache.Key{Scope: cache.Scope{Partition: fmt.Sprint(i)}, Name: "x"})
		}
		f.mu.Lock()
		for _, of := range f.sources {
			of.fingerprint = "before"
		}
		f.mu.Unlock()
		f.replaceOutdated(func(cache.Scope) string { return "after" }, func(cache.Scope, func(cache.Key)) {})
		synctest.Wait()
		began := time.Now()
		f.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("it takes %v", took)
		}
	})
}

// burstPlane counts the streams that wait for its first answer, which takes a while.
type burstPlane struct {
	*labelledPlane
	mu            sync.Mutex
	waiting, most int
}

// DeltaAggregatedResources implements the aggregated service.
func (p *burstPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	p.mu.Lock()
	p.waiting++
	p.most = max(p.most, p.waiting)
	p.mu.Unlock()
	return p.labelledPlane.DeltaAggregatedResources(&burstStream{stream, p, sync.Once{}})
}

type burstStream struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	plane *burstPlane
	first sync.Once
}

func (s *burstStream) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	s.first.Do(func() {
		s.plane.mu.Lock()
		s.plane.waiting--
		s.plane.mu.Unlock()
	})
	return s.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(r)
}

// With control planes and clients: each of 300 clients has its own partition, and gets the resources of the other
// control plane, which never has more than a hundred streams to answer at once.
func TestPartitionsGetNewServersInTurn(t *testing.T) {
	t.Parallel()
	const clients = 300
	first := startLabelledPlane(t, "first", "m1")
	second := &burstPlane{labelledPlane: &labelledPlane{label: "second", members: []string{"m1"}}}
	second.answers = make(chan struct{})
	second.address = testplane.Listen(t, second)
	r := &reloadTest{T: t, listen: freeAddress(t)}
	config := strings.Replace(reloadConfig, "authority: a}]", "authority: a, partition: node.id}]", 1)
	r.relay, _ = runRelay(t, fmt.Sprintf(config, r.listen, first.address), slog.New(slog.DiscardHandler))
	conn := connectTo(t, r.listen)
	for i := range clients {
		r.everything = append(r.everything, hold(t, conn, i%2 == 0, &corev3.Node{Id: fmt.Sprint(i)}))
	}
	for _, h := range r.everything {
		h.awaitHas(t, "at the start", map[string]string{"m1": "first"})
	}
	r.mustReload(config, r.listen, second.address)
	await(t, "a hundred streams are open", func() bool { return second.opened() >= renewedAtOnce })
	close(second.answers)
	for _, h := range r.everything {
		h.awaitHas(t, "from the other server", map[string]string{"m1": "second"})
	}
	r.mustBeOpen("another server")
	second.mu.Lock()
	defer second.mu.Unlock()
	if got := second.opened(); got != clients {
		t.Errorf("%d streams were opened, want %d", got, clients)
	}
	t.Logf("%d streams waited for their first answer at once", second.most)
}
