package upstream

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

// restModel is a control plane that is polled: with versions, which it looks at and
// nothing else, as go-control-plane does.
type restModel struct {
	mu      sync.Mutex
	states  []map[string]string // of both types, by version; "bad" cannot be decoded
	now     int                 // the version
	failing bool
	holding bool          // until there is something new
	changed chan struct{} // closed at the next change
}

func (m *restModel) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *restModel) state() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.states[m.now]
}

func (m *restModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var req discoveryv3.DiscoveryRequest
	if err := protojson.Unmarshal(text, &req); err != nil {
		panic(err)
	}
	for {
		m.mu.Lock()
		version, state := fmt.Sprint("v", m.now), m.states[m.now]
		failing, holding, changed := m.failing, m.holding, m.changed
		m.mu.Unlock()
		switch {
		case failing:
			http.Error(w, "failing", http.StatusInternalServerError)
			return
		case req.GetVersionInfo() == version && holding:
			select {
			case <-changed:
				continue
			case <-r.Context().Done():
				return
			}
		case req.GetVersionInfo() == version:
			w.WriteHeader(http.StatusNotModified)
			return
		}
		var resources []any
		for _, name := range slices.Sorted(maps.Keys(state)) {
			if asked := req.GetResourceNames(); len(asked) > 0 && !slices.Contains(asked, name) {
				continue
			}
			res := map[string]any{"@type": req.GetTypeUrl()}
			if req.GetTypeUrl() == typeURLs["cds"] {
				res["name"], res["alt_stat_name"] = name, state[name]
			} else {
				res["cluster_name"], res["named_endpoints"] = name, map[string]any{state[name]: map[string]any{}}
			}
			if state[name] == "bad" {
				res["no_such_field"] = true
			}
			resources = append(resources, res)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"version_info": version, "resources": resources})
		return
	}
}

// restStep is one thing that happens.
type restStep struct {
	what       int
	name, text string
	number     int
}

// TestPollingConvergesToTheControlPlanesState: after any interleaving of changes,
// rollbacks, failures, bad resources, and names that come and
// go, the relay holds the state of the control plane.
func TestPollingConvergesToTheControlPlanesState(t *testing.T) {
	step := rapid.Custom(func(t *rapid.T) restStep {
		return restStep{
			what:   rapid.IntRange(0, 7).Draw(t, "what"),
			name:   rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name"),
			text:   rapid.SampledFrom([]string{"1", "2", "3", "bad", ""}).Draw(t, "text"),
			number: rapid.IntRange(1, 90_000).Draw(t, "number"),
		}
	})
	// With more than one, Go's race detector now and then crashes when the timers of
	// many bubbles start goroutines, as those of net/http do (Go 1.26).
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(step, 1, 25).Draw(rt, "steps")
		var wrong []string
		synctest.Test(t, func(t *testing.T) { wrong = pollThrough(t, steps) })
		if len(wrong) > 0 {
			rt.Error(strings.Join(wrong, "\n"))
		}
	})
}

// pollThrough returns the differences between the relay's and the control plane's state at the end.
func pollThrough(t *testing.T, steps []restStep) (wrong []string) {
	m := &restModel{states: []map[string]string{{}}, changed: make(chan struct{})}
	b := &restBench{separate: &separate{bench: &bench{T: t, logs: &logBuffer{}}}}
	defer b.serve(Options{}, RESTOptions{RequestTimeout: 20 * time.Second}, m)()
	set := b.cache.WatchSet(key("cds", cache.Wildcard), &setWatcher{})
	watchers, entries := map[string]*watcher{}, map[string]*cache.Entry{}
	watch := func(name string) {
		if watchers[name] == nil {
			watchers[name] = &watcher{}
			entries[name], _ = b.cache.Watch(key("eds", name), watchers[name])
		}
	}
	put := func(next map[string]string) {
		m.states = append(m.states, next)
		m.now = len(m.states) - 1
	}
	for _, s := range steps {
		switch s.what {
		case 0, 1:
			m.change(func() {
				next := maps.Clone(m.states[m.now])
				if next[s.name] = s.text; s.text == "" {
					delete(next, s.name)
				}
				put(next)
			})
		case 2:
			m.change(func() { m.now = s.number % len(m.states) })
		case 3:
			m.change(func() { m.failing = !m.failing })
		case 4:
			m.change(func() { m.holding = !m.holding })
		case 5:
			watch(s.name)
		case 6:
			if w := watchers[s.name]; w != nil {
				b.cache.Unwatch(w)
				delete(watchers, s.name)
			}
		case 7:
			pass(time.Duration(s.number) * time.Millisecond)
		}
	}

	m.change(func() {
		m.failing = false
		next := maps.Clone(m.states[m.now])
		maps.DeleteFunc(next, func(_, text string) bool { return text == "bad" })
		if !maps.Equal(next, m.states[m.now]) {
			put(next)
		}
	})
	for name := range m.state() {
		watch(name)
	}
	pass(2 * time.Minute)
	var want []string
	for _, name := range slices.Sorted(maps.Keys(m.state())) {
		content := m.state()[name]
		want = append(want, name+"="+content)
		if s := entries[name].State(); s.Resource == nil || text(s.Resource) != content {
			wrong = append(wrong, fmt.Sprintf("%s is %s %v, want %s", name, s.Status, s.Resource, content))
		}
	}
	if got, want := members(set), fmt.Sprintf("present [%s]", strings.Join(want, " ")); got != want {
		wrong = append(wrong, fmt.Sprintf("the set is %s, want %s", got, want))
	}
	return wrong
}
