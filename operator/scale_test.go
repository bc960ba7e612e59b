package operator

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/health"

	"github.com/xds-relay/xds-relay/admin"
	"github.com/xds-relay/xds-relay/authority"
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/feed"
	"github.com/xds-relay/xds-relay/guard"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/partition"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/rollout/gate"
)

// A list of 100,000 resources (10,000 with -short) has pages. The relay makes a page without collecting all resources:
// its memory depends on the rows.
func TestAPageOfManyResourcesCostsItsRows(t *testing.T) {
	members := 100_000
	if testing.Short() {
		members = 10_000
	}
	r := newIdleObserver(t, "authorities: [{name: a, directory: d}]\nold_style_names: [{authority: a}]")
	scope := cache.Scope{Authority: "a", OldStyle: true}
	w := &ignoringSet{}
	r.Cache.WatchSet(cache.Key{Scope: scope, TypeURL: xdstype.ClusterV3, Name: cache.Wildcard}, w)
	u := cache.SetUpdate{Name: cache.Wildcard, Extent: cache.Whole}
	for i := range members {
		name := fmt.Sprintf("cluster-%06d", (i*7919)%members)
		u.Changes = append(u.Changes, cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: xdstype.ClusterV3, Value: []byte("\x0a\x0e" + name)})})
	}
	r.Cache.Apply(cache.Update{Scope: scope, TypeURL: xdstype.ClusterV3, Sets: []cache.SetUpdate{u}})
	get := func(path string) (*httptest.ResponseRecorder, uint64, time.Duration) {
		t.Helper()
		request := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
		answer := httptest.NewRecorder()
		handler := r.Admin.HTTP(slog.New(slog.DiscardHandler), nil).Handler
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		handler.ServeHTTP(answer, request)
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		if answer.Code != http.StatusOK {
			t.Fatalf("%s has status %d: %s", path, answer.Code, answer.Body)
		}
		return answer, after.TotalAlloc - before.TotalAlloc, took
	}
	get("/ui/resources") // parses the templates
	for _, path := range []string{"/ui/resources", "/ui/resources?search=cluster-09999", "/api/resources?type=cluster&limit=100", "/ui/resources?search=nothing-is-like-that"} {
		answer, bytes, took := get(path)
		t.Logf("%s: %v, %d bytes allocated, %d bytes long", path, took, bytes, answer.Body.Len())
		const most = 4 << 20
		if bytes > most || answer.Body.Len() > 100<<10 {
			t.Errorf("%s allocates %d bytes, and has %d", path, bytes, answer.Body.Len())
		}
	}
	// The relay reads the references of a part of the resources at a time.
	for {
		l, err := r.unusedList(map[string][]string{})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Resources) == listLength && l.Unread == 0 {
			break
		}
		if len(l.Resources) > 0 {
			t.Fatalf("%d resources are unused, and %d not read yet", len(l.Resources), l.Unread)
		}
		r.references.use = use{} // it is time to look again
	}
	for _, path := range []string{"/ui/unused", "/ui", "/ui/resource?authority=a&type=cluster&name=cluster-000007"} {
		answer, bytes, took := get(path)
		t.Logf("%s: %v, %d bytes allocated, %d bytes long", path, took, bytes, answer.Body.Len())
		_, bytes, took = get(path)
		t.Logf("%s again: %v, %d bytes allocated", path, took, bytes)
		if answer.Body.Len() > 100<<10 {
			t.Errorf("%s has %d bytes", path, answer.Body.Len())
		}
	}
	// Each resource is on exactly one page.
	seen, after := map[string]bool{}, ""
	for range 5 {
		list, err := r.resourceList(map[string][]string{"limit": {"1000"}, "after": {after}})
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range list.Resources {
			if want := fmt.Sprintf("cluster-%06d", len(seen)); row.Name != want {
				t.Fatalf("row %d is %s, want %s", i, row.Name, want)
			}
			seen[row.Name] = true
		}
		after = list.Next
	}
	if len(seen) != 5000 {
		t.Errorf("5 pages have %d resources", len(seen))
	}
}

// ignoringSet watches a set, and ignores it.
type ignoringSet struct{ cache.SetWatch }

func (*ignoringSet) Changed() cache.Waker { return nil }

// Clients can make up authorities under a pattern. A list of resources names only the first of them, without
// duplicates.
func TestAListOfResourcesNamesSomeAuthorities(t *testing.T) {
	r := newIdleObserver(t, "authorities: [{name: '*.example.com', directory: d}, {name: a, directory: d}]\nold_style_names: [{authority: a}]")
	for i := range mostAuthorities + 1 {
		for _, parameters := range []string{"", "x=1"} {
			name := fmt.Sprintf("%d.example.com", i)
			r.Cache.WatchSet(cache.Key{Scope: cache.Scope{Authority: name, Params: parameters}, TypeURL: xdstype.ClusterV3, Name: "xdstp://" + name + "/envoy.config.cluster.v3.Cluster/*"}, &ignoringSet{})
		}
	}
	list, err := r.resourceList(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.Compact(slices.Clone(list.Authorities))); n != mostAuthorities || n != len(list.Authorities) {
		t.Errorf("%d authorities are named, %d of them once, want %d", len(list.Authorities), n, mostAuthorities)
	}
}

// idleRelay is a relay that has no streams. It implements Sources, Process and cache.Source.
type idleRelay struct{ settings Settings }

func (*idleRelay) Statuses() map[cache.Scope][]ServerStatus                { return nil }
func (*idleRelay) Stale() map[cache.Scope]int                              { return nil }
func (*idleRelay) Held() map[string][]guard.Held                           { return nil }
func (*idleRelay) Fleet() *FleetStatus                                     { return nil }
func (*idleRelay) Members() *fleet.Fleet                                   { return nil }
func (r *idleRelay) Settings() *Settings                                   { return &r.settings }
func (*idleRelay) Config() ConfigStatus                                    { return ConfigStatus{} }
func (*idleRelay) Began() time.Time                                        { return time.Time{} }
func (*idleRelay) Missing(string) string                                   { return "" }
func (*idleRelay) Lost(func(string, error))                                {}
func (*idleRelay) Listeners() []ListenerStatus                             { return nil }
func (*idleRelay) Load(context.Context, string) error                      { return ErrBuiltIn }
func (*idleRelay) Check(context.Context, string, []byte) (*Changes, error) { return nil, ErrBuiltIn }
func (*idleRelay) Start(cache.Key)                                         {}
func (*idleRelay) Refresh(cache.Key)                                       {}
func (*idleRelay) Stop(cache.Key)                                          {}

// newIdleObserver returns the observer of a relay that has a cache and no streams.
func newIdleObserver(t *testing.T, yaml string) *Observer {
	t.Helper()
	cfg, err := configs.Parse("relay.yaml", []byte("listeners: [{address: '127.0.0.1:0'}]\n"+yaml))
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := admin.NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	router := authority.New(cfg)
	relay := &idleRelay{Settings{Config: cfg, Router: router, Rights: naming.NewRights(cfg, router), Tallies: map[string]*taster.Tally{}}}
	log := slog.New(slog.DiscardHandler)
	for i := range cfg.Authorities {
		relay.settings.Tallies[cfg.Authorities[i].Name] = taster.NewTally(taster.Warn, log)
	}
	topics := cache.New(relay, cache.Options{})
	names := func(downstream.Client) downstream.Names { return nil } // there are no clients
	credentials := certs.NewStore(log)
	r := New(Readers{
		Log: log, Admin: admin.New(metrics), Cache: topics, Server: downstream.NewServer(topics, names, downstream.Options{Log: log}),
		Rollouts:    gate.NewController(topics, func(cache.Scope) *gate.Options { return nil }, func(authority string) string { return authority }, log),
		Credentials: credentials, Health: health.NewServer(), Nodes: partition.NewNodes(), Reachability: feed.NewReachability(), Sources: relay, Process: relay,
	})
	r.Register()
	t.Cleanup(func() {
		topics.Close()
		r.Rollouts.Close()
		r.Close()
		credentials.Close()
	})
	return r
}
