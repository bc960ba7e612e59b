package upstream

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
)

// events records the events, each with the result of look at that moment.
type events struct {
	mu   sync.Mutex
	all  []string
	look func() string
}

func (e *events) watch(v delivery.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	words := []string{[...]string{"delivered", "opened", "responded", "lost", "failed", "ended"}[v.Kind]}
	if e.look != nil {
		words = append(words, e.look())
	}
	e.all = append(e.all, strings.Join(words, " "))
}

func (e *events) take() []string {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	return all
}

// TestEventsComeBeforeTheirUpdates checks the order of events and updates: failover, which decides
// by events whose updates count, has decided before they come.
func TestEventsComeBeforeTheirUpdates(t *testing.T) {
	e := &events{}
	run(t, Options{Protocol: Delta, watch: e.watch}, func(b *bench) {
		expect := func(want ...string) {
			b.Helper()
			if got := e.take(); !slices.Equal(got, want) {
				b.Errorf("events %q, want %q", got, want)
			}
		}
		b.refuse(errors.New("no route"))
		e.mu.Lock() // the first event waits until there is something to look at
		a := b.watch("cds", "a")["a"]
		e.look = func() string { return a.State().Status.String() }
		e.mu.Unlock()
		expect("failed requested")
		b.want(a, "failed Unavailable")
		b.refuse(nil)
		st := b.next()
		if got := e.take(); got[len(got)-1] != "opened failed" { // after more attempts, perhaps
			b.Errorf("events %q", got)
		}
		b.respond(st, deltaResponse(t, "cds", "1", "a"))
		expect("responded failed")
		b.want(a, "present v1")
		b.respond(st, deltaResponse(t, "cds", "2", "a"))
		expect() // it is the first that says something new
		st.end <- status.Error(codes.Unavailable, "restarting")
		expect("lost present")
		b.next().end <- status.Error(codes.Unavailable, "starting")
		expect("opened present", "failed present")
		b.next()
		expect("opened present")
		// A new stream for a wildcard, and one for its names, are no failures.
		b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
		b.next()
		ofNamesStream := b.next()
		for _, event := range e.take() {
			if event != "ended present" && event != "opened present" {
				b.Errorf("event %q", event)
			}
		}
		// Nor is there an event if one of them fails while the other is open.
		ofNamesStream.end <- status.Error(codes.Unavailable, "restarting")
		expect()
	})
}

// TestControlPlaneOfSeveralStreamsFailsWhenAllHave checks how the events of several streams are merged into
// those of the control plane.
func TestControlPlaneOfSeveralStreamsFailsWhenAllHave(t *testing.T) {
	e := &events{}
	watch := mergeEvents(deliverytest.Func(e.watch))
	for _, step := range []struct {
		typ  string
		kind delivery.Kind
		want string
	}{
		{"cds", delivery.Opened, "opened"},
		{"eds", delivery.Failed, ""}, // cds may yet answer
		{"cds", delivery.Responded, "responded"},
		{"eds", delivery.Failed, ""},
		{"cds", delivery.Lost, "lost"},
		{"lds", delivery.Opened, "opened"},
		{"cds", delivery.Failed, ""},
		{"lds", delivery.Failed, "failed"},
		{"eds", delivery.Failed, "failed"},
		{"lds", delivery.Ended, ""},
		{"cds", delivery.Opened, "opened"},
		{"cds", delivery.Ended, ""}, // eds is still wanted
		{"eds", delivery.Ended, "ended"},
	} {
		watch(delivery.Event{Kind: step.kind, TypeURL: step.typ})
		var want []string
		if step.want != "" {
			want = []string{step.want}
		}
		e.mu.Lock()
		if !slices.Equal(e.all, want) {
			t.Errorf("%s %d: got %q, want %q", step.typ, step.kind, e.all, want)
		}
		e.all = nil
		e.mu.Unlock()
	}
}

// TestOtherServersVersionsAreOfferedIfShared checks that the resources of another server are listed to
// this one, which then need not send them; and that listed resources which it does not replace
// are held.
func TestOtherServersVersionsAreOfferedIfShared(t *testing.T) {
	held := map[string]map[string]*cache.Resource{}
	put := func(topic, name string) {
		if held[topic] == nil {
			held[topic] = map[string]*cache.Resource{}
		}
		held[topic][name] = cache.NewResource(cache.Spec{Name: name, Version: "v7", TypeURL: typeURLs["cds"], Value: value(t, "cds", name, "7")})
	}
	put("same", "same")
	put("gone", "gone")
	put(cache.Wildcard, "same")
	put(cache.Wildcard, "member")
	seed := func(k cache.Key, yield func(string, *cache.Resource)) {
		for name, r := range held[k.Name] {
			yield(name, r)
		}
	}
	for _, form := range []Protocol{Delta, SotW} {
		run(t, Options{Protocol: form, Seed: seed}, func(b *bench) {
			// The stream sees all of it at once: it takes the lock before it reads its inbox.
			b.stream.mu.Lock()
			b.mu.Lock()
			set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
			entries := b.watchLocked("cds", "same", "gone", "new")
			b.mu.Unlock()
			b.stream.mu.Unlock()
			all, ofNamesStream := b.next(), b.next()
			ofAll, ofNames := all.request(t), ofNamesStream.request(t)
			if len(describe(ofAll).names) > 0 {
				all, ofNamesStream, ofAll, ofNames = ofNamesStream, all, ofNames, ofAll
			}
			if form == SotW {
				// Its version is not the other server's.
				for _, m := range []proto.Message{ofAll, ofNames} {
					if v := m.(*discoveryv3.DiscoveryRequest).GetVersionInfo(); v != "" {
						t.Errorf("SotW: the request shows version %q", v)
					}
				}
				pass(15 * time.Second)
				b.want(entries["same"], "failed DeadlineExceeded")
				return
			}
			offered := func(m proto.Message) string {
				known := m.(*discoveryv3.DeltaDiscoveryRequest).GetInitialResourceVersions()
				return fmt.Sprint(slices.Sorted(maps.Keys(known)))
			}
			if got, want := offered(ofAll)+offered(ofNames), "[member same][gone same]"; got != want {
				t.Errorf("offered are %s, want %s", got, want)
			}
			b.want(entries["same"], "requested") // who got the error knows it
			m := deltaResponse(t, "cds", "8", "new")
			m.RemovedResources = []string{"gone"}
			b.respond(ofNamesStream, m)
			b.respond(all, deltaResponse(t, "cds", "8", "new"))
			b.want(entries["new"], "present v8")
			b.want(entries["gone"], "absent")
			b.want(entries["same"], "requested")
			b.stream.Resend()
			b.want(entries["same"], "present v7")
			b.want(entries["gone"], "absent")
			for _, name := range []string{"same", "member", "new"} {
				if set.Member(name) == nil {
					t.Errorf("%s is no member", name)
				}
			}
			if n := set.Len(); n != 3 {
				t.Errorf("%d members", n)
			}
		})
	}
}

// TestResendIsComplete checks that a sink that has missed updates has everything in the end.
func TestResendIsComplete(t *testing.T) {
	run(t, Options{Protocol: Delta, ResponseTimeout: 15 * time.Second}, func(b *bench) {
		entries := b.watch("cds", "there", "gone", "silent")
		st := b.next()
		st.delta(t) // what comes before it is no answer to it
		m := deltaResponse(t, "cds", "1", "there")
		m.RemovedResources = []string{"gone"}
		b.respond(st, m)
		pass(16 * time.Second)
		b.want(entries["silent"], "failed DeadlineExceeded")
		for name := range entries {
			b.cache.Apply(cache.Update{Scope: testScope, TypeURL: typeURLs["cds"], Changes: []cache.Change{{
				Name: name, Resource: cache.NewResource(cache.Spec{Name: name, Version: "other", TypeURL: typeURLs["cds"]}),
			}}})
		}
		b.stream.Resend()
		b.want(entries["there"], "present v1")
		b.want(entries["gone"], "absent")
		b.want(entries["silent"], "present other DeadlineExceeded")
	})
}
