package upstream

import (
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// The same against a control plane that others wrote: go-control-plane's.

// plane is go-control-plane's server, and counts the requests.
type plane struct {
	snapshots cachev3.SnapshotCache
	cancel    context.CancelFunc
	server    discoveryv3.AggregatedDiscoveryServiceServer

	mu     sync.Mutex
	sent   []string // names of resources that were sent, in order
	nacks  int
	opens  int // SotW
	deltas int
}

func newPlane() *plane {
	ctx, cancel := context.WithCancel(context.Background())
	p := &plane{snapshots: cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil), cancel: cancel}
	noted := func(f func()) { p.mu.Lock(); defer p.mu.Unlock(); f() }
	p.server = serverv3.NewServer(ctx, p.snapshots, serverv3.CallbackFuncs{
		StreamOpenFunc:      func(context.Context, int64, string) error { noted(func() { p.opens++ }); return nil },
		DeltaStreamOpenFunc: func(context.Context, int64, string) error { noted(func() { p.deltas++ }); return nil },
		StreamDeltaRequestFunc: func(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
			noted(func() {
				if r.GetErrorDetail() != nil {
					p.nacks++
				}
			})
			return nil
		},
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			noted(func() {
				if r.GetErrorDetail() != nil {
					p.nacks++
				}
			})
			return nil
		},
		StreamDeltaResponseFunc: func(_ int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
			noted(func() {
				for _, res := range r.GetResources() {
					p.sent = append(p.sent, res.GetName())
				}
				for _, name := range r.GetRemovedResources() {
					p.sent = append(p.sent, "-"+name)
				}
			})
		},
		StreamResponseFunc: func(_ context.Context, _ int64, _ *discoveryv3.DiscoveryRequest, r *discoveryv3.DiscoveryResponse) {
			noted(func() {
				for _, a := range r.GetResources() {
					name, _ := wire.InnerName(a.GetValue())
					p.sent = append(p.sent, name)
				}
			})
		},
	})
	return p
}

// taken returns what was sent since it was last called.
func (p *plane) taken() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := slices.Sorted(slices.Values(p.sent))
	p.sent = nil
	return sent
}

// set makes a state: clusters, and assignments that are named like them.
func (p *plane) set(t *testing.T, version string, clusters map[string]string) {
	t.Helper()
	var cds, eds []types.Resource
	for name, text := range clusters {
		cds = append(cds, &clusterv3.Cluster{Name: name, AltStatName: text})
		eds = append(eds, &endpointv3.ClusterLoadAssignment{
			ClusterName:    name,
			NamedEndpoints: map[string]*endpointv3.Endpoint{text: {}},
		})
	}
	snapshot, err := cachev3.NewSnapshot(version, map[resourcev3.Type][]types.Resource{
		resourcev3.ClusterType: cds, resourcev3.EndpointType: eds,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.snapshots.SetSnapshot(t.Context(), "relay", snapshot); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// withPlane runs a test with each protocol, against a go-control-plane.
func withPlane(t *testing.T, test func(*bench, *plane)) {
	t.Helper()
	for _, form := range []Protocol{Delta, SotW, Auto} {
		t.Run(string(form), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlane()
				defer p.cancel()
				b := &bench{T: t, logs: &logBuffer{}}
				b.start(Options{Protocol: form}, p.server)
				defer b.stop()
				test(b, p)
			})
		})
	}
}

// restart replaces the control plane's process.
func (b *bench) restart(p *plane) {
	b.server.Stop()
	lis := memconn.Listen(1 << 20)
	b.mu.Lock()
	b.lis = lis
	b.mu.Unlock()
	b.server = grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(b.server, p.server)
	go func(s *grpc.Server, lis net.Listener) { _ = s.Serve(lis) }(b.server, lis)
	pass(time.Minute)
	synctest.Wait()
}

func (b *bench) wantText(e *cache.Entry, want string) {
	b.Helper()
	synctest.Wait()
	got := e.State().Status.String()
	if r := e.State().Resource; r != nil {
		got = text(r)
	}
	if got != want {
		b.Errorf("%s is %s, want %s", e.Key().Name, got, want)
	}
}

func members(s *cache.Set) string {
	synctest.Wait()
	status, _ := s.Status()
	var list []string
	for _, name := range []string{"a", "b", "c", "d", member1, member2} {
		if r := s.Member(name); r != nil {
			list = append(list, path.Base(name)+"="+text(r))
		}
	}
	return fmt.Sprint(status, list)
}

func TestGoControlPlane(t *testing.T) {
	withPlane(t, func(b *bench, p *plane) {
		p.set(b.T, "1", map[string]string{"a": "1", "b": "1", "c": "1"})
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		e := b.watch("eds", "a", "b", "x")
		if got := members(set); got != "present [a=1 b=1 c=1]" {
			b.Errorf("the set is %s", got)
		}
		b.wantText(e["a"], "1")
		b.wantText(e["x"], "requested")

		// Changed, gone, new.
		p.set(b.T, "2", map[string]string{"a": "1", "b": "2", "d": "2", "x": "2"})
		if got := members(set); got != "present [a=1 b=2 d=2]" {
			b.Errorf("then the set is %s", got)
		}
		b.wantText(e["b"], "2")
		b.wantText(e["x"], "2")

		// Another name, which go-control-plane would not answer.
		one := b.watch("cds", "a")["a"]
		b.wantText(one, "1")

		// The control plane restarts, and a resource has gone since. Unchanged resources
		// stay, and delta does not send them.
		b.server.Stop()
		synctest.Wait()
		p.set(b.T, "3", map[string]string{"a": "1", "b": "3"})
		b.restart(p)
		if got := members(set); got != "present [a=1 b=3]" {
			b.Errorf("after the restart the set is %s", got)
		}
		b.wantText(e["a"], "1")
		b.wantText(e["b"], "3")
		if b.stream.Status().Protocol == Delta {
			// x is not there any more, but was subscribed to by name.
			b.wantText(e["x"], "absent")
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.nacks > 0 {
			b.Errorf("%d NACKs", p.nacks)
		}
	})
}

func TestGoControlPlaneIsNotSentTwiceOnReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		defer p.cancel()
		b := &bench{T: t, logs: &logBuffer{}}
		b.start(Options{Protocol: Delta}, p.server)
		defer b.stop()
		p.set(t, "1", map[string]string{"a": "1", "b": "1", "c": "1"})
		set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		e := b.watch("eds", "a", "b")
		synctest.Wait()
		if got, want := p.taken(), []string{"a", "a", "b", "b", "c"}; !slices.Equal(got, want) {
			t.Errorf("first it sent %q, want %q", got, want)
		}
		b.server.Stop()
		synctest.Wait()
		p.set(t, "2", map[string]string{"a": "1", "b": "2", "d": "2"})
		b.restart(p)
		if got, want := p.taken(), []string{"-c", "b", "b", "d"}; !slices.Equal(got, want) {
			t.Errorf("then it sent %q, want what has changed: %q", got, want)
		}
		if got := members(set); got != "present [a=1 b=2 d=2]" {
			t.Errorf("the set is %s", got)
		}
		b.wantText(e["b"], "2")
	})
}

// A wildcard was given up and is wanted again, while another subscription keeps the stream open.
// Only in this case go-control-plane does not send again what the client may have forgotten.
func TestGoControlPlaneSendsASecondWildcardEverything(t *testing.T) {
	withPlane(t, func(b *bench, p *plane) {
		p.set(b.T, "1", map[string]string{"a": "1", "b": "1"})
		b.watch("eds", "a")
		w := &setWatcher{}
		b.cache.WatchSet(key("cds", cache.Wildcard), w)
		synctest.Wait()
		b.cache.Unwatch(w)
		pass(time.Minute + time.Second)
		again := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		if got := members(again); got != "present [a=1 b=1]" {
			b.Errorf("the second set is %s", got)
		}
	})
}

// Names come and go while the wildcard stays, and the wildcard while names stay.
func TestGoControlPlaneWildcardWithNames(t *testing.T) {
	withPlane(t, func(b *bench, p *plane) {
		p.set(b.T, "1", map[string]string{"a": "1", "b": "1"})
		byName := &watcher{}
		one := entryOf(b.cache.Watch(key("cds", "a"), byName))
		b.wantText(one, "1")
		w := &setWatcher{}
		set := b.cache.WatchSet(key("cds", cache.Wildcard), w)
		if got := members(set); got != "present [a=1 b=1]" {
			b.Errorf("the set is %s", got)
		}
		b.cache.Unwatch(byName)
		pass(time.Minute + time.Second)
		p.set(b.T, "2", map[string]string{"a": "2", "b": "1"})
		if got := members(set); got != "present [a=2 b=1]" {
			b.Errorf("without the name the set is %s", got)
		}
		one = b.watch("cds", "a")["a"]
		b.wantText(one, "2")
		b.cache.Unwatch(w)
		pass(time.Minute + time.Second)
		p.set(b.T, "3", map[string]string{"a": "3", "b": "3"})
		b.wantText(one, "3")
	})
}

// entryOf is the entry that a Watch returned.
func entryOf(e *cache.Entry, _ *cache.Resource) *cache.Entry { return e }
