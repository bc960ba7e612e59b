package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A control plane that is polled has redirects, and is in a view, as any other: a glob is
// the members of its wildcard, and what a redirect leads to is polled for by name.

// polledListeners is such a control plane. It has Listeners, by their names: what is in
// the wildcard, and what is given only to who asks by name.
type polledListeners struct {
	mu      sync.Mutex
	version int
	// members and named are JSON.
	members, named map[string]string
}

func (p *polledListeners) say(members, named map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version++
	p.members, p.named = members, named
}

// ServeHTTP implements http.Handler.
func (p *polledListeners) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Version string   `json:"version_info"`
		Names   []string `json:"resource_names"`
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	version := fmt.Sprint(p.version)
	if req.Version == version {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	resources := slices.Collect(maps.Values(p.members))
	if len(req.Names) > 0 {
		resources = nil
		for _, name := range req.Names {
			if r := p.members[name] + p.named[name]; r != "" {
				resources = append(resources, r)
			}
		}
	}
	fmt.Fprintf(w, `{"version_info": %q, "resources": [%s]}`, version, strings.Join(resources, ", "))
}

func listenerJSON(name, stat string) string {
	return fmt.Sprintf(`{"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": %q, "stat_prefix": %q}`, name, stat)
}

func redirectJSON(name, authority, id string) string {
	return fmt.Sprintf(`{"@type": "type.googleapis.com/envoy.service.discovery.v3.Resource", "name": %q, "version": "1", "resource":
		{"@type": "type.googleapis.com/xds.core.v3.ResourceLocator", "authority": %q, "resource_type": "envoy.config.listener.v3.Listener", "id": %q}}`, name, authority, id)
}

func TestAViewAndRedirectsOfAControlPlaneThatIsPolled(t *testing.T) {
	const (
		begin    = "xdstp://polled/envoy.config.listener.v3.Listener/"
		a, b     = begin + "edge/a", begin + "edge/b"
		target   = begin + "target"
		elsewise = begin + "other/c"
	)
	for _, protocol := range []string{"delta", "sotw"} {
		t.Run(protocol, func(t *testing.T) {
			plane := &polledListeners{}
			plane.say(map[string]string{a: listenerJSON(a, "one"), b: listenerJSON(b, "one"), elsewise: listenerJSON(elsewise, "no member")}, nil)
			polled := httptest.NewServer(plane)
			defer polled.Close()
			inFolder(t, map[string]string{"relay.yaml": fmt.Sprintf(`
listeners: [{address: "127.0.0.1:0"}]
authorities:
  - name: polled
    servers: [{address: %q, protocol: rest, poll_interval: 100ms}]
old_style_names: [{authority: polled}]
views:
  - match: {type: listener, wildcard: true}
    collections: [%s]
`, strings.TrimPrefix(polled.URL, "http://"), begin+"edge/*")})
			server, stop := startServe(t, "relay.yaml")
			watch := func(names ...string) watched {
				return startWatch(t, append([]string{"--server", server, "--type", "listener", "--protocol", protocol, "-o", "json"}, names...)...)
			}
			view, name := watch(), watch(b)
			members, named := state{}, state{}
			members.follow(t, view, state{a: "one", b: "one"})
			named.follow(t, name, state{b: "one"})

			redirect := map[string]string{a: listenerJSON(a, "two"), b: redirectJSON(b, "polled", "target")}
			plane.say(redirect, map[string]string{target: listenerJSON(target, "found")})
			members.follow(t, view, state{a: "two", b: "found"})
			named.follow(t, name, state{b: "found"})

			plane.say(redirect, map[string]string{target: listenerJSON(target, "changed")})
			members.follow(t, view, state{a: "two", b: "changed"})
			named.follow(t, name, state{b: "changed"})

			plane.say(map[string]string{b: listenerJSON(b, "back")}, nil)
			members.follow(t, view, state{b: "back"})
			named.follow(t, name, state{b: "back"})
			for _, w := range []watched{view, name} {
				_, _ = w.stop()
			}
			if log, status := stop(); status != 0 {
				t.Errorf("status %d\n%s", status, log)
			}
		})
	}
}
