package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
	"github.com/xds-relay/xds-relay/internal/testplane/memconn"
)

// strictPlane is a control plane that ends each stream on which a type is requested that it does
// not have. go-control-plane's MuxCache does so.
type strictPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	mu     sync.Mutex
	has    []string // type URLs
	opened int
	most   int
	open   map[int][]string // types on each open stream
	// parts is the content of the one member of each wildcard. When the relay ends its requests on a stream, the
	// control plane sends the content that the stream had before.
	parts string
}

// DeltaAggregatedResources implements the service in delta.
func (p *strictPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	p.mu.Lock()
	p.opened++
	id := p.opened
	if p.open == nil {
		p.open = map[int][]string{}
	}
	p.open[id] = nil
	p.most = max(p.most, len(p.open))
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, id)
	}()
	before := ""
	for n := 0; ; n++ {
		req, err := stream.Recv()
		if err != nil { // the relay has ended the stream
			if before != "" {
				_ = stream.Send(memberOf(typeURLs["eds"], before))
			}
			return nil
		}
		p.mu.Lock()
		has := slices.Contains(p.has, req.GetTypeUrl())
		if !slices.Contains(p.open[id], req.GetTypeUrl()) {
			p.open[id] = append(p.open[id], req.GetTypeUrl())
		}
		p.mu.Unlock()
		if !has {
			return status.Error(codes.Unknown, "no cache defined for key "+req.GetTypeUrl())
		}
		if p.wildcard(req) {
			p.mu.Lock()
			before = p.parts
			p.parts += "'"
			p.mu.Unlock()
			if stream.Send(memberOf(req.GetTypeUrl(), before)) != nil {
				return nil
			}
			continue
		}
		m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: fmt.Sprint(n)}
		for _, name := range req.GetResourceNamesSubscribe() {
			m.Resources = append(m.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: &anypb.Any{TypeUrl: req.GetTypeUrl(), Value: append([]byte{10, byte(len(name))}, name...)}})
		}
		if len(m.GetResources()) > 0 && stream.Send(m) != nil {
			return nil
		}
	}
}

// wildcard reports whether a request is for all resources, and whether the control plane has any.
func (p *strictPlane) wildcard(req *discoveryv3.DeltaDiscoveryRequest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := req.GetResourceNamesSubscribe()
	return p.parts != "" && req.GetResponseNonce() == "" && (len(names) == 0 || slices.Contains(names, cache.Wildcard))
}

func memberOf(typeURL, version string) *discoveryv3.DeltaDiscoveryResponse {
	return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "member " + version, Resources: []*discoveryv3.Resource{
		{Name: "m", Version: version, Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte{10, 1, 'm'}}},
	}}
}

// shared returns the types on the stream that has the most.
func (p *strictPlane) shared() (types []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range p.open {
		if len(of) > len(types) {
			types = slices.Clone(of)
		}
	}
	return types
}

func (p *strictPlane) counts() (opened, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened, len(p.open)
}

// strictRig is a control plane that is strict, and what feeds from it.
type strictRig struct {
	*strictPlane
	cache   *cache.Cache
	of      *Aggregated
	logs    *logBuffer
	watched map[cache.Key]*watcher

	heard []string // the versions that the cache was given, in order

	events sync.Mutex
	links  map[string]map[any]bool // the streams on which each type is requested
}

// Deliver passes on what the streams deliver.
func (r *strictRig) Deliver(e delivery.Event) {
	r.note(e)
	for _, u := range e.Types {
		for _, set := range u.Sets {
			for _, c := range set.Changes {
				if c.Resource != nil {
					r.heard = append(r.heard, c.Resource.Version())
				}
			}
		}
	}
	deliverytest.Direct(r.cache).Deliver(e)
}

// note notes what has happened to a type.
func (r *strictRig) note(e delivery.Event) {
	r.events.Lock()
	defer r.events.Unlock()
	switch e.Kind {
	case delivery.TypeOpened:
		if r.links[e.TypeURL] == nil {
			r.links[e.TypeURL] = map[any]bool{}
		}
		r.links[e.TypeURL][e.Stream] = true
	case delivery.TypeLost:
		delete(r.links[e.TypeURL], e.Stream)
	default:
	}
}

// streams returns the streams on which a type is requested.
func (r *strictRig) streams(typeURL string) map[any]bool {
	r.events.Lock()
	defer r.events.Unlock()
	return maps.Clone(r.links[typeURL])
}

func runStrict(t *testing.T, test func(t *testing.T, r *strictRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &strictRig{strictPlane: &strictPlane{has: []string{typeURLs["cds"], typeURLs["eds"]}}, logs: &logBuffer{}, watched: map[cache.Key]*watcher{}, links: map[string]map[any]bool{}}
		lis := memconn.Listen(1 << 20)
		server := grpc.NewServer()
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, r.strictPlane)
		go func() { _ = server.Serve(lis) }()
		conn, err := Dial("passthrough:///control-plane", DialOptions{Extra: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		}})
		if err != nil {
			t.Fatal(err)
		}
		source := &lateSource{}
		r.cache = cache.New(source, cache.Options{IdleEntries: 100})
		r.of = NewAggregated(testScope, conn, &corev3.Node{Id: "relay"}, Options{}, r, slog.New(slog.NewTextHandler(r.logs, nil)))
		source.Source = r.of
		test(t, r)
		r.of.Close()
		r.of.Close() // which does nothing
		<-r.of.Done()
		r.cache.Close()
		_ = conn.Close()
		server.Stop()
	})
}

func (r *strictRig) ask(typeURL, name string) *cache.Entry {
	k := cache.Key{Scope: testScope, TypeURL: typeURL, Name: name}
	r.watched[k] = &watcher{}
	return entryOf(r.cache.Watch(k, r.watched[k]))
}

func (r *strictRig) leave(typeURL, name string) {
	k := cache.Key{Scope: testScope, TypeURL: typeURL, Name: name}
	r.cache.Unwatch(r.watched[k])
	delete(r.watched, k)
}

func expectStatus(t *testing.T, what string, e *cache.Entry, want cache.Status) {
	t.Helper()
	if got := e.State(); got.Status != want {
		t.Errorf("%s is %v (%v), want %v", what, got.Status, got.Err, want)
	}
}

// One client's type must not keep other clients from theirs.
func TestATypeThatEndsTheStreamGetsOneOfItsOwn(t *testing.T) {
	runStrict(t, func(t *testing.T, r *strictRig) {
		first := r.ask(typeURLs["cds"], "a")
		pass(time.Second)
		expectStatus(t, "a resource", first, cache.Present)
		bad := r.ask("made.up/0", "x")
		late := r.ask(typeURLs["eds"], "b") // never answered until then
		pass(time.Second)
		expectStatus(t, "a resource of another type", late, cache.Present)
		expectStatus(t, "a name of a type that the control plane does not have", bad, cache.Failed)
		if got := r.shared(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values([]string{typeURLs["cds"], typeURLs["eds"]}))) {
			t.Errorf("the shared stream has %q, want all types that the control plane has", got)
		}
		// From now on, made-up types begin on streams of their own, and other types are not disturbed.
		before, _ := r.counts()
		shared := r.of.Stream.Status().Since
		for i := range 10 * maxAlone {
			r.ask(fmt.Sprint("made.up/", 1+i), "x")
		}
		pass(10 * time.Minute)
		if r.of.Stream.Status().Since != shared {
			t.Error("the shared stream was opened again")
		}
		if opened, _ := r.counts(); opened-before > 10*maxAlone+maxAlone*10*60/15 {
			t.Errorf("%d streams were opened for types that the control plane does not have", opened-before)
		}
		if r.most > maxAlone+2 {
			t.Errorf("%d streams were open at once, want %d", r.most, maxAlone+2)
		}
		refused := 0
		for _, st := range r.of.Statuses() {
			if st.Protocol == "" && st.LastError == "" {
				t.Errorf("%s has no error", st.TypeURL)
			}
			if st.TypeURL != "" {
				refused++
			}
		}
		if refused != 10*maxAlone+1 {
			t.Errorf("%d types are shown to have failed, want %d", refused, 10*maxAlone+1)
		}
		// Those that fail give way to one that the control plane has.
		r.mu.Lock()
		r.has = append(r.has, "good/1")
		r.mu.Unlock()
		good := r.ask("good/1", "x")
		pass(time.Second)
		expectStatus(t, "a name of a new type that the control plane has", good, cache.Present)
		if !slices.Contains(r.shared(), "good/1") {
			t.Error("a type that was answered is not on the shared stream")
		}
		r.of.mu.Lock()
		beyond := ""
		for typeURL, of := range r.of.types {
			if of.refused {
				beyond = typeURL
			}
		}
		r.of.mu.Unlock()
		another := r.ask(beyond, "y")
		synctest.Wait()
		if err := another.State().Err; err == nil || err.Code != codes.ResourceExhausted {
			t.Errorf("a name of a type beyond the limit gets %v, want RESOURCE_EXHAUSTED", err)
		}
	})
}

// A response on a type's own stream is not newer than what the shared stream has brought since.
func TestATypeThatReturnsIsNotHeardOnItsOwnStreamAnyMore(t *testing.T) {
	runStrict(t, func(t *testing.T, r *strictRig) {
		r.ask(typeURLs["cds"], "a")
		r.mu.Lock()
		r.has, r.parts = []string{typeURLs["cds"]}, "1"
		r.mu.Unlock()
		r.cache.WatchSet(cache.Key{Scope: testScope, TypeURL: typeURLs["eds"], Name: cache.Wildcard}, &setWatcher{})
		pass(time.Minute)
		r.mu.Lock()
		r.has = append(r.has, typeURLs["eds"])
		r.mu.Unlock()
		pass(time.Minute)
		if want := []string{"1", "1'"}; !slices.Equal(r.heard, want) {
			t.Errorf("the cache was given the versions %q, want those of the type's own stream and then of the shared stream: %q", r.heard, want)
		}
		if of := r.streams(typeURLs["eds"]); len(of) != 1 || !of[r.of.Stream] {
			t.Errorf("the type is requested on %d streams, want only the shared one", len(of))
		}
	})
}

// A type that the control plane gets later is served then.
func TestATypeOfItsOwnStreamIsTriedAgain(t *testing.T) {
	runStrict(t, func(t *testing.T, r *strictRig) {
		r.ask(typeURLs["cds"], "a")
		e := r.ask("late/1", "x")
		pass(time.Minute)
		expectStatus(t, "a name of a type that the control plane does not have", e, cache.Failed)
		r.mu.Lock()
		r.has = append(r.has, "late/1")
		r.mu.Unlock()
		pass(time.Minute)
		expectStatus(t, "a name of a type that the control plane has by now", e, cache.Present)
	})
}

// Types that nobody requests any more leave nothing behind, and a refused type takes their place.
func TestATypeThatIsGivenUpLeavesItsPlace(t *testing.T) {
	runStrict(t, func(t *testing.T, r *strictRig) {
		r.ask(typeURLs["cds"], "a")
		for i := range maxAlone + 1 {
			r.ask(fmt.Sprint("made.up/", i), "x")
			pass(time.Second)
		}
		r.of.mu.Lock()
		alone := r.of.alone
		r.of.mu.Unlock()
		if alone != maxAlone {
			t.Errorf("%d types have streams of their own, want %d", alone, maxAlone)
		}
		for i := range maxAlone + 1 {
			r.leave(fmt.Sprint("made.up/", i), "x")
			pass(time.Second)
			r.of.mu.Lock()
			if want := min(maxAlone, maxAlone-i); r.of.alone != want {
				t.Errorf("%d types have streams of their own after %d have gone, want %d", r.of.alone, i+1, want)
			}
			r.of.mu.Unlock()
		}
		pass(time.Minute)
		if _, open := r.counts(); open != 1 || len(r.of.types) != 0 {
			t.Errorf("%d streams are open, and %d types known, want the shared stream only", open, len(r.of.types))
		}
	})
}
