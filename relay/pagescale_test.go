package relay

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A list of 100,000 resources (10,000 with -short) has pages. The relay makes a page without collecting all resources:
// its memory depends on the rows.
func TestAPageOfManyResourcesCostsItsRows(t *testing.T) {
	members := 100_000
	if testing.Short() {
		members = 10_000
	}
	cfg, err := configs.Parse("relay.yaml", []byte("listeners: [{address: '127.0.0.1:0'}]\nauthorities: [{name: a, directory: d}]\nold_style_names: [{authority: a}]"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, Options{Files: fstest.MapFS{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	scope := cache.Scope{Authority: "a", OldStyle: true}
	w := &ignoringSet{}
	r.cache.WatchSet(cache.Key{Scope: scope, TypeURL: xdstype.ClusterV3, Name: cache.Wildcard}, w)
	u := cache.SetUpdate{Name: cache.Wildcard, Extent: cache.Whole}
	for i := range members {
		name := fmt.Sprintf("cluster-%06d", (i*7919)%members)
		u.Changes = append(u.Changes, cache.Change{Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: "1", TypeURL: xdstype.ClusterV3, Value: []byte("\x0a\x0e" + name)})})
	}
	r.cache.Apply(cache.Update{Scope: scope, TypeURL: xdstype.ClusterV3, Sets: []cache.SetUpdate{u}})
	get := func(path string) (*httptest.ResponseRecorder, uint64, time.Duration) {
		t.Helper()
		request := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
		answer := httptest.NewRecorder()
		handler := r.admin.HTTP(slog.New(slog.DiscardHandler), nil).Handler
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
		l, err := r.observer.unusedList(map[string][]string{})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Resources) == listLength && l.Unread == 0 {
			break
		}
		if len(l.Resources) > 0 {
			t.Fatalf("%d resources are unused, and %d not read yet", len(l.Resources), l.Unread)
		}
		r.observer.references.use = use{} // it is time to look again
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
		list, err := r.observer.resourceList(map[string][]string{"limit": {"1000"}, "after": {after}})
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
	cfg, err := configs.Parse("relay.yaml", []byte("listeners: [{address: '127.0.0.1:0'}]\nauthorities: [{name: '*.example.com', directory: d}, {name: a, directory: d}]\nold_style_names: [{authority: a}]"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, Options{Files: fstest.MapFS{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := range mostAuthorities + 1 {
		for _, parameters := range []string{"", "x=1"} {
			name := fmt.Sprintf("%d.example.com", i)
			r.cache.WatchSet(cache.Key{Scope: cache.Scope{Authority: name, Params: parameters}, TypeURL: xdstype.ClusterV3, Name: "xdstp://" + name + "/envoy.config.cluster.v3.Cluster/*"}, &ignoringSet{})
		}
	}
	list, err := r.observer.resourceList(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.Compact(slices.Clone(list.Authorities))); n != mostAuthorities || n != len(list.Authorities) {
		t.Errorf("%d authorities are named, %d of them once, want %d", len(list.Authorities), n, mostAuthorities)
	}
}
